#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/collective.h"
#include "kernels/device.h"
#include "model/workload/slice_shape.h"
#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::kernels {

// Letters of this file: h hidden, n rows (sequences x tokens of a slice; row = sequence * tokens + token), q query
// width, w key/value width, f feed-forward size, V vocabulary; all of one tensor-parallel rank where they are split.

// What a stage computes, and which part of it one tensor-parallel rank does.
struct StageSpec {
  Transformer model;
  StageContents contents;
  int first_layer = 0;
  int tensor_parallel = 1;
  int tensor_rank = 0;
  bool recompute = false;  // keep the layers' inputs alone, and make the rest again in the backward pass
  bool sliced = false;     // later slices read the keys and values, so that they stay even where all else is recomputed

  // The head's weight is the embedding of another stage of the same rank: SliceCall::embedding.
  bool head_is_embedding() const { return contents.head && model.tied_embeddings && !contents.tied_copy; }
};

// A block of one parameter that this rank holds: rows x columns of a matrix (vectors have one column), row-major,
// `offset` elements into the stage's weights, and likewise into its gradients and either half of its moments. A rank
// that holds nothing but padding of the vocabulary has a block of no rows.
struct Parameter {
  std::string name;           // "layers.3.attention.query.weight": the same however the model is cut
  std::int64_t all_rows = 0;  // of the whole matrix
  std::int64_t all_columns = 1;
  std::int64_t first_row = 0;  // of the block within it
  std::int64_t first_column = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  std::int64_t offset = 0;
  bool decays = false;  // weight decay: matrices, not biases and gains
  bool counted = true;  // in the global norm: false for what another rank counts (replicated over tensor ranks, or a
                        // tied copy)
  std::int64_t size() const { return rows * columns; }
};

// The name of the word embedding, [V, h]; of a tied copy, too.
inline constexpr const char* kWordEmbedding = "embedding.word.weight";

// Bytes for the whole run.
struct StageMemory {
  std::int64_t weights = 0;  // one version
  std::int64_t gradients = 0;
  // Of the optimizer: Adam's first of all weights, then its second; not used by SGD. On a device the master weights
  // come before them; all are float32.
  std::int64_t moments = 0;
};

// Bytes of one slice, by how long they live; as SliceBytes of model/graph/footprint.h.
struct SliceMemory {
  std::int64_t to_input_gradient = 0;   // from F until B or I ends
  std::int64_t to_weight_gradient = 0;  // from F until B or W ends
  std::int64_t output_gradients = 0;    // from I until W ends; not needed by B
  // From F until B or I ends; read by F and B or I of later slices. None with recompute in one slice.
  std::int64_t keys_values = 0;
  // From the last slice's B or I until the first's ends, for every slice. None in one slice.
  std::int64_t keys_values_gradient = 0;
  std::int64_t boundary = 0;  // input or output of a stage: n h elements
};

// What one op works on. Buffers are the caller's, aligned to kBufferAlignment, of the sizes that the stage's memory
// plan says. Which an op needs, and which may be null, is said with the ops.
struct SliceCall {
  SliceShape shape;
  TensorGroup* tensor = nullptr;  // null where the stage is not split

  const std::byte* weights = nullptr;       // the version that the microbatch computes with
  std::byte* gradients = nullptr;           // accumulated into
  const std::byte* embedding = nullptr;     // where head_is_embedding(): the word embedding [V, h], and
  std::byte* embedding_gradient = nullptr;  // its gradient, accumulated into
  std::byte* scratch = nullptr;             // contents mean nothing between ops

  std::byte* to_input_gradient = nullptr;
  std::byte* to_weight_gradient = nullptr;
  std::byte* output_gradients = nullptr;
  // Of slices 0 to this one, and how many tokens each has.
  std::span<std::byte* const> keys_values;
  std::span<std::byte* const> keys_values_gradient;  // zeroed before the last slice's B or I
  std::span<const std::int64_t> slice_tokens;

  const std::byte* input = nullptr;  // [n, h] of the stage before
  std::byte* output = nullptr;       // [n, h] for the stage behind
  const std::byte* output_gradient = nullptr;
  std::byte* input_gradient = nullptr;

  const std::int32_t* tokens = nullptr;   // [n], with an embedding
  const std::int32_t* targets = nullptr;  // [n], with a head
  double loss_scale = 1;                  // the loss whose gradient is taken is loss_scale x the sum over rows
  double loss = 0;                        // out, of F with a head: the sum over rows of -ln p(target); same on all
                                          // tensor ranks
  std::int64_t recompute_ns = 0;          // out, of B and I: how much of their time made activations again

  // Of a stage on a device: what the op is put on. All buffers, tokens and targets too, are then the device's, and
  // `loss` and `recompute_ns` stay as they are.
  Stream* stream = nullptr;
  Device* device = nullptr;
  StreamGroup* stream_group = nullptr;  // in the place of `tensor`
  float* loss_on_device = nullptr;      // [1], out, in the place of `loss`
};

inline constexpr std::size_t kBufferAlignment = 64;

// A step of the optimizer over all of a stage's parameters.
struct OptimizerStep {
  enum class Kind : std::uint8_t { adam, sgd };
  Kind kind = Kind::adam;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;    // decoupled: w -= learning_rate * weight_decay * w (Loshchilov and Hutter 2019, alg. 2)
  double gradient_scale = 1;  // from clipping
  std::int64_t number = 1;    // of this step, from 1: for Adam's bias corrections

  // Of a stage on a device: what the step is put on, and [1], multiplied with gradient_scale; where that is not a
  // number the step changes nothing (an overflow of float16).
  Stream* stream = nullptr;
  const float* scale_on_device = nullptr;
};

// One stage of a model on one tensor-parallel rank: the three calls of the IR, and its memory plan. Holds sizes, no
// weights and no state, and allocates nothing in its ops: one Stage may serve many microbatches and weight versions, by
// one thread at a time. Results depend on what the buffers hold alone, on a CPU to the last bit. On a device (see
// DeviceKernels) ops return when they stand in SliceCall::stream.
class Stage {
 public:
  virtual ~Stage() = default;

  virtual const StageSpec& spec() const = 0;
  virtual int element_bytes() const = 0;
  virtual StageMemory memory() const = 0;
  virtual SliceMemory slice_memory(const SliceShape& shape) const = 0;
  // Scratch that any op on a slice of this shape needs.
  virtual std::int64_t scratch_bytes(const SliceShape& shape) const = 0;
  // In the order of their offsets; they cover the weights but for padding, which is zero and stays so.
  virtual std::span<const Parameter> parameters() const = 0;

  // Writes the initial weights: each element follows from `seed`, its parameter's name and its place in the whole
  // matrix, so that every cut of a model begins the same. Matrices are normal with standard deviation 0.02, those into
  // the residual 0.02 / sqrt(2 layers) (GPT-2); gains 1, biases 0.
  virtual void initialise(std::byte* weights, std::uint64_t seed) const = 0;

  // F. Needs: weights, scratch, to_*, keys_values, input or tokens, output or targets; with a head sets loss.
  // Throws InputError for a slice that ends behind the learned positions.
  virtual void forward(SliceCall& call) const = 0;
  // I. Needs besides: gradients, output_gradients, keys_values_gradient, output_gradient unless there is a head,
  // input_gradient unless there is an embedding. Adds the gradients of biases, norms and the embedding.
  virtual void input_gradient(SliceCall& call) const = 0;
  // W. Needs gradients, scratch, to_weight_gradient, output_gradients: adds those of the weight matrices.
  virtual void weight_gradient(SliceCall& call) const = 0;
  // B: both at once; output_gradients may be null. The bits of the gradients are those of I and W.
  virtual void backward(SliceCall& call) const = 0;

  // Sum of squares of the gradients that this rank counts.
  virtual double squared_norm(const std::byte* gradients) const = 0;
  // The same on a device: adds it to *squares.
  virtual void add_squared_norm(const std::byte* gradients, float* squares, Stream& stream) const;
  // On a device, where `initialise` and checkpoints have float32 weights on the host: puts those (copied to the device)
  // into master weights and 16-bit weights.
  virtual void set_weights(const std::byte* float_weights, std::byte* weights, std::byte* moments,
                           Stream& stream) const;
  // new_weights may be weights. Moments are updated in place.
  virtual void step(const std::byte* weights, std::byte* new_weights, std::byte* moments, const std::byte* gradients,
                    const OptimizerStep& step) const = 0;
};

// Of weights and activations: the first two on the CPU, the others on devices.
enum class Precision : std::uint8_t { float32, float64, float16, bfloat16 };
constexpr const char* to_string(Precision precision) {
  constexpr std::array kNames = {"float32", "float64", "float16", "bfloat16"};
  return kNames[static_cast<std::size_t>(precision)];
}

// A stage on the CPU, with the products of the BLAS that the project was built with, else Eigen's.
// Throws InputError for a model that it cannot compute (experts, latent attention, query and key norms), or sizes that
// do not divide by tensor_parallel.
std::unique_ptr<Stage> make_cpu_stage(const StageSpec& spec, Precision precision);

}  // namespace sluice::kernels
