#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/blocks/block.h"

namespace sluice::model {

// One addition to the residual stream: a block, or several side by side on the same normed input.
struct LayerStep {
  std::vector<BlockPtr> blocks;
  int pre_norms = 1;     // of the input: one for all blocks, or one each (GPT-NeoX)
  int post_norms = 0;    // of the result, or of each block's and of their sum (Gemma 4)
  bool residual = true;  // false: the block has its own norms and additions (Block::whole_step)
};

// A layer: steps one after another, usually a mixer of tokens and an MLP.
struct Layer {
  std::string name;  // of its kind, for reports: "layer", "MoE layer", "mamba2 layer"
  std::vector<LayerStep> steps;

  bool has_experts() const;
};

// The kinds of layers that a model has, and the kind of each layer.
struct LayerList {
  std::vector<Layer> kinds;
  std::vector<std::uint8_t> pattern;
  std::vector<int> experts_before;  // number of layers with experts before each, and of all: set by Model::set_layers
};

// What a layer has besides its blocks.
struct LayerStyle {
  int hidden = 0;
  bool rms_norm = false;  // norms have a gain and no bias
  bool dropout = false;
  int added_parameters = 0;  // per layer, of attention over the residual streams of earlier layers (Kimi K3)
  int streams = 1;  // of the residual (hyper-connections): each step mixes them, and reads and writes one combination

  std::int64_t norm_parameters() const { return std::int64_t{hidden} * (rms_norm ? 1 : 2); }
};

// Adds the steps' norms and residual additions to the blocks': parameters, kernels and tensors of the layer.
BlockParameters layer_parameters(const Layer& layer, const LayerStyle& style, const Shards& shards);
Kernels layer_kernels(const Layer& layer, const LayerStyle& style, const Training& training, OpKind kind,
                      const SliceShape& slice);
LayerTensors layer_tensors(const Layer& layer, const LayerStyle& style, const TensorCall& call);

// Sums over the blocks.
std::int64_t active_matrix_elements(const Layer& layer);
std::int64_t idle_parameters(const Layer& layer);
double core_model_flops(const Layer& layer, std::int64_t tokens);
double core_flops(const Layer& layer, std::int64_t tokens, std::int64_t context);

}  // namespace sluice::model
