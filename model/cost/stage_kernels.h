#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/cost/gemm.h"
#include "model/schedule/op.h"
#include "model/weave/weave.h"
#include "model/workload/slice_shape.h"
#include "model/workload/training.h"

namespace sluice::model {

// The class of a kernel, which determines how it is priced.
enum class KernelClass : std::uint8_t {
  gemm,               // gemm_time
  attention_forward,  // fused attention: attention_time
  attention_backward,
  memory,      // bytes only
  cast,        // the same, to operands of a narrow format
  all_reduce,  // over the tensor-parallel group; bytes of the whole tensor
  all_gather,
  expert_all_to_all,   // bytes that each rank of the group starts with
  expert_all_gather,   // over the ranks of an expert; bytes of the whole tensor, also of a reduce-scatter
  context_all_to_all,  // bytes that each rank of the group starts with
  context_ring,        // bytes to the next rank during this attention kernel: the time beyond that kernel
  overlapped_gather,   // an all-gather, or a reduce-scatter, in parts, each during a part of this GEMM: the time beyond
                       // the GEMM's own
  sharding,            // collectives of sharded parameters and gradients: the time beyond the op's kernels, added_s
};

constexpr bool is_collective(KernelClass kind) { return kind >= KernelClass::all_reduce; }

// `count` consecutive kernels, each with these FLOPs and bytes, on one device.
struct KernelCall {
  std::string_view name;
  KernelClass kind = KernelClass::memory;
  double flops = 0;
  double bytes = 0;  // moved through the GPU's memory, or communicated
  int count = 1;
  GemmShape gemm = {};   // of a gemm, or of the one that an overlapped_gather overlaps with
  double row_flops = 0;  // fused attention: per query row and head
  double key_flops = 0;  // fused attention: of one key, for all rows of all heads
  double head_size = 0;  // fused attention: mean over the GEMMs
  double tile_size = 0;  // fused attention: see AttentionWork
  // Fused attention, or a memory kernel that a measurement of this attention backward includes.
  AttentionShape attention = {};
  bool narrow_attention = false;  // fused attention with operands of 8 bits
  // The attention kernel that a context_ring overlaps with; row_flops and head_size are that kernel's.
  KernelClass overlapped_with = KernelClass::attention_forward;
  double overlapped_flops = 0;
  double overlapped_bytes = 0;
  double added_s = 0;                     // of sharding
  LayerPart part = LayerPart::attention;  // of a layer with experts; everything before and after its MLP is attention
  GraphModule module = GraphModule::attention;  // of a layer
  RecomputeModules recomputed_by;               // of a layer's forward: the modules of which any repeats it
  bool captured = false;                        // in a CUDA graph
  int group = 0;  // number of experts for each of which the host launches it; 0: it launches `count` kernels

  // Number of launches by an op's host thread: collectives of sharded parameters are launched ahead.
  int launched() const { return kind == KernelClass::sharding || captured ? 0 : group > 0 ? group : count; }
};

// Returns the kernels of one part of the model for F, I or W (B is I and W), on one of training.tp x training.cp
// devices, 16-bit. F and I include the tensor-parallel collectives: two all-reduces per layer each, or the same volume
// under sequence parallelism. Attention is causal: fused, it computes half of the new square and, in I, the scores a
// second time; unfused, it computes the full rectangle and moves the scores through memory. For experts see
// expert_kernels.h, for latent attention latent_kernels.h, for context parallelism context_kernels.h.
std::vector<KernelCall> layer_kernels(const Transformer& model, const Training& training, OpKind kind,
                                      const SliceShape& slice, LayerKind layer = LayerKind::dense);
std::vector<KernelCall> embedding_kernels(const Transformer& model, const Training& training, OpKind kind,
                                          const SliceShape& slice);
std::vector<KernelCall> head_kernels(const Transformer& model, const Training& training, OpKind kind,
                                     const SliceShape& slice);
// A layer of multi-token prediction, without its pass through the head: the embedding of the next tokens, the norms of
// both inputs, their projection, which is column-parallel and gathered, and a transformer layer of the last kind.
std::vector<KernelCall> mtp_kernels(const Transformer& model, const Training& training, OpKind kind,
                                    const SliceShape& slice);
// What full recomputation repeats of it: the projection and the layer (Megatron-LM's MultiTokenPredictionLayer).
std::vector<KernelCall> mtp_recomputed_kernels(const Transformer& model, const Training& training,
                                               const SliceShape& slice);

// What selective recomputation repeats of a layer's forward pass: its recompute_modules.
std::vector<KernelCall> recomputed_module_kernels(const Transformer& model, const Training& training,
                                                  const SliceShape& slice, LayerKind layer);

// The attention core.
std::vector<KernelCall> attention_kernels(const Transformer& model, const Training& training, OpKind kind,
                                          const SliceShape& slice);

}  // namespace sluice::model
