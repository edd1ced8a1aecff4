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

// A slice to measure: so many tokens behind so many.
struct ProfileCell {
  std::int64_t tokens = 1;
  std::int64_t context = 0;

  friend bool operator==(const ProfileCell&, const ProfileCell&) = default;
};

// What a PartBench calls: one tensor rank's share of the parts of a model.
struct PartBenchSpec {
  Transformer model;
  Precision precision = Precision::float32;
  const DeviceKernels* kernels = nullptr;  // of a device; null: the CPU
  bool recompute = false;
  int sequences = 1;
  std::int64_t sequence_length = 0;
  int tensor_parallel = 1;
  int tensor_rank = 0;
  int layers = 1;  // that are called in a row
  std::vector<ProfileCell> cells;
  std::uint64_t seed = 1;
};

// The parts of a model, embedding, `layers` layers and head, with weights and the buffers of several microbatches:
// calls their ops one by one and tells what each took. What ops read is random. Allocated at once. On a device ops
// stand one behind the other on a stream, as in a run, and events tell their times.
class PartBench {
 public:
  // `device` where the spec has kernels.
  explicit PartBench(const PartBenchSpec& spec, Device* device = nullptr);
  ~PartBench();
  PartBench(const PartBench&) = delete;
  PartBench& operator=(const PartBench&) = delete;

  // Bytes that such a bench allocates.
  static std::int64_t bytes_of(const PartBenchSpec& spec);

  // Of F, F of another microbatch, B of the first, I and W of the other, in this order, after a pass that does not
  // count; microbatches take turns. Of all layers.
  struct OpTime {
    OpKind kind = OpKind::F;
    std::int64_t nanoseconds = 0;  // without recomputation
    std::int64_t recompute_ns = 0;
  };
  std::array<OpTime, 5> run(PartKind part, const ProfileCell& cell, TensorGroup* tensor,
                            StreamGroup* stream_group = nullptr);

  // A pass over a part's parameters; the step leaves the gradients zero, as in a run.
  std::int64_t run_pass(PartKind part, PassKind pass);
  std::int64_t parameters(PartKind part) const;

  // Of a slice: what goes between stages.
  std::int64_t boundary_bytes(std::int64_t tokens) const;

 private:
  static constexpr int kMicrobatches = 3;

  struct Part {
    std::unique_ptr<Stage> stage;
    std::unique_ptr<Stage> sliced;  // of layers, if any cell is not a whole sequence; the same weights
    std::byte* weights = nullptr;
    std::byte* gradients = nullptr;
    std::byte* moments = nullptr;
  };
  // Of one microbatch, for whichever op is called on it.
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
    SliceMemory most;  // over all parts and cells; keys and values with those of earlier slices
  };

  static std::array<Part, 3> make_parts(const PartBenchSpec& spec);
  static Sizes sizes_of(const PartBenchSpec& spec, const std::array<Part, 3>& parts);
  static std::int64_t allocated_bytes(const std::array<Part, 3>& parts, const Sizes& sizes);
  const Stage& stage_of(const Part& part, const ProfileCell& cell) const;
  void place(const Sizes& sizes);
  void load_tokens();
  // `element`: of a device.
  void fill_with_random(std::byte* data, std::int64_t bytes, double scale, Element element);
  void fill_weights(Part& part);
  // Returns how much of it recomputed.
  std::int64_t call(OpKind kind, const Part& part, const ProfileCell& cell, Buffers& buffers, TensorGroup* tensor,
                    StreamGroup* stream_group);
  Element element() const;
  // Notes the time, on the device in its stream.
  void mark(std::size_t at);
  std::int64_t between(std::size_t first, std::size_t second);
  void zero(std::byte* data, std::int64_t bytes);

  PartBenchSpec spec_;
  Device* device_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::array<std::unique_ptr<Event>, 6> events_;
  std::array<std::int64_t, 6> marks_{};
  std::byte* small_ = nullptr;  // of a device: tokens, targets, a loss
  std::array<Part, 3> parts_;   // by PartKind
  std::byte* memory_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::array<Buffers, kMicrobatches> buffers_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::vector<std::int64_t> slice_tokens_;
  std::vector<std::byte*> keys_values_;
  std::vector<std::byte*> keys_values_gradients_;
  std::int64_t calls_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace sluice::exec
