#include "model/cost/stage_kernels.h"

#include <utility>

#include "model/blocks/kernel_parts.h"
#include "model/cost/context_kernels.h"
#include "model/cost/expert_kernels.h"
#include "model/cost/latent_kernels.h"

namespace sluice::model {

using namespace kernel_parts;

namespace {

Kernels of_mlp(Kernels kernels) {
  for (KernelCall& call : kernels) call.module = GraphModule::mlp;
  return kernels;
}

Kernels dense_forward(const Training& training, const Sizes& s) {
  Kernels out;
  add_linear(out, training, "MLP in", s.rows, s.hidden, s.mlp_in, Source::norm);
  out.push_back(memory("activation", 2 * s.rows * (s.mlp_in + s.mlp)));
  add_linear(out, training, "MLP out", s.rows, s.mlp, s.hidden);
  add_tensor_collectives(out, training, s, "all-reduce 2", {.m = s.rows, .n = s.mlp_in, .k = s.hidden},
                         {.m = s.rows, .n = s.hidden, .k = s.mlp});
  repeat_with(RecomputeModule::mlp, out);
  return of_mlp(std::move(out));
}

Kernels dense_input_gradient(const Training& training, const Sizes& s) {
  Kernels out;
  add_linear_gradient(out, training, "d MLP out", s.rows, s.hidden, s.mlp);
  out.push_back(memory("d activation", 2 * s.rows * (s.mlp + 2 * s.mlp_in)));
  add_linear_gradient(out, training, "d MLP in", s.rows, s.mlp_in, s.hidden);
  add_tensor_collectives(out, training, s, "all-reduce of d MLP in",
                         {.m = s.rows, .n = s.mlp, .k = s.hidden, .pass = GemmPass::input_gradient},
                         {.m = s.rows, .n = s.hidden, .k = s.mlp_in, .pass = GemmPass::input_gradient});
  return of_mlp(std::move(out));
}

Kernels dense_weight_gradient(const Training& training, const Sizes& s) {
  return of_mlp({linear_weight(training, "w MLP out", s.rows, s.mlp, s.hidden),
                 linear_weight(training, "w MLP in", s.rows, s.hidden, s.mlp_in)});
}

Kernels layer_forward(const Transformer& model, const Training& training, const SliceShape& slice, LayerKind layer,
                      const Sizes& s) {
  // Latents are gathered instead of their input, so that of the all-gather and the reduce-scatter one remains.
  const bool latents_gathered = model.has_latent_attention() && training.sequence_parallel && training.tp > 1;
  Kernels out;
  const auto add_norm = [&](std::string_view name) {
    out.push_back(memory(name, 4 * s.split * s.hidden));
    out.back().recomputed_by = RecomputeModule::norm;
  };
  add_norm("norm 1");
  if (model.has_latent_attention()) {
    append(out, latent_kernels(model, training, OpKind::F, s));
  } else {
    add_linear(out, training, "QKV", s.rows, s.hidden, s.qkv, Source::norm);
    if (model.qk_norm) out.push_back(memory("QK norm", 4 * s.rows * (s.query + s.key_value / 2), 2));
    if (model.positions == 0) out.push_back(memory("rotary", 4 * s.rows * (s.query + s.key_value / 2), 2));
  }
  const std::size_t core = out.size();
  append(out, attention_kernels(model, training, OpKind::F, slice));
  if (!training.flash_attention) repeat_with(RecomputeModule::core_attention, out, core);
  add_linear(out, training, "projection", s.rows, s.output, s.hidden);
  if (latents_gathered) {
    out.push_back(all_gather("reduce-scatter of projection", 2 * s.rows * s.hidden));
  } else {
    add_tensor_collectives(out, training, s, "all-reduce 1", {.m = s.rows, .n = s.qkv, .k = s.hidden},
                           {.m = s.rows, .n = s.hidden, .k = s.output});
  }
  out.push_back(memory("dropout, residual 1", (6 + s.mask) * s.split * s.hidden));
  add_norm("norm 2");
  append(out, layer == LayerKind::dense ? dense_forward(training, s) : expert_kernels(model, training, OpKind::F, s));
  out.push_back(memory("dropout, residual 2", (6 + s.mask) * s.split * s.hidden));
  return out;
}

Kernels layer_input_gradient(const Transformer& model, const Training& training, const SliceShape& slice,
                             LayerKind layer, const Sizes& s) {
  const bool latents_gathered = model.has_latent_attention() && training.sequence_parallel && training.tp > 1;
  Kernels out;
  out.push_back(memory("d dropout 2", (4 + s.mask) * s.split * s.hidden));
  append(out,
         layer == LayerKind::dense ? dense_input_gradient(training, s) : expert_kernels(model, training, OpKind::I, s));
  out.push_back(memory("d norm 2", 6 * s.split * s.hidden, 2));
  out.push_back(memory("d residual 2", 6 * s.split * s.hidden));
  out.push_back(memory("d dropout 1", (4 + s.mask) * s.split * s.hidden));
  add_linear_gradient(out, training, "d projection", s.rows, s.hidden, s.output);
  append(out, attention_kernels(model, training, OpKind::I, slice));
  if (model.has_latent_attention()) {
    append(out, latent_kernels(model, training, OpKind::I, s));
  } else {
    if (model.positions == 0) out.push_back(memory("d rotary", 4 * s.rows * (s.query + s.key_value / 2), 2));
    if (model.qk_norm) out.push_back(memory("d QK norm", 6 * s.rows * (s.query + s.key_value / 2), 2));
    add_linear_gradient(out, training, "d QKV", s.rows, s.qkv, s.hidden);
  }
  if (latents_gathered) {
    out.push_back(all_gather("all-gather of d projection", 2 * s.rows * s.hidden));
  } else if (!model.has_latent_attention()) {
    add_tensor_collectives(out, training, s, "all-reduce of d QKV",
                           {.m = s.rows, .n = s.output, .k = s.hidden, .pass = GemmPass::input_gradient},
                           {.m = s.rows, .n = s.hidden, .k = s.qkv, .pass = GemmPass::input_gradient});
  }
  out.push_back(memory("d norm 1", 6 * s.split * s.hidden, 2));
  out.push_back(memory("d residual 1", 6 * s.split * s.hidden));
  if (model.qkv_bias) out.push_back(memory("d QKV bias", 2 * s.rows * s.qkv));
  if (model.projection_bias) out.push_back(memory("d projection bias", 2 * s.split * s.hidden));
  if (model.mlp_bias && layer == LayerKind::dense) {
    out.push_back(memory("d MLP biases", 2 * (s.rows * s.mlp_in + s.split * s.hidden), 2));
  }
  return out;
}

Kernels layer_weight_gradient(const Transformer& model, const Training& training, LayerKind layer, const Sizes& s) {
  Kernels out =
      layer == LayerKind::dense ? dense_weight_gradient(training, s) : expert_kernels(model, training, OpKind::W, s);
  out.push_back(linear_weight(training, "w projection", s.rows, s.output, s.hidden));
  if (model.has_latent_attention()) {
    append(out, latent_kernels(model, training, OpKind::W, s));
  } else {
    out.push_back(linear_weight(training, "w QKV", s.rows, s.hidden, s.qkv));
  }
  return out;
}

// Megatron-LM's fused scale, mask and softmax kernel supports the sizes of its blocks: four matrices of scores at a
// time, of up to 16,384 keys (megatron/fused_kernels, FusedScaleMaskSoftmax.is_kernel_available).
bool has_fused_softmax(const Transformer& model, const Training& training, const SliceShape& slice) {
  const std::int64_t matrices = std::int64_t{slice.sequences} * (model.heads / training.tp);
  return matrices % 4 == 0 && slice.context + slice.tokens <= 16384;
}

}  // namespace

Kernels attention_kernels(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const Sizes s = sizes_of(model, training, slice);
  const double keys = static_cast<double>(slice.context + slice.tokens);
  const double cache = static_cast<double>(slice.sequences) * keys * s.key_value;  // elements of K and V read
  if (training.cp > 1) return context_attention_kernels(model, training, kind, slice, s);
  Kernels out;
  if (training.flash_attention) {
    if (kind != OpKind::F && kind != OpKind::I) return out;
    add_attention_casts(out, training, kind, s);
    out.push_back(fused_attention(model, training, kind, slice, s, cache, 1.0 / training.tp));
    if (kind == OpKind::I) out.push_back(row_sums(out.back(), s));
    return out;
  }
  // One GEMM per head and sequence.
  const auto tokens = static_cast<double>(slice.tokens);
  const double batch = slice.sequences * (static_cast<double>(model.heads) / training.tp);
  const GemmShape scores{.m = tokens, .n = keys, .k = static_cast<double>(model.head_dim), .batch = batch};
  const GemmShape rows{.m = tokens, .n = scores.k, .k = keys, .batch = batch, .pass = GemmPass::input_gradient};
  const GemmShape columns{.m = keys, .n = scores.k, .k = tokens, .batch = batch, .pass = GemmPass::weight_gradient};
  const double operand = 2 * (s.rows * s.query + cache / 2);
  const double moved = operand + 2 * s.scores;
  const bool fused = has_fused_softmax(model, training, slice);
  if (kind == OpKind::F) {
    out.push_back(product("scores", scores, moved));
    // Unfused: widen, mask, softmax and narrow, in 32 bit.
    out.push_back(fused ? memory("softmax", 4 * s.scores) : memory("softmax in 32 bit", 29 * s.scores, 4));
    if (model.dropout) out.push_back(memory("dropout of weights", 5 * s.scores));
    out.push_back(product("attention over values", rows, moved));
  } else if (kind == OpKind::I) {
    out.push_back(product("d values", columns, moved));
    out.push_back(product("d weights", scores, moved));
    if (model.dropout) out.push_back(memory("d dropout of weights", 5 * s.scores));
    out.push_back(fused ? memory("d softmax", 6 * s.scores) : memory("d softmax in 32 bit", 32 * s.scores, 4));
    out.push_back(product("d queries", rows, moved));
    out.push_back(product("d keys", columns, moved));
  }
  return out;
}

Kernels layer_kernels(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice,
                      LayerKind layer) {
  const Sizes s = sizes_of(model, training, slice);
  if (kind == OpKind::F) return layer_forward(model, training, slice, layer, s);
  Kernels out;
  if (kind != OpKind::W) out = layer_input_gradient(model, training, slice, layer, s);
  if (kind != OpKind::I) append(out, layer_weight_gradient(model, training, layer, s));
  return out;
}

Kernels recomputed_module_kernels(const Transformer& model, const Training& training, const SliceShape& slice,
                                  LayerKind layer) {
  Kernels out = layer_kernels(model, training, OpKind::F, slice, layer);
  std::erase_if(out, [&](const KernelCall& call) { return !training.recompute_modules.any_of(call.recomputed_by); });
  return out;
}

Kernels mtp_recomputed_kernels(const Transformer& model, const Training& training, const SliceShape& slice) {
  const Sizes s = sizes_of(model, training, slice);
  Kernels out;
  if (training.tp > 1 && training.sequence_parallel) {
    out.push_back(all_gather("all-gather of projection input", 4 * s.rows * s.hidden));
  }
  out.push_back(gemm("projection of both inputs", s.rows, 2 * s.hidden, s.hidden / training.tp));
  if (training.tp > 1) out.push_back(all_gather("all-gather of projection", 2 * s.rows * s.hidden));
  append(out, layer_kernels(model, training, OpKind::F, slice, model.last_kind()));
  return out;
}

Kernels mtp_kernels(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const Sizes s = sizes_of(model, training, slice);
  Kernels out;
  if (kind == OpKind::F) {
    out = embedding_kernels(model, training, kind, slice);
    out.push_back(memory("norms of both inputs", 8 * s.split * s.hidden, 2));
    out.push_back(memory("both inputs", 8 * s.split * s.hidden));
    append(out, mtp_recomputed_kernels(model, training, slice));
    return out;
  }
  append(out, layer_kernels(model, training, kind, slice, model.last_kind()));
  if (kind != OpKind::W) {
    if (training.tp > 1 && training.sequence_parallel) {
      out.push_back(all_gather("all-gather of d projection", 2 * s.rows * s.hidden));
    }
    out.push_back(
        gemm("d projection of both inputs", s.rows, s.hidden / training.tp, 2 * s.hidden, GemmPass::input_gradient));
    if (training.tp > 1 && training.sequence_parallel) {
      out.push_back(all_gather("reduce-scatter of d projection", 4 * s.rows * s.hidden));
    } else if (training.tp > 1) {
      out.push_back(all_reduce("all-reduce of d projection", 4 * s.rows * s.hidden));
    }
    out.push_back(memory("d both inputs", 8 * s.split * s.hidden));
    out.push_back(memory("d norms of both inputs", 12 * s.split * s.hidden, 4));
    append(out, embedding_kernels(model, training, kind, slice));
  }
  if (kind != OpKind::I) {
    out.push_back(weight_gemm("w projection of both inputs", s.rows, 2 * s.hidden, s.hidden / training.tp,
                              training.gradient_bytes));
  }
  return out;
}

Kernels embedding_kernels(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const Sizes s = sizes_of(model, training, slice);
  Kernels out;
  if (kind == OpKind::F) {
    out.push_back(memory("embedding", 4 * s.rows * s.hidden));
    if (training.tp > 1) out.push_back(all_reduce("all-reduce of embedding", 2 * s.rows * s.hidden));
    if (model.positions > 0) out.push_back(memory("positions", 6 * s.rows * s.hidden));
    if (model.dropout) out.push_back(memory("dropout of embedding", (4 + s.mask) * s.split * s.hidden));
  } else if (kind != OpKind::W) {
    if (model.dropout) out.push_back(memory("d dropout of embedding", (4 + s.mask) * s.split * s.hidden));
    if (training.tp > 1 && training.sequence_parallel) {
      out.push_back({"all-gather of d embedding", KernelClass::all_gather, 0, 2 * s.rows * s.hidden});
    }
    // PyTorch's gradient of a table is dense: it is zeroed, rows are added to it, and it is added to the sum of the
    // microbatches (embedding_dense_backward; Megatron-LM's hook: main_grad.add_(grad)).
    const auto add_table = [&](std::string_view rows_name, std::string_view name, double rows, double words) {
      out.push_back(memory(rows_name, 6 * rows * s.hidden));
      out.push_back(memory(name, (4 + 2.0 * training.gradient_bytes) * words * s.hidden, 2));
    };
    const auto words = static_cast<double>(padded_vocab(model, training.tp));
    add_table("d embedding", "d embedding, whole table", s.rows / training.tp, words / training.tp);
    if (model.positions > 0) {
      add_table("d positions", "d positions, whole table", s.rows, static_cast<double>(model.positions));
    }
  }
  return out;
}

Kernels head_kernels(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const Sizes s = sizes_of(model, training, slice);
  const double words = static_cast<double>(padded_vocab(model, training.tp)) / training.tp;
  const double logits = s.rows * words;
  const bool fused =
      training.cross_entropy == Training::CrossEntropy::native || training.cross_entropy == Training::CrossEntropy::te;
  Kernels out;
  if (kind == OpKind::F) {
    out.push_back(memory("final norm", 4 * s.split * s.hidden));
    if (training.tp > 1 && training.sequence_parallel) {
      out.push_back({"all-gather of head input", KernelClass::all_gather, 0, 2 * s.rows * s.hidden});
    }
    out.push_back(gemm("head", s.rows, s.hidden, words));
    // Widen (2 + 4), maximum (4), subtract (8), exponential (8), sum (4), divide (8). Fused: read for maximum and sum,
    // then overwritten by the gradient.
    out.push_back(fused ? memory("cross-entropy", 6 * logits, 2) : memory("cross-entropy", 38 * logits, 6));
    // Maximum, the target's logit and the sum of exponentials, 4 bytes per row each.
    if (training.tp > 1) {
      out.push_back({"all-reduces of cross-entropy", KernelClass::all_reduce, 0, 4 * s.rows, 3});
    }
    return out;
  }
  if (kind != OpKind::W) {
    out.push_back(fused ? memory("d cross-entropy", 4 * logits) : memory("d cross-entropy", 14 * logits, 2));
    out.push_back(gemm("d head", s.rows, words, s.hidden, GemmPass::input_gradient));
    if (training.tp > 1) out.push_back(all_reduce("all-reduce of d head", 2 * s.rows * s.hidden));
    out.push_back(memory("d final norm", 6 * s.split * s.hidden, 2));
  }
  if (kind != OpKind::I) out.push_back(weight_gemm("w head", s.rows, s.hidden, words, training.gradient_bytes));
  return out;
}

}  // namespace sluice::model
