#pragma once

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

// A feed-forward block of width f: two matrices, or three where a gate multiplies the activation.
class Mlp : public Block {
 public:
  struct Options {
    int width = 0;
    bool gated = false;
    bool bias = false;
    bool dropout = false;
  };
  Mlp(int hidden, const Options& options) : Block(hidden, options.dropout), options_(options) {}

  std::string_view kind() const override { return "mlp"; }
  bool mixes() const override { return false; }
  const Options& options() const { return options_; }
  BlockParameters parameters(const Shards& shards) const override;
  std::int64_t active_matrix_elements() const override { return elements(options_.width); }
  std::int64_t matrices_of_each_shape(const Training& training) const override {
    return elements(options_.width) / training.tp;
  }
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override { return static_cast<double>(inputs()) * options_.width; }
  void check(const std::string& model, const Training& training) const override;

 private:
  int inputs() const { return options_.gated ? 2 : 1; }
  std::int64_t elements(std::int64_t width) const { return (inputs() + 1) * width * hidden(); }

  Options options_;
};

}  // namespace sluice::model
