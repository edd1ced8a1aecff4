#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/collective.h"
#include "kernels/device.h"
#include "kernels/device_kernels.h"
#include "kernels/stage.h"
#include "model/cost/cost_table.h"
#include "model/workload/transformer.h"

namespace sluice::exec {

inline constexpr std::array kModelParts = {PartKind::embedding, PartKind::layer, PartKind::head};

// A slice to measure: `tokens` tokens after a prefix of `context` tokens.
struct ProfileCell {
  std::int64_t tokens = 1;
  std::int64_t context = 0;

  friend bool operator==(const ProfileCell&, const ProfileCell&) = default;
};

// The parts of a model for one tensor-parallel rank.
struct PartBenchSpec {
  Transformer model;
  Precision precision = Precision::float32;
  const DeviceKernels* kernels = nullptr;  // of a device; null: on the CPU
  bool recompute = false;
  int sequences = 1;
  std::int64_t sequence_length = 0;
  int tensor_parallel = 1;
  int tensor_rank = 0;
  int layers = 1;  // called in a row
  std::vector<ProfileCell> cells;
  std::uint64_t seed = 1;
};

// Times the ops of the parts of a model one by one: embedding, `layers` layers and head, with weights and the buffers
// of several microbatches. The inputs of ops are random. All memory is allocated at construction. On a device ops are
// enqueued on a stream one after the other, as in a run, and timed by events.
class PartBench {
 public:
  // `device` is required if the spec has kernels.
  explicit PartBench(const PartBenchSpec& spec, Device* device = nullptr);
  ~PartBench();
  PartBench(const PartBench&) = delete;
  PartBench& operator=(const PartBench&) = delete;

  // Returns the bytes that a bench with this spec allocates.
  static std::int64_t bytes_of(const PartBenchSpec& spec);

  // Times of F, F of another microbatch, B of the first, I and W of the other one, in this order, over all layers; the
  // second of two passes. Successive calls use the buffers of different microbatches.
  struct OpTime {
    OpKind kind = OpKind::F;
    std::int64_t nanoseconds = 0;  // without recomputation
    std::int64_t recompute_ns = 0;
  };
  std::array<OpTime, 5> run(PartKind part, const ProfileCell& cell, TensorGroup* tensor,
                            StreamGroup* stream_group = nullptr);

  // Times a pass over the parameters of a part in nanoseconds; the optimizer step zeroes the gradients, as in a run.
  std::int64_t run_pass(PartKind part, PassKind pass);
  std::int64_t parameters(PartKind part) const;

  // Returns the bytes that a slice transfers between stages.
  std::int64_t boundary_bytes(std::int64_t tokens) const;

 private:
  static constexpr int kMicrobatches = 3;

  struct Part {
    std::unique_ptr<Stage> stage;
    std::unique_ptr<Stage> sliced;  // of layers, if any cell is not a whole sequence; with the same weights
    std::byte* weights = nullptr;
    std::byte* gradients = nullptr;
    std::byte* optimizer_state = nullptr;
  };
  // Buffers of one microbatch, for any of its ops.
  struct Buffers {
    std::byte* to_input_gradient = nullptr;
    std::byte* to_weight_gradient = nullptr;
    std::byte* output_gradients = nullptr;
    std::byte* keys_values = nullptr;
    std::byte* keys_values_gradient = nullptr;
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::byte* output_gradient = nullptr;
    std::byte* input_gradient = nullptr;
  };
  struct Sizes {
    std::int64_t scratch = 0;
    SliceMemory most;  // maximum over all parts and cells; keys and values include the context
  };

  static std::array<Part, 3> make_parts(const PartBenchSpec& spec);
  static Sizes sizes_of(const PartBenchSpec& spec, const std::array<Part, 3>& parts);
  static std::int64_t allocated_bytes(const std::array<Part, 3>& parts, const Sizes& sizes);
  const Stage& stage_of(const Part& part, const ProfileCell& cell) const;
  void place(const Sizes& sizes);
  void load_tokens();
  // `element`: used on a device only.
  void fill_with_random(std::byte* data, std::int64_t bytes, double scale, Element element);
  void fill_weights(Part& part);
  // Runs an op and returns the nanoseconds of it that were recomputation.
  std::int64_t call(OpKind kind, const Part& part, const ProfileCell& cell, Buffers& buffers, TensorGroup* tensor,
                    StreamGroup* stream_group);
  Element element() const;
  // Records a time, on a device in its stream.
  void mark(std::size_t at);
  std::int64_t between(std::size_t first, std::size_t second);
  void zero(std::byte* data, std::int64_t bytes);

  PartBenchSpec spec_;
  Device* device_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::array<std::unique_ptr<Event>, 6> events_;
  std::array<std::int64_t, 6> marks_{};
  std::byte* small_ = nullptr;   // on a device: tokens, targets, a loss and tables
  std::byte* tables_ = nullptr;  // of Stage::fill_tables
  std::array<Part, 3> parts_;    // by PartKind
  std::byte* memory_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::array<Buffers, kMicrobatches> buffers_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::int64_t calls_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace sluice::exec
