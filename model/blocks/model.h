// Public header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/workload/transformer.h"

namespace sluice::model {

class Block;
struct Encoder;
struct Layer;
struct LayerList;
struct LayerStyle;

// The index of a kind of layer in a model.
struct KindIndex {
  int value = 0;
  // NOLINTBEGIN(google-explicit-constructor): both are indices.
  constexpr KindIndex(int index) : value(index) {}
  constexpr KindIndex(LayerKind kind) : value(static_cast<int>(kind)) {}
  // NOLINTEND(google-explicit-constructor)
};

// A model as a list of layers. Layers of the same kind have the same blocks; their order is a pattern of kinds. It
// determines parameters, FLOPs, kernels and memory.
struct Model {
  // A transformer with one kind of attention and one or two kinds of layers: index 0 is its dense layer, 1 that with
  // experts, as in LayerKind, whether its pattern has them or not.
  // NOLINTNEXTLINE(google-explicit-constructor): a transformer is a model.
  Model(const Transformer& transformer);
  Model() = default;

  std::string name;
  int layers = 0;
  int hidden = 0;
  std::int64_t vocab = 0;
  int positions = 0;            // learned position embeddings; 0: rotary or none
  bool tied_embeddings = true;  // the head is the word embedding
  bool rms_norm = false;        // norms have a gain and no bias
  bool dropout = false;
  int max_positions = 0;     // maximum sequence length of the model; 0: unknown
  int streams = 1;           // of the residual: see LayerStyle
  int mtp_layers = 0;        // of multi-token prediction, with one layer of the kind `mtp_kind` each: see Transformer
  int added_parameters = 0;  // per layer: see LayerStyle
  std::int64_t other_parameters = 0;  // after the last layer: of the streams' last combination

  int mtp_kind = 0;
  std::string left_out;                    // what its file has besides this language model: "its vision encoder"
  std::shared_ptr<const Encoder> vision;   // the encoder of images that its file has, if one like it is modeled
  std::shared_ptr<const Encoder> encoder;  // the same with images (set_images), or null
  // Elements per token and layer of embeddings of every layer (LayerEmbedding), or 0. They are looked up, and added to
  // a projection of the word embedding, before the first layer, and all go from stage to stage with the hidden states.
  int layer_embedding = 0;

  int tensor_units = 0;  // of which tensor-parallel sizes are divisors: attention heads
  // Of the layers with the most experts; count 0: there are none.
  Experts experts;
  // The same model, where it is a transformer as Megatron-LM, torchtitan and our own kernels have it; else null.
  std::shared_ptr<const Transformer> flat;

  bool has_experts() const { return experts.count > 0; }
  const std::vector<Layer>& kinds() const;
  const Layer& kind(KindIndex index) const;
  const std::vector<std::uint8_t>& pattern() const;
  LayerStyle style() const;
  // Elements per token of what a stage sends to the next one.
  std::int64_t boundary_width() const {
    return std::int64_t{hidden} * streams + std::int64_t{layer_embedding} * layers;
  }
  // Whether a layer of the pattern or of multi-token prediction has a block of which it is true.
  bool any_block(const std::function<bool(const Block&)>& holds) const;
  bool uses(int kind) const;
  // Throws InputError that names the first block which `what` does not run, unless the model is `flat`.
  const Transformer& transformer(std::string_view what) const;

  // Number of layers with experts among `count` from `first` on.
  int expert_layers(int first, int count) const;
  // Number of layers of each kind among `count` from `first` on, in the order of `kinds`. O(count).
  std::vector<int> kinds_of(int first, int count) const;
  // The first layer from which on `count` layers have the same kinds as those from `first` on: so that equal stages are
  // equal.
  int alike(int first, int count) const;
  // The first layer from which on `count` layers have the kinds of those from `first` on, in any order.
  int alike_in_any_order(int first, int count) const;

  // Sets the layers, and `experts` from them. Throws InputError "NAME: ..." if there are none, more than kMostKinds
  // kinds or 10^14 parameters.
  void set_layers(LayerList list);
  void set_name(const std::string& text);
  void set_mtp_layers(int count);

 private:
  std::shared_ptr<const LayerList> list_;  // copies of a model share it
};

inline constexpr std::size_t kMostKinds = 16;

// All parameters without multi-token prediction; a tied embedding counts once. Narayanan et al. 2021 (SC'21) eq. 2
// omits the final norm.
std::int64_t parameters(const Model& model);
// The same with only the experts of one token.
std::int64_t active_parameters(const Model& model);
// Parameters of one layer of a kind: matrices, biases and norms. GPT: 12 h^2 + 13 h.
std::int64_t layer_parameters(const Model& model, KindIndex kind = 0);
// Parameters of the word embedding, learned positions and the embeddings of all layers, with their projection.
std::int64_t embedding_parameters(const Model& model);
// Those of the embeddings of all layers, of tables of `words` rows: e (l (words + h) + 1) for e elements.
std::int64_t layer_embedding_parameters(const Model& model, std::int64_t words);
// Parameters after the last layer: the final norm, and the head where it is not the word embedding.
std::int64_t head_parameters(const Model& model);
// Parameters of one layer of multi-token prediction: three norms (two inputs, and its output before the head), the
// projection 2 h^2, and the layer.
std::int64_t mtp_layer_parameters(const Model& model);

// Model FLOPs of the forward of one sequence of `tokens`; a multiply-add counts as two and attention as the full
// square, as in the TFLOP/s and MFU of papers; experts count for the tokens routed to them. GPT layer: 24 s h^2 + 4 s^2
// h; head: 2 s h V (SC'21, appendix).
double layer_model_flops(const Model& model, std::int64_t tokens, KindIndex kind = 0);
double head_model_flops(const Model& model, std::int64_t tokens);
// Of one layer of multi-token prediction: the layer and the projection, 4 s h^2.
double mtp_layer_model_flops(const Model& model, std::int64_t tokens);
// Of an iteration over `sequences`: the forward and a backward of twice the FLOPs; `full_recompute` adds another
// forward of the layers. Layers of multi-token prediction count, each with another pass of the head. With it, for GPT:
// 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) (SC'21, eq. 3).
double iteration_model_flops(const Model& model, std::int64_t tokens, std::int64_t sequences, bool full_recompute);

// Executed FLOPs of one layer on one slice of one sequence: `tokens` after a prefix of `context` tokens, with causal
// attention. The FLOPs of all slices of a sequence add up exactly to those of the whole.
struct SliceFlops {
  double matrices = 0;   // of GEMMs with weights: 2 n (active matrix elements)
  double attention = 0;  // of scores and attention over values: 2 a (d + d of values) n (c + n/2); of a scan

  double forward() const { return matrices + attention; }
  double input_gradient() const { return matrices + 2 * attention; }
  double weight_gradient() const { return matrices; }
  double backward() const { return input_gradient() + weight_gradient(); }
  SliceFlops& operator+=(const SliceFlops& other) {
    matrices += other.matrices;
    attention += other.attention;
    return *this;
  }
};
SliceFlops layer_slice_flops(const Model& model, std::int64_t tokens, std::int64_t context, KindIndex kind = 0);
// Of all layers.
SliceFlops slice_flops(const Model& model, std::int64_t tokens, std::int64_t context);

}  // namespace sluice::model
