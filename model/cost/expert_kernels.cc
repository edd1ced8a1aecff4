#include "model/cost/expert_kernels.h"

#include "model/blocks/expert_routing.h"

namespace sluice::model {

using namespace kernel_parts;

namespace {

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

ExpertSizes expert_sizes(const Transformer& model, const Training& training, const Sizes& s) {
  const Experts& experts = model.experts;
  ExpertSizes e{};
  e.own = s.rows / training.tp;
  e.sent = e.own * experts.per_token * training.mean_expert_rows();
  e.most = e.own * experts.per_token * training.most_expert_rows(experts);
  e.come = e.most * training.etp;
  e.delivered = copies_apart(training) ? e.come : e.come * expected_parts(experts, training.ep) / experts.per_token;
  e.scores = e.own * experts.count;
  e.mine = static_cast<double>(experts.count) / training.ep;
  e.width = static_cast<double>(experts.ffn_hidden) / training.etp;
  e.width_in = model.mlp_inputs() * e.width;
  e.shared = static_cast<double>(experts.shared_ffn_hidden) / training.tp;
  e.shared_in = model.mlp_inputs() * e.shared;
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
void add_expert_biases(Kernels& out, const Transformer& model, const Training& training, const Sizes& s,
                       const ExpertSizes& e) {
  if (!model.mlp_bias || training.fused_grouped_mlp) return;
  const double elements = e.come * s.hidden;
  out.push_back(memory("biases of experts", (4 + 10) * elements, 2 * static_cast<int>(e.mine)));
  out.push_back(memory("joined results", (8 + 6) * elements, 2));
}
// Its gradient: widened and split, then expert by expert narrowed for the rows, and summed over columns for the weights
// and over rows for the bias, each after a product.
void add_expert_bias_gradients(Kernels& out, const Transformer& model, const Training& training, const Sizes& s,
                               const ExpertSizes& e) {
  if (!model.mlp_bias) return;
  const double elements = e.come * s.hidden;
  const int experts = static_cast<int>(e.mine);
  if (training.fused_grouped_mlp) {
    out.push_back(memory("d biases of experts", 2 * elements));
    return;
  }
  out.push_back(memory("d joined results", (6 + 4) * elements, 2));
  out.push_back(memory("d biases of experts", (6 + 12 + 12) * elements, 5 * experts));
  out.push_back(memory("d biases into experts", 2 * e.come * e.width_in, experts));
}

// Bytes per element of what a fused kernel writes already cast, in both layouts.
double cast_bytes(const Training& training) {
  const PrecisionTraits& traits = traits_of(training.precision);
  return traits.bits == 16 ? 2 : 2 * traits.bytes;
}

// The ranks with the parts of the same experts gather all their rows, or add their results of them.
void exchange_parts(Kernels& out, const Training& training, const Sizes& s, const ExpertSizes& e,
                    std::string_view name) {
  if (training.etp == 1) return;
  out.push_back({.name = name, .kind = KernelClass::expert_all_gather, .bytes = 2 * e.delivered * s.hidden});
}

// Orders what has arrived by expert, or back. DeepEP and HybridEP deliver one copy of a token per rank.
void add_ordering(Kernels& out, const Sizes& s, const ExpertSizes& e, std::string_view name) {
  out.push_back(memory(name, 2 * (e.delivered + e.come) * s.hidden));
  out.back().part = LayerPart::experts;
}

// The all-to-all of copies with this number of bytes per element.
void exchange_copies(Kernels& out, const Training& training, const Sizes& s, const ExpertSizes& e,
                     std::string_view name, double element_bytes) {
  if (training.ep == 1) return;
  out.push_back({.name = name, .kind = KernelClass::expert_all_to_all, .bytes = element_bytes * e.most * s.hidden});
}

// Dispatches copies of tokens to their experts, in order, as the communication part `part`; `names` of the three
// kernels.
void dispatch(Kernels& out, const Training& training, const Sizes& s, const ExpertSizes& e, LayerPart part,
              std::string_view copied, std::string_view sent, std::string_view ordered) {
  if (copies_apart(training)) out.push_back(copies(copied, 2 * (e.own + e.sent) * s.hidden));
  if (training.expert_ranks() == 1) return;  // the copies are already in order
  const std::size_t first = out.size();
  constexpr double kNarrow = 1 + 4.0 / 128;
  exchange_copies(out, training, s, e, sent, training.fp8_dispatch ? kNarrow : 2);
  exchange_parts(out, training, s, e, "all-gather of copies");
  mark(out, first, part);
  add_ordering(out, s, e, ordered);
}

// The reverse of `dispatch`; the copies of a token are added.
void combine(Kernels& out, const Training& training, const Sizes& s, const ExpertSizes& e, LayerPart part,
             std::string_view ordered, std::string_view sent, std::string_view summed) {
  if (training.expert_ranks() > 1) add_ordering(out, s, e, ordered);
  const std::size_t first = out.size();
  exchange_parts(out, training, s, e, "reduce-scatter of results");
  exchange_copies(out, training, s, e, sent, 2);
  mark(out, first, part);
  if (copies_apart(training)) out.push_back(copies(summed, 2 * (e.own + e.sent) * s.hidden));
}

Kernels forward(const Transformer& model, const Training& training, const Sizes& s, const ExpertSizes& e) {
  const PrecisionTraits& traits = traits_of(training.precision);
  Kernels out;
  out.push_back(gemm("router", e.own, s.hidden, model.experts.count));
  // 32-bit softmax, top-k, its map, and the sums for load balancing, each over all scores.
  out.push_back(memory("top-k", 32 * e.scores, 6));
  mark(out, 0, GraphModule::moe_router);
  dispatch(out, training, s, e, LayerPart::dispatch, "copies for experts", "dispatch", "copies in order");
  std::size_t first = out.size();
  add_grouped_cast(out, training, "cast of input", traits.input, e, e.come * s.hidden);
  out.push_back(grouped_rows(training, "experts in", e, s.hidden, e.width_in));
  if (training.fused_grouped_mlp) {
    out.back().bytes += cast_bytes(training) * e.come * e.width;
  } else {
    // PyTorch clamps either half and joins them (Megatron-LM's weighted_bias_quick_geglu_impl).
    const std::size_t activation = out.size();
    if (model.experts.clamp > 0) out.push_back(memory("clamp of experts", (4 + 4) * e.come * e.width_in, 3));
    out.push_back(memory("activation of experts", 2 * e.come * (e.width_in + e.width)));
    repeat_with(RecomputeModule::activation, out, activation);
    add_grouped_cast(out, training, "cast of input", traits.input, e, e.come * e.width);
  }
  out.push_back(grouped_rows(training, "experts out", e, e.width, s.hidden));
  add_expert_biases(out, model, training, s, e);
  mark(out, first, LayerPart::experts);
  combine(out, training, s, e, LayerPart::combine, "results in order", "combine", "sum of experts");
  if (e.shared > 0) {
    first = out.size();
    add_linear(out, training, "shared expert in", s.rows, s.hidden, e.shared_in);
    out.push_back(memory("activation of shared expert", 2 * s.rows * (e.shared_in + e.shared)));
    repeat_with(RecomputeModule::shared_experts, out, out.size() - 2);
    add_linear(out, training, "shared expert out", s.rows, e.shared, s.hidden);
    repeat_with(RecomputeModule::shared_experts, out, out.size() - 1);
    if (training.tp > 1) out.push_back(all_reduce("all-reduce of shared expert", reduced_bytes(training, s)));
    if (model.experts.shared_gate) out.push_back(memory("gate of shared expert", 6 * s.split * s.hidden, 2));
    mark(out, first, LayerPart::experts);
    mark(out, first, GraphModule::moe_router);
    out.push_back(memory("sum with shared expert", 6 * s.split * s.hidden));
  }
  return out;
}

Kernels input_gradient(const Transformer& model, const Training& training, const Sizes& s, const ExpertSizes& e) {
  const PrecisionTraits& traits = traits_of(training.precision);
  Kernels out;
  if (e.shared > 0) {
    if (model.experts.shared_gate) out.push_back(memory("d gate of shared expert", 10 * s.split * s.hidden, 3));
    add_linear_gradient(out, training, "d shared expert out", s.rows, s.hidden, e.shared);
    out.push_back(memory("d activation of shared expert", 2 * s.rows * (e.shared + 2 * e.shared_in)));
    add_linear_gradient(out, training, "d shared expert in", s.rows, e.shared_in, s.hidden);
    if (training.tp > 1) out.push_back(all_reduce("all-reduce of d shared expert", reduced_bytes(training, s)));
    mark(out, 0, LayerPart::experts);
    mark(out, 0, GraphModule::moe_router);
    out.push_back(memory("sum with d shared expert", 6 * s.split * s.hidden));
  }
  dispatch(out, training, s, e, LayerPart::combine, "d sum of experts", "d combine", "d results in order");
  std::size_t first = out.size();
  add_expert_bias_gradients(out, model, training, s, e);
  add_grouped_cast(out, training, "cast of output gradient", traits.gradient, e, e.come * s.hidden);
  out.push_back(grouped_rows(training, "d experts out", e, s.hidden, e.width, GemmPass::input_gradient));
  if (training.fused_grouped_mlp) {
    // Instead of the gradient of the activation, that of its inputs is written, which are read.
    out.back().bytes += e.come * ((2 + cast_bytes(training)) * e.width_in - 2 * e.width);
  } else {
    out.push_back(memory("d activation of experts", 2 * e.come * (e.width + 2 * e.width_in)));
    if (model.experts.clamp > 0) out.push_back(memory("d clamp of experts", (6 + 4) * e.come * e.width_in, 3));
    add_grouped_cast(out, training, "cast of output gradient", traits.gradient, e, e.come * e.width_in);
  }
  out.push_back(grouped_rows(training, "d experts in", e, e.width_in, s.hidden, GemmPass::input_gradient));
  mark(out, first, LayerPart::experts);
  combine(out, training, s, e, LayerPart::dispatch, "d copies in order", "d dispatch", "d copies for experts");
  first = out.size();
  out.push_back(memory("d top-k", 24 * e.scores, 4));
  out.push_back(gemm("d router", e.own, model.experts.count, s.hidden, GemmPass::input_gradient));
  out.push_back(memory("sum with d router", 6 * e.own * s.hidden));
  mark(out, first, GraphModule::moe_router);
  return out;
}

Kernels weight_gradient(const Transformer& model, const Training& training, const Sizes& s, const ExpertSizes& e) {
  Kernels out;
  out.push_back(grouped_weight(training, "w experts out", e, e.width, s.hidden));
  out.push_back(grouped_weight(training, "w experts in", e, s.hidden, e.width_in));
  const std::size_t first = out.size();
  if (e.shared > 0) {
    out.push_back(linear_weight(training, "w shared expert out", s.rows, e.shared, s.hidden));
    out.push_back(linear_weight(training, "w shared expert in", s.rows, s.hidden, e.shared_in));
  }
  mark(out, 0, LayerPart::experts);
  out.push_back(weight_gemm("w router", e.own, s.hidden, model.experts.count, training.gradient_bytes));
  mark(out, first, GraphModule::moe_router);
  return out;
}

}  // namespace

Kernels expert_kernels(const Transformer& model, const Training& training, OpKind kind, const Sizes& s) {
  const ExpertSizes e = expert_sizes(model, training, s);
  Kernels out;
  if (kind == OpKind::F) {
    out = forward(model, training, s, e);
    repeat_with(RecomputeModule::experts, out);
  } else {
    if (kind != OpKind::W) out = input_gradient(model, training, s, e);
    if (kind != OpKind::I) append(out, weight_gradient(model, training, s, e));
  }
  for (KernelCall& call : out) {
    if (call.module == GraphModule::attention) call.module = GraphModule::moe;
  }
  return out;
}

}  // namespace sluice::model
