#include "model/blocks/layer_embedding.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

void LayerEmbedding::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  if (kind == OpKind::F) {
    add_linear(out, training, "gate of layer's embedding", s.split, s.hidden, width_);
    out.push_back(memory("gated embedding", 6 * s.split * width_));
    add_linear(out, training, "layer's embedding", s.split, width_, s.hidden);
  } else if (kind == OpKind::I) {
    add_linear_gradient(out, training, "d layer's embedding", s.split, s.hidden, width_);
    out.push_back(memory("d gated embedding", 10 * s.split * width_));
    add_linear_gradient(out, training, "d gate of layer's embedding", s.split, width_, s.hidden);
  } else {
    out.push_back(linear_weight(training, "w layer's embedding", s.split, width_, s.hidden));
    out.push_back(linear_weight(training, "w gate of layer's embedding", s.split, s.hidden, width_));
  }
}

// Its input is the layer's, before the residual addition of its step.
void LayerEmbedding::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const std::int64_t elements = call.rows * width_ / call.split();
  TensorList list(call, out);
  list.add("layer's embedding and its gate", "4 n f / s", to_input_gradient, 4 * elements);
  list.operand("input of the layer's embedding", "p n f / s", to_weight_gradient, elements);
  list.operand("gradient of the layer's embedding", "p n h / s", gradient, call.hidden_elements());
  list.operand("gradient of the embedding's gate", "p n f / s", gradient, elements);
}

}  // namespace sluice::model
