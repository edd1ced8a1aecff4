#include "model/blocks/attention_core.h"

#include <algorithm>
#include <cmath>

namespace sluice::model {

using namespace kernel_parts;

namespace {

// Sizes of one slice on one device, in elements.
struct CoreSizes {
  double rows;
  double query;  // per row
  double output;
  double key_value;
  double own;    // of the keys and values of this device's tokens
  double cache;  // of the keys and values that are read
};

CoreSizes sizes_of(const AttentionCore& core, const BlockCall& call) {
  const int tp = call.training.tp;
  CoreSizes s{};
  s.rows = call.sizes.rows;
  s.query = core.queries(tp);
  s.output = core.output(tp);
  s.key_value = core.keys_values(tp);
  s.own = s.rows * s.key_value;
  const double keys =
      call.slice.sum_over_documents([&](double tokens, double context) { return core.keys_read(tokens, context); });
  s.cache = keys * s.key_value;
  return s;
}

// Fused causal attention for a fraction `share` of all heads and tokens; reads `cache` elements of keys and values.
KernelCall fused(const AttentionCore& core, OpKind kind, const BlockCall& block, const CoreSizes& s, double cache,
                 double share) {
  const SliceShape& slice = block.slice;
  const auto most_keys = static_cast<double>(slice.most_keys());
  const bool forward = kind == OpKind::F;
  const double key = core.head_dim;
  const double value = core.value_head_dim;
  // Forward: scores and values. Backward: scores again, and the gradients of queries, keys, weights and values.
  const double products = forward ? 2 : 5;
  const double head_size = forward ? (key + value) / 2 : (3 * key + 2 * value) / 5;
  const double causal =
      slice.sum_over_documents([&](double tokens, double context) { return core.flops(tokens, context); });
  const double moved = s.rows * (s.query + s.output);
  KernelCall call{.name = forward ? "attention" : "d attention",
                  .kind = forward ? KernelClass::attention_forward : KernelClass::attention_backward,
                  .flops = causal * share * products * head_size / (key + value),
                  .bytes = forward ? 2 * (moved + cache) : 2 * (2 * moved + 3 * cache),
                  .row_flops = 2 * products * core.reach(most_keys) * head_size,
                  .key_flops = 2 * products * head_size * share * static_cast<double>(core.heads) *
                               static_cast<double>(slice.sequences * slice.tokens),
                  .head_size = head_size};
  // Measured kernels have no windows and no packed documents.
  if (core.window == 0 && core.chunk == 0 && slice.packed == nullptr) {
    call.attention = {.sequences = slice.sequences,
                      .tokens = slice.tokens,
                      .context = slice.context,
                      .heads = std::llround(core.heads * share),
                      .kv_heads = std::max<std::int64_t>(1, std::llround(core.kv_heads * share)),
                      .head_dim = core.head_dim,
                      .value_head_dim = core.value_head_dim};
  }
  call.narrow_attention = block.training.narrow_attention;
  call.windowed = core.window > 0 && core.reach(most_keys) < most_keys;
  if (value < key) call.tile_size = padded_tile(key, !forward);
  return call;
}

// The casts before fused attention with operands of 8 bits: F's queries, keys and values, I's output gradient.
void add_casts(Kernels& out, const Training& training, OpKind kind, const CoreSizes& s) {
  if (!training.narrow_attention) return;
  const bool forward = kind == OpKind::F;
  const bool four = traits_of(training.precision).bits == 4;
  const Cast& cast = traits_of(four ? GemmPrecision::mxfp8 : training.precision).input;
  add_cast(out, forward ? "cast of Q, K, V" : "cast of d attention's output", cast,
           s.rows * (forward ? s.query + s.key_value : s.output));
}

// The sums over the rows of the output times its gradient, before the backward kernel `attention`.
KernelCall row_sums(const KernelCall& attention, const CoreSizes& s) {
  KernelCall call = memory("d attention, row sums", 4 * s.rows * s.output);
  call.attention = attention.attention;
  call.narrow_attention = attention.narrow_attention;
  return call;
}

void add_ring(const AttentionCore& core, OpKind kind, const BlockCall& call, const CoreSizes& s, Kernels& out) {
  const int cp = call.training.cp;
  KernelCall step = fused(core, kind, call, s, cp * s.own, 1.0 / call.training.tp / cp);
  step.flops /= cp;
  step.bytes /= cp;
  step.row_flops /= cp;
  step.attention = {};  // steps have different shapes
  step.count = cp;
  add_casts(out, call.training, kind, s);
  out.push_back(step);
  // Keys and values, and in the backward also their gradients, are passed from rank to rank.
  KernelCall exchange = step;
  exchange.name = kind == OpKind::F ? "ring of keys and values" : "ring of keys, values and gradients";
  exchange.kind = KernelClass::context_ring;
  exchange.overlapped_with = step.kind;
  exchange.overlapped_flops = step.flops;
  exchange.overlapped_bytes = step.bytes;
  exchange.flops = 0;
  exchange.bytes = (kind == OpKind::F ? 2 : 4) * s.own;
  exchange.count = cp - 1;
  out.push_back(exchange);
  if (kind == OpKind::F) {
    out.push_back(memory("sum of steps", (cp - 1) * 6 * s.rows * s.output, cp - 1));
  } else {
    out.push_back(memory("d attention, row sums", 4 * s.rows * s.output));
    out.push_back(memory("d sum of steps", (cp - 1) * 6 * (s.rows * s.query + s.own), 2 * (cp - 1)));
  }
}

void exchange_heads(Kernels& out, std::string_view name, std::string_view copies, double elements, int tensors) {
  out.push_back(
      {.name = name, .kind = KernelClass::context_all_to_all, .bytes = 2 * elements / tensors, .count = tensors});
  out.push_back(memory(copies, 8 * elements, 2 * tensors));
}

void add_all_to_all(const AttentionCore& core, OpKind kind, const BlockCall& call, const CoreSizes& s, Kernels& out) {
  const double share = 1.0 / call.training.tp / call.training.cp;
  const double inputs = s.rows * s.query + s.own;
  if (kind == OpKind::F) {
    exchange_heads(out, "heads of Q, K, V", "copies of Q, K, V", inputs, 3);
    add_casts(out, call.training, kind, s);
    out.push_back(fused(core, kind, call, s, s.own, share));
    exchange_heads(out, "heads of output", "copies of output", s.rows * s.output, 1);
  } else {
    exchange_heads(out, "heads of d output", "copies of d output", s.rows * s.output, 1);
    add_casts(out, call.training, kind, s);
    out.push_back(fused(core, kind, call, s, s.own, share));
    out.push_back(row_sums(out.back(), s));
    exchange_heads(out, "heads of d Q, K, V", "copies of d Q, K, V", inputs, 3);
  }
}

// Megatron-LM's fused scale, mask and softmax kernel supports the sizes of its blocks: four matrices of scores at a
// time, of up to 16,384 keys (megatron/fused_kernels, FusedScaleMaskSoftmax.is_kernel_available).
bool has_fused_softmax(const AttentionCore& core, const BlockCall& call) {
  const std::int64_t matrices = std::int64_t{call.slice.sequences} * (core.heads / call.training.tp);
  return matrices % 4 == 0 && call.slice.context + call.slice.tokens <= 16384;
}

// One GEMM per head and sequence.
void add_unfused(const AttentionCore& core, OpKind kind, const BlockCall& call, const CoreSizes& s, Kernels& out) {
  const SliceShape& slice = call.slice;
  const auto tokens = static_cast<double>(slice.tokens);
  const auto keys = static_cast<double>(slice.context + slice.tokens);
  const double heads = static_cast<double>(core.heads) / call.training.tp;
  const double elements = s.rows * keys * heads;  // of the full rectangle
  const double batch = slice.sequences * heads;
  const GemmShape scores{.m = tokens, .n = keys, .k = static_cast<double>(core.head_dim), .batch = batch};
  const GemmShape rows{.m = tokens, .n = scores.k, .k = keys, .batch = batch, .pass = GemmPass::input_gradient};
  const GemmShape columns{.m = keys, .n = scores.k, .k = tokens, .batch = batch, .pass = GemmPass::weight_gradient};
  const double cache = slice.sequences * keys * s.key_value;
  const double moved = 2 * (s.rows * s.query + cache / 2) + 2 * elements;
  const bool fused_softmax = has_fused_softmax(core, call);
  if (kind == OpKind::F) {
    out.push_back(product("scores", scores, moved));
    // Unfused: widen, mask, softmax and narrow, in 32 bit.
    out.push_back(fused_softmax ? memory("softmax", 4 * elements) : memory("softmax in 32 bit", 29 * elements, 4));
    if (core.dropout) out.push_back(memory("dropout of weights", 5 * elements));
    out.push_back(product("attention over values", rows, moved));
  } else {
    out.push_back(product("d values", columns, moved));
    out.push_back(product("d weights", scores, moved));
    if (core.dropout) out.push_back(memory("d dropout of weights", 5 * elements));
    out.push_back(fused_softmax ? memory("d softmax", 6 * elements) : memory("d softmax in 32 bit", 32 * elements, 4));
    out.push_back(product("d queries", rows, moved));
    out.push_back(product("d keys", columns, moved));
  }
}

// The integral of min(u, window) from 0 to `end`.
double pairs_of_window(double end, double window) {
  return end < window ? end * end / 2 : window * window / 2 + window * (end - window);
}

// The same of u since the last multiple of `chunk`.
double pairs_of_chunks(double end, double chunk) {
  const double rest = std::fmod(end, chunk);
  return (end - rest) / 2 * chunk + rest * rest / 2;
}

}  // namespace

double padded_tile(double key_size, bool backward) {
  return backward ? std::exp2(std::ceil(std::log2(key_size))) : key_size;
}

double AttentionCore::pairs(double tokens, double context) const {
  const double end = context + tokens;
  if (chunk > 0) return pairs_of_chunks(end, chunk) - pairs_of_chunks(context, chunk);
  if (window > 0) return pairs_of_window(end, window) - pairs_of_window(context, window);
  return tokens * (context + tokens / 2);
}

double AttentionCore::reach(double keys) const {
  return window > 0 ? std::min<double>(keys, window) : chunk > 0 ? std::min<double>(keys, chunk) : keys;
}

double AttentionCore::keys_read(double tokens, double context) const {
  if (chunk > 0) return tokens + std::fmod(context, chunk);
  return tokens + (window > 0 ? std::min<double>(context, window) : context);
}

double AttentionCore::model_flops(double tokens) const {
  const double square = window > 0 || chunk > 0 ? 2 * pairs(tokens, 0) : tokens * tokens;
  return 2 * square * static_cast<double>(query_width() + value_width());
}

void add_core(const AttentionCore& core, OpKind kind, const BlockCall& call, Kernels& out) {
  if (kind == OpKind::W) return;
  const CoreSizes s = sizes_of(core, call);
  const Training& training = call.training;
  if (training.cp > 1) {
    training.context_exchange == Training::ContextExchange::ring ? add_ring(core, kind, call, s, out)
                                                                 : add_all_to_all(core, kind, call, s, out);
  } else if (!training.flash_attention) {
    add_unfused(core, kind, call, s, out);
  } else {
    add_casts(out, training, kind, s);
    out.push_back(fused(core, kind, call, s, s.cache, 1.0 / training.tp));
    if (kind == OpKind::I) out.push_back(row_sums(out.back(), s));
  }
}

}  // namespace sluice::model
