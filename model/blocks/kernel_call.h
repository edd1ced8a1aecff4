// Public header.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/workload/layer_part.h"
#include "model/workload/training.h"

namespace sluice::model {

// What a GEMM of a linear layer computes, which determines the layout of its operands (row-major: [m, k] and [n, k],
// [m, k] and [k, n], [k, m] and [k, n]).
enum class GemmPass : std::uint8_t { forward, input_gradient, weight_gradient };

// A batch of `batch` GEMMs [m, k] x [k, n].
struct GemmShape {
  double m = 0;
  double n = 0;
  double k = 0;
  double batch = 1;
  double result_bytes = 2;  // bytes moved per element of the result: 2 if written, 8 if an fp32 sum is read and written

  bool apart = false;                 // the GEMMs are launched one after another, as for experts
  bool fused = false;                 // one kernel for all experts, with what follows them
  int bits = 16;                      // of an operand's element: 16, 8 or 4
  double operand_bytes = 2;           // of an operand's element, with its part of the scales
  GemmPass pass = GemmPass::forward;  // does not change the predicted time

  double flops() const { return 2 * batch * m * n * k; }
  double bytes() const { return batch * (operand_bytes * (m * k + k * n) + result_bytes * m * n); }
};

// The tensors of a fused causal attention on one device. `sequences` 0: unknown.
struct AttentionShape {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;   // queries per sequence
  std::int64_t context = 0;  // keys before the first query
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_head_dim = 0;

  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;  // NOLINT(modernize-use-nullptr)
};

// The head size of the tiles of a fused attention whose values are smaller than its keys, of `key_size` elements.
double padded_tile(double key_size, bool backward);

// The class of a kernel, which determines how it is priced.
enum class KernelClass : std::uint8_t {
  gemm,               // gemm_time
  attention_forward,  // fused attention: attention_time
  attention_backward,
  memory,      // bytes only
  rated,       // bytes, or FLOPs at `fraction` of the GPU's peak in 16 bits (indexers), or at `multiprocessor_rate`
  cast,        // the same, to operands of a narrow format
  all_reduce,  // over the tensor-parallel group; bytes of the whole tensor
  all_gather,
  scatter_gather,      // a reduce-scatter and an all-gather: an all-reduce with sequence parallelism
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
  bool linear = false;   // a GEMM of a linear layer of attention, an MLP or experts
  GemmShape gemm = {};   // of a gemm, or of the one that an overlapped_gather overlaps with
  double row_flops = 0;  // fused attention: per query row and head
  double key_flops = 0;  // fused attention: of one key, for all rows of all heads
  double head_size = 0;  // fused attention: mean over the GEMMs
  double tile_size = 0;  // fused attention: see AttentionWork
  // Fused attention, or a memory kernel that a measurement of this attention backward includes.
  AttentionShape attention = {};
  bool narrow_attention = false;  // fused attention with operands of 8 bits
  bool windowed = false;          // fused attention whose queries attend to fewer keys than precede them
  // The attention kernel that a context_ring overlaps with; row_flops and head_size are that kernel's.
  KernelClass overlapped_with = KernelClass::attention_forward;
  double overlapped_flops = 0;
  double overlapped_bytes = 0;
  double added_s = 0;                     // of sharding
  double tokens = 0;                      // of an expert_all_to_all: those that the busiest rank dispatches
  bool combines = false;                  // of an expert_all_to_all: results return to their tokens, which add them
  double fraction = 0;                    // of a rated kernel
  double multiprocessor_rate = 0;         // of a rated kernel instead: FLOP/s of each multiprocessor
  LayerPart part = LayerPart::attention;  // of a layer with experts; everything before and after its MLP is attention
  GraphModule module = GraphModule::attention;  // of a layer
  RecomputeModules recomputed_by;               // of a layer's forward: the modules of which any repeats it
  bool captured = false;                        // in a CUDA graph
  int group = 0;  // number of experts for each of which the host launches it; 0: it launches `count` kernels

  // Whether an op's host thread launches it apart: collectives of sharded parameters are launched ahead.
  bool launched() const { return kind != KernelClass::sharding && !captured; }
};

using Kernels = std::vector<KernelCall>;

}  // namespace sluice::model
