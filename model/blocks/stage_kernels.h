#pragma once

#include "model/blocks/kernel_call.h"
#include "model/blocks/model.h"
#include "model/schedule/op.h"
#include "model/workload/slice_shape.h"
#include "model/workload/training.h"

namespace sluice::model {

// Returns the kernels of one part of the model for F, I or W (B is I and W), on one of training.tp x training.cp
// devices, 16-bit. F and I include the tensor-parallel collectives: two all-reduces per layer each, or the same volume
// under sequence parallelism.
Kernels layer_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice,
                      KindIndex layer = 0);
Kernels embedding_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice);
Kernels head_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice);
// Of S and T: those of the shards of embedding and head of a device.
Kernels vocabulary_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice);
// A layer of multi-token prediction, without its pass through the head: the embedding of the next tokens, the norms of
// both inputs, their projection, which is column-parallel and gathered, and a layer of the kind Model::mtp_kind.
Kernels mtp_kernels(const Model& model, const Training& training, OpKind kind, const SliceShape& slice);
// What full recomputation repeats of it: the projection and the layer (Megatron-LM's MultiTokenPredictionLayer).
Kernels mtp_recomputed_kernels(const Model& model, const Training& training, const SliceShape& slice);

// What selective recomputation repeats of a layer's forward pass: its recompute_modules.
Kernels recomputed_module_kernels(const Model& model, const Training& training, const SliceShape& slice,
                                  KindIndex layer);

}  // namespace sluice::model
