#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/stage.h"
#include "tests/kernels/naive_model.h"

namespace sluice::test {

// Memory of exactly so many bytes, aligned as buffers are, between guards. Begins as NaN in every element, so that
// whoever reads what nobody wrote is found out.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::int64_t bytes);
  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  void zero();
  // Nobody has written outside.
  bool intact() const;

 private:
  std::vector<std::byte> memory_;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

// How one batch is computed, straight through, by hand: all stages and slices in order.
struct TrainingCase {
  Transformer model;
  std::vector<StageContents> stages;
  int tensor_parallel = 1;
  Precision precision = Precision::float64;
  bool recompute = false;
  std::vector<std::int64_t> slices;  // tokens of each
  int sequences = 1;                 // of each microbatch
  int microbatches = 1;
  double loss_scale = 1;
  enum class Backward : std::uint8_t { whole, split, late, late_reversed } backward = Backward::whole;
  // whole: B. split: I, then W at once. late: the W of all microbatches after all I; reversed: the last microbatch
  // first.
  bool head_shares_embedding = false;  // over several stages, with tied embeddings: no copy

  std::int64_t tokens() const;
  std::vector<Sequence> batch() const;  // the same for the same shape
  std::vector<StageSpec> stage_specs(int tensor_rank) const;

  // Calls forward and backward (microbatch, slice), and where weight gradients come late weight (stage, microbatch,
  // slice), in the order of the case.
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
  Matrices gradients;            // whole, put together from all ranks and stages; copies of one added up
  double squared_norm = 0;       // over all ranks and stages
  std::int64_t allocations = 0;  // inside ops, of everything in the program; of one rank alone only
  std::int64_t recompute_ns = 0;
  bool intact = true;  // no buffer was written outside
};

// Weights for all matrices of a model, far larger than initial ones are, so that nothing is nearly linear.
Matrices random_matrices(const Transformer& model, std::uint64_t seed);

TrainingResult run(const TrainingCase& training, const Matrices& weights);

// Of a stage's buffer, whatever the precision.
double element(Precision precision, const std::byte* buffer, std::int64_t i);
void set_element(Precision precision, std::byte* buffer, std::int64_t i, double value);

// Models for tests: h 24, 4 heads of 6, f 40, 2 layers.
Transformer small_gpt();
Transformer small_llama();  // two key/value heads, no biases, untied

}  // namespace sluice::test
