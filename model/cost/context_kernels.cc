#include "model/cost/context_kernels.h"

namespace sluice::model {

using namespace kernel_parts;

namespace {

KernelCall attention(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice,
                     const Sizes& s, double cache) {
  return fused_attention(model, training, kind, slice, s, cache, 1.0 / training.tp / training.cp);
}

Kernels ring(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice, const Sizes& s) {
  const int cp = training.cp;
  const double own = s.rows * s.key_value;
  KernelCall step = attention(model, training, kind, slice, s, cp * own);
  step.flops /= cp;
  step.bytes /= cp;
  step.row_flops /= cp;
  step.attention = {};  // steps have different shapes
  step.count = cp;
  Kernels out;
  add_attention_casts(out, training, kind, s);
  out.push_back(step);
  // Keys and values, and in the backward also their gradients, are passed from rank to rank.
  KernelCall exchange = step;
  exchange.name = kind == OpKind::F ? "ring of keys and values" : "ring of keys, values and gradients";
  exchange.kind = KernelClass::context_ring;
  exchange.overlapped_with = step.kind;
  exchange.overlapped_flops = step.flops;
  exchange.overlapped_bytes = step.bytes;
  exchange.flops = 0;
  exchange.bytes = (kind == OpKind::F ? 2 : 4) * own;
  exchange.count = cp - 1;
  out.push_back(exchange);
  if (kind == OpKind::F) {
    out.push_back(memory("sum of steps", (cp - 1) * 6 * s.rows * s.output, cp - 1));
  } else {
    out.push_back(memory("d attention, row sums", 4 * s.rows * s.output));
    out.push_back(memory("d sum of steps", (cp - 1) * 6 * (s.rows * s.query + own), 2 * (cp - 1)));
  }
  return out;
}

void exchange_heads(Kernels& out, std::string_view name, std::string_view copies, double elements, int tensors) {
  out.push_back(
      {.name = name, .kind = KernelClass::context_all_to_all, .bytes = 2 * elements / tensors, .count = tensors});
  out.push_back(memory(copies, 8 * elements, 2 * tensors));
}

Kernels all_to_all(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice,
                   const Sizes& s) {
  const double own = s.rows * s.key_value;
  Kernels out;
  if (kind == OpKind::F) {
    exchange_heads(out, "heads of Q, K, V", "copies of Q, K, V", s.rows * s.query + own, 3);
    add_attention_casts(out, training, kind, s);
    out.push_back(attention(model, training, kind, slice, s, own));
    exchange_heads(out, "heads of output", "copies of output", s.rows * s.output, 1);
  } else {
    exchange_heads(out, "heads of d output", "copies of d output", s.rows * s.output, 1);
    add_attention_casts(out, training, kind, s);
    out.push_back(attention(model, training, kind, slice, s, own));
    out.push_back(row_sums(out.back(), s));
    exchange_heads(out, "heads of d Q, K, V", "copies of d Q, K, V", s.rows * s.query + own, 3);
  }
  return out;
}

}  // namespace

Kernels context_attention_kernels(const Transformer& model, const Training& training, OpKind kind,
                                  const SliceShape& slice, const Sizes& s) {
  if (kind != OpKind::F && kind != OpKind::I) return {};
  return training.context_exchange == Training::ContextExchange::ring ? ring(model, training, kind, slice, s)
                                                                      : all_to_all(model, training, kind, slice, s);
}

}  // namespace sluice::model
