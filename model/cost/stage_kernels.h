#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/cost/gemm.h"
#include "model/schedule/op.h"
#include "model/workload/training.h"

namespace sluice::model {

// What bounds a kernel, and so how it is priced.
enum class KernelClass : std::uint8_t {
  gemm,               // gemm_time
  attention_forward,  // fused attention: attention_time
  attention_backward,
  memory,      // bytes alone
  all_reduce,  // over the tensor-parallel group; bytes of the whole tensor
  all_gather,
  expert_all_to_all,   // bytes of what one rank of the group starts with
  context_all_to_all,  // the same
  context_ring,        // bytes to the next rank while this attention kernel runs: what it takes longer
};

constexpr bool is_collective(KernelClass kind) { return kind >= KernelClass::all_reduce; }

// `count` kernels in a row, each with these FLOPs and bytes, on one device.
struct KernelCall {
  std::string_view name;
  KernelClass kind = KernelClass::memory;
  double flops = 0;
  double bytes = 0;  // moved through the GPU's memory, or reduced
  int count = 1;
  GemmShape gemm = {};   // of a gemm
  double row_flops = 0;  // fused attention: of one query row of one head
  double head_size = 0;  // fused attention: of the products, in the mean
  double tile_size = 0;  // fused attention: as AttentionShape has it
  // The attention kernel that a context_ring runs beside; row_flops and head_size are its own.
  KernelClass hidden_behind = KernelClass::attention_forward;
  double hidden_flops = 0;
  double hidden_bytes = 0;
};

// One slice of one microbatch: `sequences` of `tokens` each, after `context` earlier tokens.
struct SliceSize {
  int sequences = 1;
  std::int64_t tokens = 1;
  std::int64_t context = 0;
};

// The kernels of one part of the model for F, I or W (B is I and W), on one of training.tp x training.cp devices,
// 16-bit. F and I hold the tensor-parallel collectives: two all-reduces a layer each, the same volume under sequence
// parallelism. Attention is causal: fused, it executes half the new square and, in I, the scores a second time;
// unfused, it runs the rectangle and moves the scores through memory.
// Of experts see expert_kernels.h, of latent attention latent_kernels.h, of context parallelism context_kernels.h.
std::vector<KernelCall> layer_kernels(const Transformer& model, const Training& training, OpKind kind,
                                      const SliceSize& slice, LayerKind layer = LayerKind::dense);
std::vector<KernelCall> embedding_kernels(const Transformer& model, const Training& training, OpKind kind,
                                          const SliceSize& slice);
std::vector<KernelCall> head_kernels(const Transformer& model, const Training& training, OpKind kind,
                                     const SliceSize& slice);

// The attention core alone, forward: what selective recomputation repeats.
std::vector<KernelCall> attention_kernels(const Transformer& model, const Training& training, OpKind kind,
                                          const SliceSize& slice);

}  // namespace sluice::model
