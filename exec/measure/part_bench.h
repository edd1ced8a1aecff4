#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/run/token_source.h"
#include "kernels/collective.h"
#include "kernels/device.h"
#include "kernels/device_kernels.h"
#include "kernels/stage.h"
#include "model/cost/cost_table.h"
#include "model/workload/transformer.h"

namespace sluice::exec {

// Returns the parts of a model whose ops are measured: embedding, layer (if it has dense ones), head, and experts,
// which here stands for layers with experts.
std::vector<PartKind> model_parts(const Transformer& model);

// A slice to measure: `tokens` tokens after a prefix of `context` tokens.
struct ProfileCell {
  std::int64_t tokens = 1;
  std::int64_t context = 0;

  friend bool operator==(const ProfileCell&, const ProfileCell&) = default;
};

// The groups that the ops of a worker communicate over; null where there are none.
struct OpGroups {
  TensorGroup* tensor = nullptr;
  ExpertGroup* experts = nullptr;
  StreamGroup* stream_tensor = nullptr;
  StreamGroup* stream_experts = nullptr;
};

// The parts of a model for one tensor-parallel rank.
struct PartBenchSpec {
  Transformer model;
  Precision precision = Precision::float32;
  const DeviceKernels* kernels = nullptr;  // of a device; null: on the CPU
  bool recompute = false;
  AttentionChoice attention = AttentionChoice::gemm;  // on a device
  int sequences = 1;
  std::int64_t sequence_length = 0;
  int tensor_parallel = 1;
  int tensor_rank = 0;
  int layers = 1;  // called in a row, of each kind at most as many as the model has
  std::vector<ProfileCell> cells;
  std::uint64_t seed = 1;

  // With experts, without recomputation: the rank in its expert group (StageSpec), the layer of the model with which
  // the measured layers begin, and the tokens that are routed: microbatches of the first step, beginning with this
  // sequence. Null: random ones.
  int data_rank = 0;
  int expert_parallel = 1;
  int first_expert_layer = 0;
  const TokenSource* tokens = nullptr;
  std::int64_t first_sequence = 0;
  int microbatches = 1;
};

// Time of a part of one layer with experts: of kind F, I or W.
struct ExpertPartTime {
  LayerPart part = LayerPart::attention;
  OpKind kind = OpKind::F;
  std::int64_t nanoseconds = 0;
};

// Times the ops of the parts of a model one by one: embedding, `layers` layers and head, with weights and the buffers
// of several microbatches. The inputs of ops are random, but those of layers with experts are what the initial model
// computes from tokens (load_inputs), so that experts receive as many rows as in a run. All memory is allocated at
// construction. On a device ops are enqueued on a stream one after the other, as in a run, and timed by events.
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
  std::array<OpTime, 5> run(PartKind part, const ProfileCell& cell, const OpGroups& groups);

  // With experts: runs the initial model up to the measured layers with experts. Called before run_expert_layers by all
  // workers together.
  void load_inputs(const OpGroups& groups);
  // The same ops as `run` calls, of layers with experts and part by part: times of F, F of another microbatch, B of the
  // first and I of the other one, layer by layer. Its W is run and not timed: B has weight gradients as well. What an
  // op does before and after its layers belongs to the attention of its first and last layer.
  std::vector<ExpertPartTime> run_expert_layers(const ProfileCell& cell, const OpGroups& groups);
  // Returns how many layers `run` and run_expert_layers call in a row; 1 for other parts.
  int layers_of(PartKind part) const { return layers_of(spec_, part); }

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
    std::byte* on_host = nullptr;  // of layers with experts on a device
  };
  struct Sizes {
    std::int64_t scratch = 0;
    SliceMemory most;  // maximum over all parts and cells; keys and values include the context
  };

  using Parts = std::array<Part, 4>;  // by slot_of; without a stage if the model has no such part

  static std::size_t slot_of(PartKind part) { return part == PartKind::experts ? 3 : static_cast<std::size_t>(part); }
  static int layers_of(const PartBenchSpec& spec, PartKind part);
  static std::unique_ptr<Stage> make_stage_of(const PartBenchSpec& spec, const StageContents& contents, int first_layer,
                                              bool sliced);
  static Parts make_parts(const PartBenchSpec& spec);
  static Sizes sizes_of(const PartBenchSpec& spec, const Parts& parts);
  static std::int64_t allocated_bytes(const Parts& parts, const Sizes& sizes);
  const Part& part_of(PartKind part) const { return parts_[slot_of(part)]; }
  const Stage& stage_of(const Part& part, const ProfileCell& cell) const;
  void place(const Sizes& sizes);
  void load_tables();
  void load_tokens();
  void load_microbatch(int microbatch, std::int64_t tokens);
  void copy_output_to_input(const Stage& stage, const ProfileCell& cell, Buffers& buffers);
  void time_in_parts(OpKind kind, const ProfileCell& cell, Buffers& buffers, const OpGroups& groups,
                     std::vector<ExpertPartTime>& times);
  // `element`: used on a device only.
  void fill_with_random(std::byte* data, std::int64_t bytes, double scale, Element element);
  void fill_weights(Part& part);
  // Runs an op and returns the nanoseconds of it that were recomputation.
  std::int64_t call(OpKind kind, const Part& part, const ProfileCell& cell, Buffers& buffers, const OpGroups& groups);
  // Returns the arguments of an op, and zeroes what it adds to.
  SliceCall call_of(OpKind kind, const Part& part, const ProfileCell& cell, Buffers& buffers, const OpGroups& groups);
  Element element() const;
  // Records a time, on a device in its stream.
  void mark(std::size_t at);
  std::int64_t between(std::size_t first, std::size_t second);
  void zero(std::byte* data, std::int64_t bytes);

  PartBenchSpec spec_;
  Device* device_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Event>> events_;  // on a device
  std::vector<std::int64_t> marks_;
  std::byte* small_ = nullptr;   // on a device: tokens, targets, a loss and tables
  std::byte* tables_ = nullptr;  // of Stage::fill_tables
  Parts parts_;
  std::byte* memory_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::array<Buffers, kMicrobatches> buffers_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::int64_t calls_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace sluice::exec
