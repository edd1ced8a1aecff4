#include "model/blocks/layer.h"

#include <algorithm>
#include <array>

#include "model/blocks/adapters.h"
#include "model/blocks/experts.h"
#include "model/blocks/kernel_parts.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

namespace {

constexpr std::size_t kNamedSteps = 4;
using StepNames = std::array<std::string_view, kNamedSteps>;
constexpr StepNames kNorm = {"norm 1", "norm 2", "norm 3", "norm 4"};
constexpr StepNames kResidual = {"dropout, residual 1", "dropout, residual 2", "dropout, residual 3",
                                 "dropout, residual 4"};
constexpr StepNames kDropoutGradient = {"d dropout 1", "d dropout 2", "d dropout 3", "d dropout 4"};
constexpr StepNames kNormGradient = {"d norm 1", "d norm 2", "d norm 3", "d norm 4"};
constexpr StepNames kResidualGradient = {"d residual 1", "d residual 2", "d residual 3", "d residual 4"};
constexpr StepNames kInput = {"layer input", "input of norm 2", "input of norm 3", "input of norm 4"};

std::string_view name_of(const StepNames& names, std::size_t step) { return names[std::min(step, kNamedSteps - 1)]; }

template <typename Result>
Result sum_over(const Layer& layer, const auto& of) {
  Result sum = 0;
  for (const LayerStep& step : layer.steps) {
    for (const BlockPtr& block : step.blocks) sum += of(*block);
  }
  return sum;
}

// Hyper-connections: a small GEMM gives the weights with which the streams are read, mixed and written.
std::int64_t mixing_parameters(const LayerStyle& style) {
  if (style.streams == 1) return 0;
  const std::int64_t n = style.streams;
  return (2 * n + n * n) * (n * style.hidden + 1) + 3;
}

void add_mixing(const LayerStyle& style, OpKind kind, const Sizes& s, Kernels& out) {
  if (style.streams == 1) return;
  const double n = style.streams;
  const double weights = 2 * n + n * n;
  if (kind == OpKind::F) {
    out.push_back(gemm("weights of streams", s.split, n * s.hidden, weights));
    out.push_back(memory("streams", 4 * n * s.split * s.hidden, 2));
  } else if (kind == OpKind::I) {
    out.push_back(memory("d streams", 8 * n * s.split * s.hidden, 2));
    out.push_back(gemm("d weights of streams", s.split, weights, n * s.hidden, GemmPass::input_gradient));
  } else {
    out.push_back(weight_gemm("w weights of streams", s.split, n * s.hidden, weights, 4));
  }
}

void add_forward(const Layer& layer, const LayerStyle& style, const BlockCall& call, Kernels& out) {
  const Sizes& s = call.sizes;
  const auto add_norm = [&](std::string_view name) {
    out.push_back(memory(name, 4 * s.split * s.hidden));
    out.back().recomputed_by = RecomputeModule::norm;
  };
  for (std::size_t i = 0; i < layer.steps.size(); ++i) {
    const LayerStep& step = layer.steps[i];
    add_mixing(style, OpKind::F, s, out);
    for (int norm = 0; norm < step.pre_norms; ++norm) add_norm(name_of(kNorm, i));
    for (const BlockPtr& block : step.blocks) block->add_kernels(OpKind::F, call, out);
    for (int norm = 0; norm < step.post_norms; ++norm) {
      out.push_back(memory("norm of the result", 4 * s.split * s.hidden));
    }
    if (!step.residual) continue;
    const double beside = 2.0 * static_cast<double>(step.blocks.size() - 1);  // results that are added
    out.push_back(memory(name_of(kResidual, i), (6 + s.mask + beside) * s.split * s.hidden));
  }
}

void add_input_gradient(const Layer& layer, const LayerStyle& style, const BlockCall& call, Kernels& out) {
  const Sizes& s = call.sizes;
  for (std::size_t i = layer.steps.size(); i-- > 0;) {
    const LayerStep& step = layer.steps[i];
    if (step.residual) out.push_back(memory(name_of(kDropoutGradient, i), (4 + s.mask) * s.split * s.hidden));
    for (int norm = 0; norm < step.post_norms; ++norm) {
      out.push_back(memory("d norm of the result", 6 * s.split * s.hidden, 2));
    }
    for (std::size_t block = step.blocks.size(); block-- > 0;) step.blocks[block]->add_kernels(OpKind::I, call, out);
    for (int norm = 0; norm < step.pre_norms; ++norm) {
      out.push_back(memory(name_of(kNormGradient, i), 6 * s.split * s.hidden, 2));
    }
    if (!step.residual) continue;
    const double beside = 2.0 * static_cast<double>(step.blocks.size() - 1);
    out.push_back(memory(name_of(kResidualGradient, i), (6 + beside) * s.split * s.hidden));
    add_mixing(style, OpKind::I, s, out);
  }
}

}  // namespace

bool Layer::has_experts() const {
  return std::any_of(steps.begin(), steps.end(), [](const LayerStep& step) {
    return std::any_of(step.blocks.begin(), step.blocks.end(),
                       [](const BlockPtr& block) { return dynamic_cast<const ExpertsBlock*>(block.get()) != nullptr; });
  });
}

BlockParameters layer_parameters(const Layer& layer, const LayerStyle& style, const Shards& shards) {
  BlockParameters out;
  out.all = style.added_parameters;
  for (const LayerStep& step : layer.steps) {
    out.all += (step.pre_norms + step.post_norms) * style.norm_parameters() + mixing_parameters(style);
    for (const BlockPtr& block : step.blocks) out += block->parameters(shards);
  }
  return out;
}

namespace {

Kernels own_kernels(const Layer& layer, const LayerStyle& style, const Training& training, OpKind kind,
                    const SliceShape& slice) {
  const BlockCall call{.training = training,
                       .slice = slice,
                       .sizes = kernel_parts::sizes_of(style.hidden, style.dropout, training, slice)};
  Kernels out;
  if (kind == OpKind::F) {
    add_forward(layer, style, call, out);
    return out;
  }
  if (kind != OpKind::W) add_input_gradient(layer, style, call, out);
  if (kind == OpKind::I) return out;
  for (std::size_t i = layer.steps.size(); i-- > 0;) {
    const LayerStep& step = layer.steps[i];
    for (std::size_t block = step.blocks.size(); block-- > 0;) step.blocks[block]->add_kernels(OpKind::W, call, out);
    add_mixing(style, OpKind::W, call.sizes, out);
  }
  return out;
}

}  // namespace

Kernels layer_kernels(const Layer& layer, const LayerStyle& style, const Training& training, OpKind kind,
                      const SliceShape& slice) {
  Kernels out = own_kernels(layer, style, training, kind, slice);
  return training.lora_rank > 0 ? with_adapters(out, training) : out;
}

LayerTensors layer_tensors(const Layer& layer, const LayerStyle& style, const TensorCall& call) {
  LayerTensors out;
  TensorList list(call, out);
  for (std::size_t i = 0; i < layer.steps.size(); ++i) {
    if (i > 0 && !layer.steps[i].residual) continue;
    list.add(name_of(kInput, i), "2 n h / s", to_input_gradient,
             std::int64_t{2} * style.streams * call.hidden_elements(), i == 0 ? kNeverRecomputed : kByLayer);
  }
  for (const LayerStep& step : layer.steps) {
    for (const BlockPtr& block : step.blocks) block->add_tensors(call, out);
    list.add("inputs of the norms of the result", "2 n h / s", to_input_gradient,
             std::int64_t{2} * step.post_norms * call.hidden_elements());
  }
  if (style.dropout) {
    list.add("dropout masks", "2 n h / s", to_input_gradient,
             static_cast<std::int64_t>(layer.steps.size()) * call.hidden_elements());
  }
  return out;
}

std::int64_t active_matrix_elements(const Layer& layer) {
  return sum_over<std::int64_t>(layer, [](const Block& block) { return block.active_matrix_elements(); });
}

std::int64_t idle_parameters(const Layer& layer) {
  return sum_over<std::int64_t>(layer, [](const Block& block) { return block.idle_parameters(); });
}

double core_model_flops(const Layer& layer, std::int64_t tokens) {
  return sum_over<double>(layer, [&](const Block& block) { return block.core_model_flops(tokens); });
}

double core_flops(const Layer& layer, std::int64_t tokens, std::int64_t context) {
  return sum_over<double>(layer, [&](const Block& block) { return block.core_flops(tokens, context); });
}

}  // namespace sluice::model
