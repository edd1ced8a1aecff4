#pragma once

#include <boost/container/static_vector.hpp>
#include <cstdint>
#include <string_view>

#include "model/workload/training.h"

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
  std::string_view formula;  // of the elements or bytes, in the names of `tensor_symbols`
  TensorLife life;
  std::int64_t bytes;
  RecomputeModules recomputed_by;  // the modules whose recomputation replaces storing it
};

// Without allocation: a plan asks for the tensors of millions of slices.
using LayerTensors = boost::container::static_vector<LayerTensor, 64>;

// The symbols of the formulas, for help texts.
std::string_view tensor_symbols();

// One slice on one device.
struct TensorCall {
  const Training& training;
  int hidden = 0;
  std::int64_t tokens = 0;  // of a sequence
  std::int64_t rows = 0;    // of all sequences
  std::int64_t context = 0;
  bool sliced = false;

  std::int64_t sequences() const { return rows / tokens; }
  // Ranks over which norms and dropout are split.
  std::int64_t split() const { return training.sequence_parallel ? training.tp : 1; }
  // Elements of the hidden states of this rank, and of the inputs of column-parallel layers.
  std::int64_t hidden_elements() const { return (rows * hidden + split() - 1) / split(); }
  std::int64_t gathered_elements() const { return training.gathered_inputs ? rows * hidden : hidden_elements(); }
  const char* gathered_formula() const { return training.gathered_inputs ? "p n h" : "p n h / s"; }
  // Bytes of an input of an MLP's activation.
  std::int64_t stored_bytes() const { return training.narrow_activation_inputs ? 1 : 2; }
};

// Every tensor but a layer's input is also replaced by full recomputation.
inline constexpr RecomputeModules kNeverRecomputed = {};
inline constexpr RecomputeModules kByLayer = RecomputeModules(RecomputeModule::layer);
constexpr RecomputeModules recomputed_by(RecomputeModule module) { return kByLayer | module; }
constexpr RecomputeModules recomputed_by(RecomputeModule one, RecomputeModule other) { return kByLayer | one | other; }

// Adds the tensors of a block to a list, those without bytes left out.
class TensorList {
 public:
  TensorList(const TensorCall& call, LayerTensors& out) : call_(call), out_(out) {}

  void add(std::string_view name, std::string_view formula, TensorLife life, std::int64_t bytes,
           RecomputeModules by = kByLayer) {
    if (bytes > 0) out_.push_back({name, formula, life, bytes, by});
  }
  // An operand of a GEMM in the training's precision.
  void operand(std::string_view name, std::string_view formula, TensorLife life, std::int64_t elements,
               RecomputeModules by = kByLayer) {
    add(name, formula, life, operand_bytes(call_.training.precision, elements), by);
  }

 private:
  const TensorCall& call_;
  LayerTensors& out_;
};

// Adds what a layer of multi-token prediction stores before its layer: the inputs of both norms and the dropout mask of
// the embedding, the inputs of the projection, and for W the gradient of its output. Recomputation starts from both
// inputs.
void add_projection_tensors(const TensorCall& call, bool dropout, LayerTensors& out);

}  // namespace sluice::model
