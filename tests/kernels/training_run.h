#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/stage.h"
#include "tests/kernels/naive_model.h"

namespace sluice::test {

// A buffer of the given number of bytes, aligned to kBufferAlignment, between guards. Initialized with NaNs, so that
// reads of uninitialized elements are detected.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::int64_t bytes);
  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  void fill(std::byte value);
  void write(std::span<const std::byte> bytes);
  // Returns whether the guards are unchanged.
  bool intact() const;

 private:
  std::vector<std::byte> memory_;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

// Computation of one batch without the executor: all stages and slices in order.
struct TrainingCase {
  Transformer model;
  std::vector<StageContents> stages;
  int tensor_parallel = 1;
  int expert_parallel = 1;  // over the tensor ranks: 1 or tensor_parallel
  Precision precision = Precision::float64;
  bool recompute = false;
  std::vector<std::int64_t> slices;  // number of tokens per slice
  int sequences = 1;                 // per microbatch
  int microbatches = 1;
  double loss_scale = 1;
  enum class Backward : std::uint8_t { whole, split, late, late_reversed } backward = Backward::whole;
  // whole: B. split: I, immediately followed by W. late: the W of all microbatches after all I; late_reversed: the
  // same, from the last microbatch.
  bool in_parts = false;               // F, and B or I, by Stage::run_part
  bool head_shares_embedding = false;  // with several stages and tied embeddings: no copy

  std::int64_t tokens() const;
  std::vector<Sequence> batch() const;  // a function of the shape
  std::vector<StageSpec> stage_specs(int tensor_rank) const;

  // Calls forward and backward_of(microbatch, slice), and for late weight gradients weight(stage, microbatch, slice),
  // in the order of the case.
  template <typename Forward, typename BackwardOf, typename Weight>
  void in_order(const Forward& forward, const BackwardOf& backward_of, const Weight& weight) const {
    for (int m = 0; m < microbatches; ++m) {
      for (std::size_t k = 0; k < slices.size(); ++k) forward(m, k);
      for (std::size_t k = slices.size(); k-- > 0;) backward_of(m, k);
    }
    const bool late = backward == Backward::late || backward == Backward::late_reversed;
    for (int i = 0; late && i < microbatches; ++i) {
      const int m = backward == Backward::late ? i : microbatches - 1 - i;
      for (std::size_t k = slices.size(); k-- > 0;) {
        for (std::size_t s = stages.size(); s-- > 0;) weight(s, m, k);
      }
    }
  }
};

struct TrainingResult {
  double loss = 0;
  Matrices gradients;            // whole matrices, assembled from all ranks and stages; tied copies added
  double squared_norm = 0;       // over all ranks and stages
  std::int64_t allocations = 0;  // inside ops, by all threads; valid for one rank only
  std::int64_t recompute_ns = 0;
  bool intact = true;  // no op wrote outside of a buffer
};

// Returns random weights of all matrices of a model, much larger than initial weights, so that no operation is nearly
// linear.
Matrices random_matrices(const Transformer& model, std::uint64_t seed);

TrainingResult run(const TrainingCase& training, const Matrices& weights);

// F, or B or I, by Stage::run_part. Weight gradients of experts run before attention, as in the weave `dualpipe`.
void run_in_parts(const Stage& stage, SliceCall& call, bool forward);

// Access to elements of a stage's buffer of any precision.
double element(Precision precision, const std::byte* buffer, std::int64_t i);
void set_element(Precision precision, std::byte* buffer, std::int64_t i, double value);

// Returns the contents of a stage with the whole model.
inline StageContents whole(const Transformer& model) {
  return {
      .layers = model.layers, .expert_layers = model.layers - model.dense_layers(), .embedding = true, .head = true};
}

// Models for tests: h 24, 4 heads of 6, f 40, 2 layers.
Transformer small_gpt();
Transformer small_llama();  // two key/value heads, no biases, untied
// The same with experts: a dense layer, then one of 4 experts of size 14, of which each token passes 2.
Transformer small_expert_gpt();    // no biases of the MLP
Transformer small_expert_llama();  // shared experts of size 12 with a gate

}  // namespace sluice::test
