#include "model/blocks/scan.h"

#include <fmt/format.h>

#include <array>

#include "model/errors.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

namespace {

// FLOP/s of one multiprocessor. Measured forwards of 2 * 10^10 FLOPs and more: mamba-ssm's mamba_chunk_scan_combined
// on B200 (median of 83 shapes 0.535, half within 0.51 and 0.57); fla's chunk_gated_delta_rule with 64 sequences x
// heads or more (medians 0.59 on H100, 0.74, 0.64 and 0.68 on B200, GB200 and B300), and its chunk_kda on B200 (0.39).
// Tensor cores that are twice as fast do not help these Triton kernels.
constexpr double kDecayRate = 0.535e12;
constexpr double kDeltaRate = 0.66e12;
constexpr double kChannelDeltaRate = 0.39e12;
// causal_conv1d on H100 to B300: a multiply-add per tap and element; it is slower than memory there.
constexpr double kConvolutionRate = 43e9;
// Time of I over that of F: mamba_chunk_scan_combined on H200 took 3.4 to 4.0 times as long (mean of six shapes 3.72;
// see benchmarks/results/2026-11-27-nvidia-h200). fla's rules recompute their forward likewise, but were not measured.
constexpr double kBackward = 3.7;
// Convolutions as long as one forward in I: the result before the activation again, and two gradients.
constexpr int kConvolutionsInBackward = 3;

}  // namespace

std::string_view Scan::kind() const {
  static constexpr std::array<std::string_view, 5> kNames = {"mamba2", "lightning_attention", "gated_delta_net",
                                                             "kimi_delta_attention", "short_convolution"};
  return kNames[static_cast<std::size_t>(options_.rule)];
}

std::int64_t Scan::convolved() const {
  switch (options_.rule) {
    case Rule::mamba2: return inner() + 2 * keys();
    case Rule::lightning: return 0;
    case Rule::gated_delta:
    case Rule::kimi_delta: return inner() + 2 * keys();
    case Rule::convolution: return inner();
  }
  return 0;
}

std::int64_t Scan::scalars() const {
  switch (options_.rule) {
    case Rule::mamba2: return options_.heads;
    case Rule::lightning:
    case Rule::convolution: return 0;
    case Rule::gated_delta: return std::int64_t{2} * options_.heads;
    case Rule::kimi_delta: return options_.heads;
  }
  return 0;
}

std::int64_t Scan::low_rank() const {
  if (options_.rule != Rule::kimi_delta) return 0;
  return std::int64_t{options_.full_gate ? 1 : 2} * options_.head_dim;
}

// Queries, keys and values, the gate of the output, and the scalars; Kimi's gates come from low_rank. Of a convolution
// its input and two gates.
std::int64_t Scan::projected() const {
  if (!scans()) return 3 * inner();
  const std::int64_t gate = options_.rule == Rule::kimi_delta && !options_.full_gate ? 0 : inner();
  return inner() + 2 * keys() + gate + scalars();
}

std::int64_t Scan::matrix_elements(int tp) const {
  const std::int64_t h = hidden();
  return h * (projected() / tp) + (inner() / tp) * h + low_rank() * (h + inner() / tp);
}

BlockParameters Scan::parameters(const Shards& shards) const {
  const int tp = shards.tp;
  const std::int64_t inner_here = inner() / tp;
  const std::int64_t heads = options_.heads / tp;
  const std::int64_t taps = options_.convolution * (convolved() / tp);
  BlockParameters out;
  out.linear = matrix_elements(tp);
  out.all = out.linear + taps;
  switch (options_.rule) {
    // Biases of the convolution; A, D and the steps' bias; the norm.
    case Rule::mamba2: out.all += convolved() / tp + 3 * heads + (options_.norm ? inner_here : 0); break;
    case Rule::lightning: out.all += inner_here; break;
    case Rule::gated_delta: out.all += 2 * heads + options_.head_dim; break;
    case Rule::kimi_delta: out.all += heads + inner_here + options_.head_dim; break;
    case Rule::convolution: break;
  }
  return out;
}

double Scan::core_model_flops(std::int64_t tokens) const {
  const auto n = static_cast<double>(tokens);
  if (options_.rule == Rule::mamba2) return 7 * n * 2 * hidden() * options_.state;
  if (delta()) return 8 * n * options_.heads * options_.head_dim * options_.head_dim;
  return n * flops_per_token();
}

double Scan::flops_per_token() const {
  const double heads = options_.heads;
  const double p = options_.head_dim;
  const double n = options_.state;
  const double c = options_.chunk;
  if (delta()) return heads * (6 * n * p + 2 * c * (3 * n + 2 * p) + 2 * c * c / 3);
  return heads * (4 * n * p + 2 * c * p) + 2 * c * options_.groups * n;
}

double Scan::rate() const {
  if (options_.rule == Rule::kimi_delta) return kChannelDeltaRate;
  return delta() ? kDeltaRate : kDecayRate;
}

KernelCall Scan::convolution(std::string_view name, int times, int tensors, double elements) const {
  const double flops = times * 2 * options_.convolution * elements;
  return rated_by_multiprocessor(name, flops, kConvolutionRate, 2 * tensors * elements);
}

double Scan::core_flops(std::int64_t tokens, std::int64_t /*context*/) const {
  return static_cast<double>(tokens) * flops_per_token();
}

// Megatron-LM exchanges tokens for heads before the convolution, and back after the norm.
void Scan::add_exchange(std::string_view name, const BlockCall& call, double elements, Kernels& out) const {
  if (call.training.cp == 1) return;
  out.push_back({.name = name, .kind = KernelClass::context_all_to_all, .bytes = 2 * elements});
  out.push_back(memory("copies for heads", 8 * elements, 2));
}

void Scan::add_forward(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const int tp = training.tp;
  const double in = static_cast<double>(projected()) / tp;
  const double x = static_cast<double>(inner()) / tp;
  const double z = static_cast<double>(convolved()) / tp;
  const double low = static_cast<double>(low_rank());
  const double flops = s.rows * flops_per_token() / tp;
  add_linear(out, training, "scan in", s.rows, s.hidden, in, Source::gathered);
  if (low > 0) {
    add_linear(out, training, "gates down", s.rows, s.hidden, low, Source::norm);
    add_linear(out, training, "gates up", s.rows, options_.head_dim, low / options_.head_dim * x);
  }
  add_exchange("heads of scan", call, s.rows * in, out);
  if (z > 0) out.push_back(convolution("convolution", 1, 2, s.rows * z));
  out.push_back(scans() ? rated_by_multiprocessor("scan", flops, rate(), 2 * s.rows * (in + x))
                        : memory("gate of the input", 6 * s.rows * x));
  out.push_back(memory(scans() ? "gated norm" : "gate of the output", 6 * s.rows * x));
  add_exchange("tokens of scan", call, s.rows * x, out);
  add_linear(out, training, "scan out", s.rows, x, s.hidden);
  add_tensor_collectives(out, training, s, "all-reduce 1", {.m = s.rows, .n = in, .k = s.hidden},
                         {.m = s.rows, .n = s.hidden, .k = x});
}

void Scan::add_input_gradient(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const int tp = training.tp;
  const double in = static_cast<double>(projected()) / tp;
  const double x = static_cast<double>(inner()) / tp;
  const double z = static_cast<double>(convolved()) / tp;
  const double low = static_cast<double>(low_rank());
  const double flops = kBackward * s.rows * flops_per_token() / tp;
  add_linear_gradient(out, training, "d scan out", s.rows, s.hidden, x, Source::gathered);
  add_exchange("tokens of d scan", call, s.rows * x, out);
  out.push_back(memory(scans() ? "d gated norm" : "d gate of the output", 10 * s.rows * x, 2));
  out.push_back(scans() ? rated_by_multiprocessor("d scan", flops, rate(), 4 * s.rows * (in + x))
                        : memory("d gate of the input", 10 * s.rows * x, 2));
  if (z > 0) out.push_back(convolution("d convolution", kConvolutionsInBackward, 3, s.rows * z));
  add_exchange("heads of d scan", call, s.rows * in, out);
  if (low > 0) {
    add_linear_gradient(out, training, "d gates up", s.rows, low / options_.head_dim * x, options_.head_dim);
    add_linear_gradient(out, training, "d gates down", s.rows, low, s.hidden);
  }
  add_linear_gradient(out, training, "d scan in", s.rows, in, s.hidden);
  add_tensor_collectives(out, training, s, "all-reduce of d scan in",
                         {.m = s.rows, .n = x, .k = s.hidden, .pass = GemmPass::input_gradient},
                         {.m = s.rows, .n = s.hidden, .k = in, .pass = GemmPass::input_gradient});
}

void Scan::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  if (kind == OpKind::F) return add_forward(call, out);
  if (kind == OpKind::I) return add_input_gradient(call, out);
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const double x = static_cast<double>(inner()) / training.tp;
  const double low = static_cast<double>(low_rank());
  out.push_back(linear_weight(training, "w scan out", s.rows, x, s.hidden));
  if (low > 0) {
    out.push_back(linear_weight(training, "w gates up", s.rows, options_.head_dim, low / options_.head_dim * x));
    out.push_back(linear_weight(training, "w gates down", s.rows, s.hidden, low));
  }
  out.push_back(linear_weight(training, "w scan in", s.rows, s.hidden, static_cast<double>(projected()) / training.tp));
}

// The states at the ends of chunks are computed again in the backward.
void Scan::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const int tp = call.training.tp;
  const std::int64_t in = call.rows * projected() / tp;
  const std::int64_t x = call.rows * inner() / tp;
  const std::int64_t z = call.rows * convolved() / tp;
  TensorList list(call, out);
  list.operand("input of the scan's projections", call.gathered_formula(), to_weight_gradient, call.gathered_elements(),
               recomputed_by(RecomputeModule::norm));
  list.add("results of the scan's projections", "2 n (x + z) / t", to_input_gradient, 2 * in);
  list.add("results of the convolution", "2 n z / t", to_input_gradient, 2 * z);
  list.add("decays and write strengths", "4 n H / t", to_input_gradient, 4 * call.rows * scalars() / tp);
  if (low_rank() > 0) {
    list.operand("inputs of the gates of low rank", "p n d", to_weight_gradient, call.rows * low_rank());
    list.add("gates", "2 n x / t", to_input_gradient, 2 * low_rank() / options_.head_dim * x);
  }
  if (delta()) {
    list.add("inverses of the chunks", "2 n H q / t", to_input_gradient,
             2 * call.rows * options_.heads * options_.chunk / tp);
  }
  if (call.sliced) {
    list.add("states handed to the slice", "4 x N / t", to_input_gradient,
             4 * call.sequences() * inner() * options_.state / tp);
  }
  list.add("input of the gated norm", "2 n x / t", to_input_gradient, 2 * x);
  list.operand("input of the scan's last projection", "p n x / t", to_weight_gradient, x);
  list.operand("gradient of the scan's last projection", "p n h / s", gradient, call.hidden_elements());
  list.operand("gradients of the scan's projections", "p n (x + z) / t", gradient, in + call.rows * low_rank());
}

double Scan::width() const {
  return static_cast<double>(2 * projected() + 2 * convolved() + 4 * inner() + 3 * low_rank()) +
         1.0 * options_.heads * options_.chunk;
}

void Scan::check(const std::string& model, const Training& training) const {
  const auto divided = [&](int count, const char* what) {
    if (count % training.tp == 0) return;
    throw InputError(
        fmt::format("/parallelism/tp: {}: {} of {} ({}) must be a multiple of the tensor-parallel size "
                    "({})",
                    model, what, kind(), count, training.tp));
  };
  divided(options_.heads, "heads");
  divided(options_.groups, "groups");
  if (training.cp > 1 && (options_.heads % (training.tp * training.cp) != 0)) {
    throw InputError(fmt::format("/parallelism/cp: {}: heads of {} ({}) must be a multiple of tp {} x cp {}", model,
                                 kind(), options_.heads, training.tp, training.cp));
  }
}

}  // namespace sluice::model
