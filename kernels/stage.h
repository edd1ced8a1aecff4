#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_sizes.h"
#include "kernels/collective.h"
#include "kernels/device.h"
#include "kernels/part_log.h"
#include "model/workload/slice_shape.h"
#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::kernels {

// Shapes in this file: h hidden size, n rows (sequences x tokens of a slice; row = sequence * tokens + token), q query
// width, w key/value width, f feed-forward size, V vocabulary size; per tensor-parallel rank where they are split.

// The part of a model that one tensor-parallel rank of a stage computes.
struct StageSpec {
  Transformer model;
  StageContents contents;
  int first_layer = 0;
  int tensor_parallel = 1;
  int tensor_rank = 0;
  // With experts: the data-parallel rank (else 0), and the number of ranks over which the experts of a layer are
  // distributed. Ranks are numbered with tensor ranks innermost; ep consecutive ones form a group (Megatron-LM).
  int data_rank = 0;
  int expert_parallel = 1;
  bool recompute = false;  // full recomputation: store only the inputs of layers
  bool sliced = false;     // later slices read the keys and values, which are therefore stored even with `recompute`
  AttentionChoice attention = AttentionChoice::gemm;  // on devices

  int group_rank() const { return data_rank * tensor_parallel + tensor_rank; }
  int expert_rank() const { return group_rank() % expert_parallel; }
  bool has_rotary() const { return contents.layers > 0 && model.positions == 0; }
  // Whether the head's weight is the embedding of another stage of the same rank: SliceCall::embedding.
  bool head_is_embedding() const { return contents.head && model.tied_embeddings && !contents.tied_copy; }
};

// A block of one parameter that this rank holds: rows x columns of a matrix (vectors have one column), row-major,
// `offset` elements into the stage's weights, and likewise into its gradients and either half of its moments. A rank
// that holds nothing but padding of the vocabulary has a block of no rows.
struct Parameter {
  std::string name;           // "layers.3.attention.query.weight", independent of the parallelism
  std::int64_t all_rows = 0;  // of the whole matrix
  std::int64_t all_columns = 1;
  std::int64_t first_row = 0;  // of the block within it
  std::int64_t first_column = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  std::int64_t offset = 0;
  bool decays = false;  // whether weight decay applies: matrices, not biases and gains
  bool counted = true;  // whether it contributes to the global norm: false for all but one replica (of tensor ranks, or
                        // a tied copy; with experts, of data ranks)
  bool expert = false;  // of a routed expert, whose replicas are those of every expert_parallel-th rank
  std::int64_t size() const { return rows * columns; }
  // Returns the index in the whole matrix of an element of the block.
  std::int64_t index_in_whole(std::int64_t i) const {
    return (first_row + i / columns) * all_columns + first_column + i % columns;
  }
};

// Name of the word embedding, [V, h], and of its tied copy.
inline constexpr const char* kWordEmbedding = "embedding.word.weight";

// Bytes that are allocated for the whole run.
struct StageMemory {
  std::int64_t weights = 0;  // one version
  std::int64_t gradients = 0;
  // Adam's first moments of all weights, then the second; not used by SGD. On a device, float32, after the float32
  // master weights.
  std::int64_t optimizer_state = 0;
  // Bytes of `gradients` before those of routed experts, which end them.
  std::int64_t dense_gradients = 0;
};

// Bytes of one slice by lifetime; compare SliceBytes of model/graph/footprint.h.
struct SliceMemory {
  std::int64_t to_input_gradient = 0;   // from F until B or I ends
  std::int64_t to_weight_gradient = 0;  // from F until B or W ends
  std::int64_t output_gradients = 0;    // from I until W ends; not needed by B
  // All slices of a microbatch share one buffer of keys and values and one of their gradients, with the sizes of a
  // slice that has all tokens. The first lives from the first slice's F until the end of its B or I; 0 with recompute
  // and a single slice. The second lives from the last slice's B or I until the end of the first's; 0 with a single
  // slice.
  std::int64_t keys_values = 0;
  std::int64_t keys_values_gradient = 0;
  std::int64_t boundary = 0;  // input or output of a stage: n h elements
};

// Arguments of one op. The caller owns the buffers; they are aligned to kBufferAlignment and have the sizes that
// Stage::memory, slice_memory and scratch_bytes return. See the ops of Stage for the buffers that each needs.
struct SliceCall {
  SliceShape shape;
  TensorGroup* tensor = nullptr;   // null without tensor parallelism
  ExpertGroup* experts = nullptr;  // null without expert parallelism

  const std::byte* weights = nullptr;       // the weight version of this microbatch
  std::byte* gradients = nullptr;           // accumulated into
  const std::byte* embedding = nullptr;     // where head_is_embedding(): the word embedding [V, h], and
  std::byte* embedding_gradient = nullptr;  // its gradient, accumulated into
  std::byte* scratch = nullptr;             // contents need not be kept between ops

  std::byte* to_input_gradient = nullptr;
  std::byte* to_weight_gradient = nullptr;
  std::byte* output_gradients = nullptr;
  // Of the microbatch, [layers, 2, sequences, sequence_tokens, w], keys before values, each padded to 16 elements;
  // every slice writes its own rows.
  std::byte* keys_values = nullptr;
  std::byte* keys_values_gradient = nullptr;  // zeroed before the last slice's B or I
  std::int64_t sequence_tokens = 0;           // of all slices; used with StageSpec::sliced

  const std::byte* input = nullptr;  // [n, h], output of the previous stage
  std::byte* output = nullptr;       // [n, h], input of the next stage
  const std::byte* output_gradient = nullptr;
  std::byte* input_gradient = nullptr;

  const std::int32_t* tokens = nullptr;   // [n], with an embedding
  const std::int32_t* targets = nullptr;  // [n], with a head
  double loss_scale = 1;                  // gradients are those of loss_scale x the sum of the loss over rows
  double loss = 0;                        // output of F with a head: sum over rows of -ln p(target); equal on all
                                          // tensor ranks
  std::int64_t recompute_ns = 0;          // output of B and I: time spent in recomputation
  PartLog* parts = nullptr;               // unless null, F, B and I record the parts of layers with experts

  // Stages on devices only. All buffers, including tokens and targets, are then device memory, and `loss` and
  // `recompute_ns` are not written.
  Stream* stream = nullptr;
  Device* device = nullptr;
  StreamGroup* stream_group = nullptr;    // instead of `tensor`
  StreamGroup* stream_experts = nullptr;  // instead of `experts`
  // With experts, pinned memory of the host that lives until B or W ends: see Stage::slice_host_bytes.
  std::byte* on_host = nullptr;
  // Returns when all work of a stream is done; null: Device::synchronize. With experts, F calls it in every layer, and
  // so do B and I with recomputation.
  const std::function<void(Stream&)>* wait_for = nullptr;
  float* loss_on_device = nullptr;  // [1], output, instead of `loss`
  // Stage::fill_tables, for at least the positions of this slice; null: computed by every op.
  const std::byte* tables = nullptr;
  // Unless null, F, B and I set it to 1 if any number of `output`, of the loss, or of `input_gradient` is not finite.
  std::int32_t* not_finite = nullptr;
};

inline constexpr std::size_t kBufferAlignment = 64;

// One part of one layer of an op: see Stage::run_part.
struct StagePart {
  PartPass pass = PartPass::forward;
  LayerPart part = LayerPart::attention;
  int layer = 0;  // of the stage, from 0
  friend bool operator==(const StagePart&, const StagePart&) = default;
};

// One optimizer step over all parameters of a stage.
struct OptimizerStep {
  enum class Kind : std::uint8_t { adam, sgd };
  Kind kind = Kind::adam;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;    // decoupled: w -= learning_rate * weight_decay * w (Loshchilov and Hutter 2019, alg. 2)
  double gradient_scale = 1;  // from clipping
  std::int64_t number = 1;    // number of this step, from 1, for Adam's bias correction

  // Stages on devices only: the stream, and a factor [1] in addition to gradient_scale. If the factor is NaN (an
  // overflow of float16), the step is skipped.
  Stream* stream = nullptr;
  const float* scale_on_device = nullptr;
};

// One stage of a model on one tensor-parallel rank: forward, input gradient and weight gradient, and the memory that
// they need. Stores sizes only, neither weights nor state, and its ops do not allocate, so that one Stage can serve
// many microbatches and weight versions, by one thread at a time. Results are a function of the buffers' contents,
// bitwise reproducible on a CPU. On a device (see DeviceKernels) ops return when they are enqueued on
// SliceCall::stream.
class Stage {
 public:
  virtual ~Stage() = default;

  virtual const StageSpec& spec() const = 0;
  virtual int element_bytes() const = 0;
  virtual StageMemory memory() const = 0;
  virtual SliceMemory slice_memory(const SliceShape& shape) const = 0;
  // Devices only: bytes of pinned host memory per slice, SliceCall::on_host. 0 without experts.
  virtual std::int64_t slice_host_bytes() const { return 0; }
  // Returns the scratch size, in bytes, of any op on a slice of this shape.
  virtual std::int64_t scratch_bytes(const SliceShape& shape) const = 0;
  // Returns the parameters in the order of their offsets. They cover the weights except for padding, which stays zero.
  virtual std::span<const Parameter> parameters() const = 0;

  // Writes the initial weights. Each element is a function of `seed`, the parameter's name and the element's position
  // in the whole matrix, so that weights do not depend on the parallelism. Matrices are normal with standard deviation
  // 0.02, or 0.02 / sqrt(2 layers) for projections into the residual stream (GPT-2); gains are 1, biases 0.
  // A stage of a device writes float32 weights, in memory of the host.
  virtual void initialise(std::byte* weights, std::uint64_t seed) const = 0;
  // Devices only: the same in memory of the device, but for padding.
  virtual void draw_weights(std::byte* float_weights, std::uint64_t seed, Stream& stream) const;

  // F. Needs weights, scratch, to_*, keys_values, input or tokens, output or targets; sets the loss if there is a head.
  // Throws InputError for a slice that ends after the last learned position.
  virtual void forward(SliceCall& call) const = 0;
  // I. Also needs gradients, output_gradients, keys_values_gradient, output_gradient unless there is a head, and
  // input_gradient unless there is an embedding. Accumulates the gradients of norms, the embedding and biases.
  virtual void input_gradient(SliceCall& call) const = 0;
  // W. Needs gradients, scratch, to_weight_gradient, output_gradients. Accumulates the gradients of weight matrices.
  virtual void weight_gradient(SliceCall& call) const = 0;
  // B: I and W in one call; output_gradients may be null. Gradients are bitwise equal to those of I and W.
  virtual void backward(SliceCall& call) const = 0;

  // F, and B or I, in parts, so that those of two microbatches can interleave (joint blocks): begin_parts, then the
  // parts of all layers, then end_parts. Results are bitwise equal to those of forward, backward and input_gradient.
  // The op is B if call.output_gradients is null, else I. Without recomputation.
  //
  // Parts of F: by layer, ascending, attention, dispatch, experts and combine. Parts of B and I: by layer, descending,
  // combine, experts, dispatch and attention of the input gradient. B has two more per layer, before the next layer:
  // the weight gradients of experts and of attention, after the input gradient of the same part. In a dense layer,
  // attention is the whole layer, and the other parts do nothing. Dispatch and combine only copy rows and exchange them
  // over call.experts: another thread, or another stream of a device, may run them, concurrently with all parts that do
  // not need their result: those of the other op, and weight gradients. call.scratch is used from begin_parts to
  // end_parts.
  virtual void begin_parts(SliceCall& call, bool forward) const = 0;
  virtual void run_part(const SliceCall& call, const StagePart& part) const = 0;
  virtual void end_parts(SliceCall& call, bool forward) const = 0;

  // Returns the sum of squares of the gradients of `counted` parameters.
  virtual double squared_norm(const std::byte* gradients) const = 0;
  // The same on a device: adds the sum to *squares.
  virtual void add_squared_norm(const std::byte* gradients, float* squares, Stream& stream) const;
  // Devices only: size of the tables of the first `positions` positions, in bytes, and their contents: cosines and
  // sines of rotary embeddings. They depend on the model alone, so that all stages of a worker share one copy.
  virtual std::int64_t table_bytes(std::int64_t positions) const;
  virtual void fill_tables(std::byte* tables, std::int64_t positions, Stream& stream) const;
  // Devices only: writes float32 weights, from `draw_weights` or a checkpoint, to the master weights and the 16-bit
  // weights.
  virtual void set_weights(const std::byte* float_weights, std::byte* weights, std::byte* optimizer_state,
                           Stream& stream) const;
  // `new_weights` may equal `weights`. The optimizer state is updated in place.
  virtual void step(const std::byte* weights, std::byte* new_weights, std::byte* optimizer_state,
                    const std::byte* gradients, const OptimizerStep& step) const = 0;
};

// Precision of weights and activations: float32 and float64 on the CPU, the others on devices.
enum class Precision : std::uint8_t { float32, float64, float16, bfloat16 };
constexpr const char* to_string(Precision precision) {
  constexpr std::array kNames = {"float32", "float64", "float16", "bfloat16"};
  return kNames[static_cast<std::size_t>(precision)];
}

// Creates a stage on the CPU, which multiplies matrices with OpenBLAS if the build has it, else with Eigen.
// Throws InputError for a model that the kernels do not support (latent attention, query and key norms, biases of
// experts), or sizes that are not multiples of tensor_parallel or expert_parallel.
std::unique_ptr<Stage> make_cpu_stage(const StageSpec& spec, Precision precision);

}  // namespace sluice::kernels
