#include "model/blocks/stage_kernels.h"

#include <utility>

#include "model/blocks/kernel_parts.h"
#include "model/blocks/layer.h"
#include "model/blocks/stage.h"

namespace sluice::model {

using namespace kernel_parts;

namespace {

// Memory-bound kernels that are counted one by one, so that a framework without fused kernels runs no more of them.
KernelCall counted(std::string_view name, double bytes, int count) {
  KernelCall call = memory(name, bytes, count);
  call.kind = KernelClass::rated;
  call.fraction = 1;
  return call;
}

}  // namespace

Kernels layer_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice,
                      KindIndex layer) {
  return layer_kernels(model.kind(layer), model.style(), training, kind, slice);
}

Kernels recomputed_module_kernels(const Model& model, const Training& training, const SliceShape& slice,
                                  KindIndex layer) {
  Kernels out = layer_kernels(model, training, OpKind::F, slice, layer);
  std::erase_if(out, [&](const KernelCall& call) { return !training.recompute_modules.any_of(call.recomputed_by); });
  return out;
}

Kernels mtp_recomputed_kernels(const Model& model, const Training& training, const SliceShape& slice) {
  const Sizes s = sizes_of(model.hidden, model.dropout, training, slice);
  Kernels out;
  if (training.tp > 1 && training.sequence_parallel) {
    out.push_back(all_gather("all-gather of projection input", 4 * s.rows * s.hidden));
  }
  out.push_back(gemm("projection of both inputs", s.rows, 2 * s.hidden, s.hidden / training.tp));
  if (training.tp > 1) out.push_back(all_gather("all-gather of projection", 2 * s.rows * s.hidden));
  append(out, layer_kernels(model, training, OpKind::F, slice, model.mtp_kind));
  return out;
}

Kernels mtp_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const Sizes s = sizes_of(model.hidden, model.dropout, training, slice);
  Kernels out;
  if (kind == OpKind::F) {
    out = embedding_kernels(model, training, kind, slice);
    out.push_back(memory("norms of both inputs", 8 * s.split * s.hidden, 2));
    out.push_back(memory("both inputs", 8 * s.split * s.hidden));
    append(out, mtp_recomputed_kernels(model, training, slice));
    return out;
  }
  append(out, layer_kernels(model, training, kind, slice, model.mtp_kind));
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
  if (kind != OpKind::I && training.lora_rank == 0) {
    out.push_back(weight_gemm("w projection of both inputs", s.rows, 2 * s.hidden, s.hidden / training.tp,
                              training.gradient_bytes));
  }
  return out;
}

Kernels embedding_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const Sizes s = sizes_of(model.hidden, model.dropout, training, slice);
  const double layers = static_cast<double>(model.layer_embedding) * model.layers;
  const bool whole = training.vocabulary_barriers == 0;  // otherwise positions are on the first stage alone: left out
  Kernels out;
  if (kind == OpKind::F) {
    out.push_back(memory("embedding", 4 * s.rows * s.hidden));
    if (training.tp > 1) out.push_back(all_reduce("all-reduce of embedding", 2 * s.rows * s.hidden));
    if (whole && model.positions > 0) out.push_back(memory("positions", 6 * s.rows * s.hidden));
    if (layers > 0) {
      out.push_back(memory("embeddings of layers", 4 * s.rows * layers));
      out.push_back(gemm("projection to layers", s.split, s.hidden, layers));
      out.push_back(memory("inputs of layers", 14 * s.split * layers, 2));
    }
    if (whole && model.dropout) out.push_back(memory("dropout of embedding", (4 + s.mask) * s.split * s.hidden));
  } else if (kind != OpKind::W) {
    if (whole && model.dropout) out.push_back(memory("d dropout of embedding", (4 + s.mask) * s.split * s.hidden));
    if (training.tp > 1 && training.sequence_parallel) {
      out.push_back({"all-gather of d embedding", KernelClass::all_gather, 0, 2 * s.rows * s.hidden});
    }
    if (training.lora_rank > 0) return out;  // embeddings are frozen
    // PyTorch's gradient of a table is dense: it is zeroed, rows are added to it, and it is added to the sum of the
    // microbatches (embedding_dense_backward; Megatron-LM's hook: main_grad.add_(grad)).
    const auto add_table = [&](std::string_view rows_name, std::string_view name, double rows, double words,
                               double width) {
      out.push_back(memory(rows_name, 6 * rows * width));
      out.push_back(memory(name, (4 + 2.0 * training.gradient_bytes) * words * width, 2));
    };
    const int shards = training.vocabulary_ranks();
    const auto words = static_cast<double>(padded_vocab(model, shards)) / shards;
    add_table("d embedding", "d embedding, whole table", s.rows / shards, words, s.hidden);
    if (whole && model.positions > 0) {
      add_table("d positions", "d positions, whole table", s.rows, static_cast<double>(model.positions), s.hidden);
    }
    if (layers > 0) {
      out.push_back(memory("d inputs of layers", 20 * s.split * layers, 3));
      out.push_back(gemm("d projection to layers", s.split, layers, s.hidden, GemmPass::input_gradient));
      add_table("d embeddings of layers", "d embeddings of layers, whole table", s.rows / training.tp, words, layers);
    }
  }
  if (layers > 0 && kind != OpKind::F && kind != OpKind::I && training.lora_rank == 0) {
    out.push_back(weight_gemm("w projection to layers", s.split, s.hidden, layers, training.gradient_bytes));
  }
  return out;
}

Kernels vocabulary_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const bool forward = kind == OpKind::S;
  Kernels out = embedding_kernels(model, training, forward ? OpKind::F : OpKind::B, slice);
  if (forward) append(out, head_kernels(model, training, OpKind::F, slice));
  if (forward == (training.vocabulary_barriers == 1)) append(out, head_kernels(model, training, OpKind::I, slice));
  if (!forward) append(out, head_kernels(model, training, OpKind::W, slice));
  return out;
}

Kernels head_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice) {
  const Sizes s = sizes_of(model.hidden, model.dropout, training, slice);
  const int shards = training.vocabulary_ranks();
  const double words = static_cast<double>(padded_vocab(model, shards)) / shards;
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
    out.push_back(fused ? memory("cross-entropy", 6 * logits, 2) : counted("cross-entropy", 38 * logits, 6));
    // Maximum, the target's logit and the sum of exponentials, 4 bytes per row each.
    if (training.tp > 1) {
      out.push_back({"all-reduces of cross-entropy", KernelClass::all_reduce, 0, 4 * s.rows, 3});
    }
    return out;
  }
  if (kind != OpKind::W) {
    out.push_back(fused ? memory("d cross-entropy", 4 * logits) : counted("d cross-entropy", 14 * logits, 2));
    out.push_back(gemm("d head", s.rows, words, s.hidden, GemmPass::input_gradient));
    if (training.tp > 1) out.push_back(all_reduce("all-reduce of d head", 2 * s.rows * s.hidden));
    out.push_back(memory("d final norm", 6 * s.split * s.hidden, 2));
  }
  if (kind != OpKind::I && training.lora_rank == 0) {
    out.push_back(weight_gemm("w head", s.rows, s.hidden, words, training.gradient_bytes));
  }
  return out;
}

}  // namespace sluice::model
