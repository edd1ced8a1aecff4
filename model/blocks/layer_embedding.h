#pragma once

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

// A token's embedding of this layer, of a few elements, gated by the hidden state and projected to it (Gemma 4's small
// models). Its projections are whole on every tensor rank, which computes its own shard of the tokens.
class LayerEmbedding : public Block {
 public:
  LayerEmbedding(int hidden, int width, bool dropout) : Block(hidden, dropout), width_(width) {}

  std::string_view kind() const override { return "layer_embedding"; }
  bool mixes() const override { return false; }
  BlockParameters parameters(const Shards& /*shards*/) const override {
    return {.all = active_matrix_elements(), .linear = active_matrix_elements()};
  }
  std::int64_t active_matrix_elements() const override { return std::int64_t{2} * hidden() * width_; }
  std::int64_t matrices_of_each_shape(const Training& /*training*/) const override { return active_matrix_elements(); }
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override { return 3.0 * width_; }
  int elements() const { return width_; }

 private:
  int width_;
};

}  // namespace sluice::model
