#pragma once

#include <boost/container/static_vector.hpp>
#include <cstdint>
#include <string_view>

#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::model {

// When a tensor that a layer's forward pass stores is freed, or one of its backward pass is needed.
enum class TensorLife : std::uint8_t {
  to_input_gradient,   // from F to the end of I or B
  to_weight_gradient,  // from F to the end of W or B
  gradient,            // from I to the end of W; in a B only while its layer runs
  keys_values,         // from F to the end of I or B; attention of later slices reads it
  scores,              // as to_input_gradient; exists during F even where it is not stored
};

// A tensor of one layer and one slice on one device.
struct LayerTensor {
  std::string_view name;
  std::string_view formula;  // of the elements or bytes, in the names of `explain_symbols`
  TensorLife life;
  std::int64_t bytes;
  RecomputeModules recomputed_by;  // the modules whose recomputation replaces storing it
};

// Without allocation: a plan asks for the tensors of millions of slices.
using LayerTensors = boost::container::static_vector<LayerTensor, 48>;

// The symbols of the formulas, for help texts.
std::string_view tensor_symbols();

// Returns the tensors of a layer for `rows` tokens, 16-bit unless stated, without scores. Experts have the rows of the
// busiest rank: rows x per_token x Training::most_expert_rows, of which the ranks of a tensor group have 1/tp each. A
// layer of GELU experts also stores the activation's output before it is multiplied with the router's probabilities,
// which fused SwiGLU kernels compute again.
LayerTensors layer_tensors(const Transformer& model, const Training& training, LayerKind kind, std::int64_t rows);
// Adds what a layer of multi-token prediction stores before its transformer layer: the inputs of both norms and the
// dropout mask of the embedding, the inputs of the projection, and for W the gradient of its output. Recomputation
// starts from both inputs.
void add_projection_tensors(const Transformer& model, const Training& training, std::int64_t rows, LayerTensors& out);
// The scores of attention that is not fused: softmax, mask and the output of dropout of `tokens` queries.
LayerTensor score_tensor(const Transformer& model, const Training& training, std::int64_t sequences,
                         std::int64_t tokens, std::int64_t context);

}  // namespace sluice::model
