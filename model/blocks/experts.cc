#include "model/blocks/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/blocks/expert_routing.h"
#include "model/errors.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

namespace {

using Options = ExpertsBlock::Options;

// Elements and rows on one device.
struct ExpertSizes {
  double own;        // tokens that this rank routes
  double sent;       // copies of them that are sent, with padding
  double most;       // copies that the busiest rank receives
  double come;       // copies that this rank's experts process: also those of the ranks that have their other parts
  double delivered;  // of them, before they are copied to several experts of this rank
  double scores;     // of the router
  double mine;       // experts on this rank
  double width;      // of an expert on this device
  double width_in;
  double shared;  // width of the shared expert on this device
  double shared_in;
  double channels;  // elements of a token for its experts
};

// Mark the kernels from `first` on.
void mark(Kernels& out, std::size_t first, LayerPart part) {
  for (std::size_t i = first; i < out.size(); ++i) out[i].part = part;
}
void mark(Kernels& out, std::size_t first, GraphModule module) {
  for (std::size_t i = first; i < out.size(); ++i) out[i].module = module;
}

// The copies of tokens, or their sum, of a rank: apart from dispatch and combine.
KernelCall copies(std::string_view name, double bytes) {
  KernelCall call = memory(name, bytes);
  call.module = GraphModule::moe_preprocess;
  return call;
}

// Whether tokens are copied before they are sent and results are added after they arrive: DeepEP and HybridEP do so
// while they send.
bool copies_apart(const Training& training) {
  return training.ep == 1 || training.token_dispatcher == Training::TokenDispatcher::all_to_all;
}

ExpertSizes sizes_of(const Options& block, const BlockCall& call) {
  const Training& training = call.training;
  const Experts& experts = block.experts;
  const int inputs = block.gated ? 2 : 1;
  ExpertSizes e{};
  e.own = call.sizes.rows / training.tp;
  e.sent = e.own * experts.per_token * training.mean_expert_rows();
  e.most = e.own * experts.per_token * training.most_expert_rows(experts);
  e.come = e.most * training.etp;
  e.delivered = copies_apart(training) ? e.come : e.come * expected_parts(experts, training.ep) / experts.per_token;
  e.scores = e.own * block.routes();
  e.mine = static_cast<double>(experts.count) / training.ep;
  e.width = static_cast<double>(experts.ffn_hidden) / training.etp;
  e.width_in = inputs * e.width;
  e.shared = static_cast<double>(experts.shared_ffn_hidden) / training.tp;
  e.shared_in = inputs * e.shared;
  e.channels = block.latent > 0 ? block.latent : call.sizes.hidden;
  return e;
}

// A GEMM per expert, as one kernel or one by one.
KernelCall grouped(const Training& training, std::string_view name, const ExpertSizes& e, GemmShape shape) {
  shape.batch = e.mine;
  shape.fused = training.fused_grouped_mlp;
  shape.apart = !shape.fused;
  KernelCall call = narrow_product(training, name, shape);
  if (shape.apart) call.group = static_cast<int>(e.mine);
  return call;
}

// The rows of every expert: [come / mine, k] x [k, n].
KernelCall grouped_rows(const Training& training, std::string_view name, const ExpertSizes& e, double k, double n,
                        GemmPass pass = GemmPass::forward) {
  return grouped(training, name, e, {.m = e.come / e.mine, .n = n, .k = k, .pass = pass});
}

KernelCall grouped_weight(const Training& training, std::string_view name, const ExpertSizes& e, double k, double n) {
  return grouped(training, name, e,
                 {.m = k,
                  .n = n,
                  .k = e.come / e.mine,
                  .result_bytes = 2.0 * training.gradient_bytes,
                  .pass = GemmPass::weight_gradient});
}

// Casts of the rows of every expert, in one kernel or one by one.
void add_grouped_cast(Kernels& out, const Training& training, std::string_view name, const Cast& cast,
                      const ExpertSizes& e, double elements) {
  if (cast.kernels == 0) return;
  add_cast(out, name, cast, elements);
  if (!training.fused_grouped_mlp) out.back().group = static_cast<int>(e.mine);
}

// The biases of experts. The one into an expert is added by its GEMM, and its gradient, column sums, is a kernel of its
// own. The one out of it is scaled by the weight of each row. A fused kernel adds it, and its gradient reads the output
// gradient once. Otherwise PyTorch adds it in 32 bits, expert by expert: the product of bias and weights, the sum with
// the rows, then all experts' rows joined and narrowed (Megatron-LM's TEGroupedMLP._apply_bias).
void add_expert_biases(Kernels& out, const Options& block, const Training& training, const ExpertSizes& e) {
  if (!block.bias || training.fused_grouped_mlp) return;
  const double elements = e.come * e.channels;
  out.push_back(memory("biases of experts", (4 + 10) * elements, 2 * static_cast<int>(e.mine)));
  out.push_back(memory("joined results", (8 + 6) * elements, 2));
}
// Its gradient: widened and split, then expert by expert narrowed for the rows, and summed over columns for the weights
// and over rows for the bias, each after a product.
void add_expert_bias_gradients(Kernels& out, const Options& block, const Training& training, const ExpertSizes& e) {
  if (!block.bias) return;
  const double elements = e.come * e.channels;
  const int experts = static_cast<int>(e.mine);
  if (training.fused_grouped_mlp) {
    out.push_back(memory("d biases of experts", 2 * elements));
    return;
  }
  out.push_back(memory("d joined results", (6 + 4) * elements, 2));
  out.push_back(memory("d biases of experts", (6 + 12 + 12) * elements, 5 * experts));
  out.push_back(memory("d biases into experts", 2 * e.come * e.width_in, experts));
}

// Bytes per element of what a fused kernel writes already cast, in all layouts that are kept.
double cast_bytes(const Training& training) {
  const PrecisionTraits& traits = traits_of(training.precision, training.any_layout);
  return traits.bits == 16 ? 2 : traits.layouts * traits.bytes;
}

// Copies of the rows of every expert to or from a buffer in which each has as many as narrow GEMMs need (Megatron-LM's
// fp8_padding and fp8_unpadding); HybridEP pads them as it orders them.
void add_padding(Kernels& out, const Training& training, const ExpertSizes& e, std::string_view name) {
  if (!traits_of(training.precision).narrow() || training.pads_experts || training.fused_grouped_mlp) return;
  if (training.token_dispatcher == Training::TokenDispatcher::hybridep) return;
  out.push_back(memory(name, 4 * e.come * e.channels));
}

// The ranks with the parts of the same experts gather all their rows, or add their results of them.
void exchange_parts(Kernels& out, const Training& training, const ExpertSizes& e, std::string_view name) {
  if (training.etp == 1) return;
  out.push_back({.name = name, .kind = KernelClass::expert_all_gather, .bytes = 2 * e.delivered * e.channels});
}

// Orders what has arrived by expert, or back. DeepEP and HybridEP deliver one copy of a token per rank; HybridEP's call
// includes the ordering (dispatch_with_permute, combine_with_unpermute), which is then in its part.
void add_ordering(Kernels& out, const Training& training, const ExpertSizes& e, LayerPart part, std::string_view name) {
  out.push_back(memory(name, 2 * (e.delivered + e.come) * e.channels));
  out.back().part = training.token_dispatcher == Training::TokenDispatcher::hybridep ? part : LayerPart::experts;
}

// The all-to-all of copies with this number of bytes per element.
void exchange_copies(Kernels& out, const Training& training, const ExpertSizes& e, std::string_view name,
                     double element_bytes, bool combines) {
  if (training.ep == 1) return;
  out.push_back({.name = name,
                 .kind = KernelClass::expert_all_to_all,
                 .bytes = element_bytes * e.most * e.channels,
                 .tokens = e.own * e.most / e.sent,
                 .combines = combines});
}

// Dispatches copies of tokens to their experts, in order, as the communication part `part`; `names` of the three
// kernels.
void dispatch(Kernels& out, const Training& training, const ExpertSizes& e, LayerPart part, std::string_view copied,
              std::string_view sent, std::string_view ordered) {
  if (copies_apart(training)) out.push_back(copies(copied, 2 * (e.own + e.sent) * e.channels));
  if (training.expert_ranks() == 1) return;  // the copies are already in order
  const std::size_t first = out.size();
  constexpr double kNarrow = 1 + 4.0 / 128;
  exchange_copies(out, training, e, sent, training.fp8_dispatch ? kNarrow : 2, false);
  exchange_parts(out, training, e, "all-gather of copies");
  mark(out, first, part);
  add_ordering(out, training, e, part, ordered);
}

// The reverse of `dispatch`; the copies of a token are added.
void combine(Kernels& out, const Training& training, const ExpertSizes& e, LayerPart part, std::string_view ordered,
             std::string_view sent, std::string_view summed) {
  if (training.expert_ranks() > 1) add_ordering(out, training, e, part, ordered);
  const std::size_t first = out.size();
  exchange_parts(out, training, e, "reduce-scatter of results");
  exchange_copies(out, training, e, sent, 2, true);
  mark(out, first, part);
  if (copies_apart(training)) out.push_back(copies(summed, 2 * (e.own + e.sent) * e.channels));
}

void add_shared(const Options& block, const BlockCall& call, const ExpertSizes& e, Kernels& out) {
  if (e.shared == 0) return;
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const std::size_t first = out.size();
  add_linear(out, training, "shared expert in", s.rows, s.hidden, e.shared_in);
  out.push_back(memory("activation of shared expert", 2 * s.rows * (e.shared_in + e.shared)));
  repeat_with(RecomputeModule::shared_experts, out, out.size() - 2);
  add_linear(out, training, "shared expert out", s.rows, e.shared, s.hidden);
  repeat_with(RecomputeModule::shared_experts, out, out.size() - 1);
  if (training.tp > 1) out.push_back(layer_reduce("all-reduce of shared expert", training, s));
  if (block.experts.shared_gate) out.push_back(memory("gate of shared expert", 6 * s.split * s.hidden, 2));
  mark(out, first, LayerPart::experts);
  mark(out, first, GraphModule::moe_router);
  out.push_back(memory("sum with shared expert", 6 * s.split * s.hidden));
}

void add_shared_gradient(const Options& block, const BlockCall& call, const ExpertSizes& e, Kernels& out) {
  if (e.shared == 0) return;
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const std::size_t first = out.size();
  if (block.experts.shared_gate) out.push_back(memory("d gate of shared expert", 10 * s.split * s.hidden, 3));
  add_linear_gradient(out, training, "d shared expert out", s.rows, s.hidden, e.shared);
  out.push_back(memory("d activation of shared expert", 2 * s.rows * (e.shared + 2 * e.shared_in)));
  add_linear_gradient(out, training, "d shared expert in", s.rows, e.shared_in, s.hidden);
  if (training.tp > 1) out.push_back(layer_reduce("all-reduce of d shared expert", training, s));
  mark(out, first, LayerPart::experts);
  mark(out, first, GraphModule::moe_router);
  out.push_back(memory("sum with d shared expert", 6 * s.split * s.hidden));
}

void add_forward(const Options& block, const BlockCall& call, const ExpertSizes& e, Kernels& out) {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const PrecisionTraits& traits = traits_of(training.precision, training.any_layout);
  std::size_t first = out.size();
  out.push_back(gemm("router", e.own, s.hidden, block.routes()));
  // 32-bit softmax, top-k, its map, and the sums for load balancing, each over all scores.
  out.push_back(memory("top-k", 32 * e.scores, 6));
  mark(out, first, GraphModule::moe_router);
  if (block.latent > 0) add_linear(out, training, "down for experts", e.own, s.hidden, block.latent);
  dispatch(out, training, e, LayerPart::dispatch, "copies for experts", "dispatch", "copies in order");
  first = out.size();
  add_padding(out, training, e, "padded copies");
  add_grouped_cast(out, training, "cast of input", traits.input, e, e.come * e.channels);
  out.push_back(grouped_rows(training, "experts in", e, e.channels, e.width_in));
  if (training.fused_grouped_mlp) {
    out.back().bytes += cast_bytes(training) * e.come * e.width;
  } else {
    // PyTorch clamps either half and joins them (Megatron-LM's weighted_bias_quick_geglu_impl).
    const std::size_t activation = out.size();
    if (block.experts.clamp > 0) out.push_back(memory("clamp of experts", (4 + 4) * e.come * e.width_in, 3));
    out.push_back(memory("activation of experts", 2 * e.come * (e.width_in + e.width)));
    repeat_with(RecomputeModule::activation, out, activation);
    add_grouped_cast(out, training, "cast of input", traits.input, e, e.come * e.width);
  }
  out.push_back(grouped_rows(training, "experts out", e, e.width, e.channels));
  add_expert_biases(out, block, training, e);
  add_padding(out, training, e, "results without padding");
  mark(out, first, LayerPart::experts);
  combine(out, training, e, LayerPart::combine, "results in order", "combine", "sum of experts");
  if (block.latent > 0) add_linear(out, training, "up from experts", e.own, block.latent, s.hidden);
  add_shared(block, call, e, out);
}

void add_input_gradient(const Options& block, const BlockCall& call, const ExpertSizes& e, Kernels& out) {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const PrecisionTraits& traits = traits_of(training.precision, training.any_layout);
  add_shared_gradient(block, call, e, out);
  if (block.latent > 0) add_linear_gradient(out, training, "d up from experts", e.own, s.hidden, block.latent);
  dispatch(out, training, e, LayerPart::combine, "d sum of experts", "d combine", "d results in order");
  std::size_t first = out.size();
  add_padding(out, training, e, "d results without padding");
  add_expert_bias_gradients(out, block, training, e);
  add_grouped_cast(out, training, "cast of output gradient", traits.gradient, e, e.come * e.channels);
  out.push_back(grouped_rows(training, "d experts out", e, e.channels, e.width, GemmPass::input_gradient));
  if (training.fused_grouped_mlp) {
    // Instead of the gradient of the activation, that of its inputs is written, which are read.
    out.back().bytes += e.come * ((2 + cast_bytes(training)) * e.width_in - 2 * e.width);
  } else {
    out.push_back(memory("d activation of experts", 2 * e.come * (e.width + 2 * e.width_in)));
    if (block.experts.clamp > 0) out.push_back(memory("d clamp of experts", (6 + 4) * e.come * e.width_in, 3));
    add_grouped_cast(out, training, "cast of output gradient", traits.gradient, e, e.come * e.width_in);
  }
  out.push_back(grouped_rows(training, "d experts in", e, e.width_in, e.channels, GemmPass::input_gradient));
  add_padding(out, training, e, "d padded copies");
  mark(out, first, LayerPart::experts);
  combine(out, training, e, LayerPart::dispatch, "d copies in order", "d dispatch", "d copies for experts");
  if (block.latent > 0) add_linear_gradient(out, training, "d down for experts", e.own, block.latent, s.hidden);
  first = out.size();
  out.push_back(memory("d top-k", 24 * e.scores, 4));
  out.push_back(gemm("d router", e.own, block.routes(), s.hidden, GemmPass::input_gradient));
  out.push_back(memory("sum with d router", 6 * e.own * s.hidden));
  mark(out, first, GraphModule::moe_router);
}

void add_weight_gradient(const Options& block, const BlockCall& call, const ExpertSizes& e, Kernels& out) {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const std::size_t start = out.size();
  out.push_back(grouped_weight(training, "w experts out", e, e.width, e.channels));
  out.push_back(grouped_weight(training, "w experts in", e, e.channels, e.width_in));
  if (block.latent > 0) {
    out.push_back(linear_weight(training, "w up from experts", e.own, block.latent, s.hidden));
    out.push_back(linear_weight(training, "w down for experts", e.own, s.hidden, block.latent));
  }
  const std::size_t first = out.size();
  if (e.shared > 0) {
    out.push_back(linear_weight(training, "w shared expert out", s.rows, e.shared, s.hidden));
    out.push_back(linear_weight(training, "w shared expert in", s.rows, s.hidden, e.shared_in));
  }
  mark(out, start, LayerPart::experts);
  out.push_back(weight_gemm("w router", e.own, s.hidden, block.routes(), training.gradient_bytes));
  mark(out, first, GraphModule::moe_router);
}

}  // namespace

std::int64_t ExpertsBlock::expert_parameters() const {
  const std::int64_t width = options_.experts.ffn_hidden;
  return elements(width, channels()) + (options_.bias ? inputs() * width + channels() : 0);
}

BlockParameters ExpertsBlock::parameters(const Shards& shards) const {
  const Experts& experts = options_.experts;
  const std::int64_t shared = experts.shared_ffn_hidden / shards.tp;
  BlockParameters out;
  out.routed = experts.count * expert_parameters() / shards.expert_ranks;
  out.all = out.routed + std::int64_t{options_.routes()} * hidden() + elements(shared, hidden()) + latent_elements();
  if (experts.shared_gate) out.all += hidden();
  if (options_.router_bias) out.all += options_.routes();
  if (options_.router_scale) out.all += hidden();
  if (options_.latent_norm) out.all += options_.latent;
  out.linear = elements(experts.shared_ffn_hidden, hidden()) / shards.tp +
               experts.count * elements(experts.ffn_hidden, channels()) / shards.expert_ranks + latent_elements();
  return out;
}

std::int64_t ExpertsBlock::active_matrix_elements() const {
  const Experts& experts = options_.experts;
  return std::int64_t{options_.routes()} * hidden() + experts.per_token * elements(experts.ffn_hidden, channels()) +
         elements(experts.shared_ffn_hidden, hidden()) + latent_elements();
}

std::int64_t ExpertsBlock::idle_parameters() const {
  return (options_.experts.count - options_.experts.per_token) * expert_parameters();
}

std::int64_t ExpertsBlock::matrices_of_each_shape(const Training& training) const {
  const Experts& experts = options_.experts;
  return elements(experts.ffn_hidden, channels()) / training.etp +
         elements(experts.shared_ffn_hidden, hidden()) / training.tp + latent_elements();
}

void ExpertsBlock::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  const ExpertSizes e = sizes_of(options_, call);
  const std::size_t first = out.size();
  if (kind == OpKind::F) {
    add_forward(options_, call, e, out);
    repeat_with(RecomputeModule::experts, out, first);
  } else if (kind == OpKind::I) {
    add_input_gradient(options_, call, e, out);
  } else {
    add_weight_gradient(options_, call, e, out);
  }
  for (std::size_t i = first; i < out.size(); ++i) {
    if (out[i].module == GraphModule::attention) out[i].module = GraphModule::moe;
  }
}

void ExpertsBlock::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const Experts& experts = options_.experts;
  const Training& training = call.training;
  const std::int64_t own = (call.rows + training.tp - 1) / training.tp;
  // Of the busiest rank; the choices of tokens number far less than 2^53.
  const auto most = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(own * experts.per_token) * training.most_expert_rows(experts)));
  const std::int64_t come = most * training.etp;  // gathered from the ranks that have parts of the same experts
  const std::int64_t width = most * experts.ffn_hidden;
  const std::int64_t shared = call.rows * experts.shared_ffn_hidden / training.tp;
  const RecomputeModules moe = recomputed_by(RecomputeModule::experts);
  const RecomputeModules activation = recomputed_by(RecomputeModule::experts, RecomputeModule::activation);
  const RecomputeModules shared_too = moe | RecomputeModule::shared_experts;
  TensorList list(call, out);
  list.operand("input of router and experts", "p n h / s", to_weight_gradient, call.hidden_elements(),
               recomputed_by(RecomputeModule::norm));
  // For each expert: logit, 32-bit score and probability, a byte that says whether, and two 32-bit places of the
  // token in the permuted rows.
  constexpr int kRouterBytes = 2 + 4 + 4 + 1 + 2 * 4;
  list.add("router", "19 n e / t", to_input_gradient, kRouterBytes * own * options_.routes(), moe);
  list.operand("inputs of the experts", "p n k h u / t", to_weight_gradient, come * channels(), moe);
  if (options_.latent > 0) {
    list.operand("input of the projection from the experts", "p n w / t", to_weight_gradient, own * options_.latent,
                 moe);
  }
  const bool clamped = experts.clamp > 0 && !training.fused_grouped_mlp;
  if (clamped) {
    list.add("inputs of the experts' clamp", "2 n k i fe / t", to_input_gradient, std::int64_t{2} * inputs() * width,
             moe);
  }
  list.add("inputs of the experts' activation", "2 n k i fe / t, or 1 in 8 bits", to_input_gradient,
           call.stored_bytes() * inputs() * width, clamped ? activation : moe);
  // Before it is multiplied with the gate or with the router's probabilities.
  if (!options_.gated || !training.fused_activation) {
    list.add("output of the experts' activation", "2 n k fe / t", to_input_gradient, 2 * width, activation);
  }
  list.operand("inputs of the experts' last matrices", "p n k fe / t", to_weight_gradient, width, activation);
  list.add("inputs of the shared expert's activation", "2 n i fs / t, or 1 in 8 bits", to_input_gradient,
           call.stored_bytes() * inputs() * shared, shared_too);
  list.operand("output of the shared expert's activation", "p n fs / t", to_weight_gradient, shared, shared_too);
  list.operand("gradient of the layer's output", "p n h / s", gradient, call.hidden_elements());
  list.operand("gradients of the experts' outputs", "p n k h u / t", gradient, come * channels());
  list.operand("gradients of the activations' inputs", "p n i (k fe + fs) / t", gradient, inputs() * (width + shared));
  list.add("gradient of the router", "2 n e / t", gradient, 2 * own * options_.routes());
}

double ExpertsBlock::width() const {
  const Experts& experts = options_.experts;
  return experts.per_token * (channels() + (inputs() + 1.0) * experts.ffn_hidden) +
         inputs() * (1.0 * experts.shared_ffn_hidden) + options_.routes() + options_.latent;
}

void ExpertsBlock::check(const std::string& model, const Training& training) const {
  const Experts& experts = options_.experts;
  if (experts.count % training.ep != 0) {
    throw InputError(
        fmt::format("/parallelism/ep: {}: experts ({}) must be a multiple of the expert-parallel size ({})", model,
                    experts.count, training.ep));
  }
  if (experts.ffn_hidden % training.etp != 0) {
    throw InputError(
        fmt::format("/parallelism/etp: {}: the feed-forward size of an expert ({}) must be a multiple of "
                    "the expert-tensor-parallel size ({})",
                    model, experts.ffn_hidden, training.etp));
  }
  if (options_.bias && training.etp > 1) {
    throw InputError(
        fmt::format("/parallelism/etp: {}: experts with biases and expert-tensor parallelism are not modeled", model));
  }
  if (training.tp > 1 && experts.shared_ffn_hidden % training.tp != 0) {
    throw InputError(
        fmt::format("/parallelism/tp: {}: the shared experts' feed-forward size ({}) must be a multiple of the "
                    "tensor-parallel size ({})",
                    model, experts.shared_ffn_hidden, training.tp));
  }
}

}  // namespace sluice::model
