#include "model/blocks/mlp.h"

#include <fmt/format.h>

#include "model/errors.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

BlockParameters Mlp::parameters(const Shards& shards) const {
  const std::int64_t width = options_.width / shards.tp;
  const std::int64_t biases = options_.bias ? inputs() * width + hidden() : 0;
  return {.all = elements(width) + biases, .linear = elements(options_.width) / shards.tp};
}

void Mlp::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const double f = static_cast<double>(options_.width) / training.tp;
  const double in = inputs() * f;
  const std::size_t first = out.size();
  if (kind == OpKind::F) {
    add_linear(out, training, "MLP in", s.rows, s.hidden, in, Source::gathered);
    out.push_back(memory("activation", 2 * s.rows * (in + f)));
    add_linear(out, training, "MLP out", s.rows, f, s.hidden);
    add_tensor_collectives(out, training, s, "all-reduce 2", {.m = s.rows, .n = in, .k = s.hidden},
                           {.m = s.rows, .n = s.hidden, .k = f});
    repeat_with(RecomputeModule::mlp, out, first);
  } else if (kind == OpKind::I) {
    add_linear_gradient(out, training, "d MLP out", s.rows, s.hidden, f, Source::gathered);
    out.push_back(memory("d activation", 2 * s.rows * (f + 2 * in)));
    add_linear_gradient(out, training, "d MLP in", s.rows, in, s.hidden);
    add_tensor_collectives(out, training, s, "all-reduce of d MLP in",
                           {.m = s.rows, .n = f, .k = s.hidden, .pass = GemmPass::input_gradient},
                           {.m = s.rows, .n = s.hidden, .k = in, .pass = GemmPass::input_gradient});
    if (options_.bias) out.push_back(memory("d MLP biases", 2 * (s.rows * in + s.split * s.hidden), 2));
  } else {
    out.push_back(linear_weight(training, "w MLP out", s.rows, f, s.hidden));
    out.push_back(linear_weight(training, "w MLP in", s.rows, s.hidden, in));
  }
  for (std::size_t i = first; i < out.size(); ++i) out[i].module = GraphModule::mlp;
}

void Mlp::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const std::int64_t width = call.rows * options_.width / call.training.tp;
  const RecomputeModules mlp = recomputed_by(RecomputeModule::mlp);
  TensorList list(call, out);
  list.operand("input of the MLP", call.gathered_formula(), to_weight_gradient, call.gathered_elements(),
               recomputed_by(RecomputeModule::norm));
  list.add("inputs of the activation", "2 n i f / t, or 1 in 8 bits", to_input_gradient,
           call.stored_bytes() * inputs() * width, mlp);
  if (options_.gated && !call.training.fused_activation) {
    list.add("output of the gate's activation", "2 n f / t", to_input_gradient, 2 * width, mlp);
  }
  list.operand("output of the activation", "p n f / t", to_weight_gradient, width, mlp);
  list.operand("gradient of the MLP's output", "p n h / s", gradient, call.hidden_elements());
  list.operand("gradient of the activation's inputs", "p n i f / t", gradient, inputs() * width);
}

void Mlp::check(const std::string& model, const Training& training) const {
  if (options_.width % training.tp == 0) return;
  throw InputError(
      fmt::format("/parallelism/tp: {}: the feed-forward size ({}) must be a multiple of the "
                  "tensor-parallel size ({})",
                  model, options_.width, training.tp));
}

}  // namespace sluice::model
