#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/cost/stage_kernels.h"

// Helpers for the kernel tables of a layer's parts.
namespace sluice::model::kernel_parts {

using Kernels = std::vector<KernelCall>;

// Sizes of one slice on one device, in elements.
struct Sizes {
  double rows;    // tokens of all sequences, of this context-parallel rank
  double hidden;  // elements per row
  double query;   // per row, on this device
  double output;  // of attention; equal to query except in latent attention
  double key_value;
  double qkv;
  double mlp;
  double mlp_in;  // twice mlp when gated
  double split;   // rows of norms, dropout and residuals: split under sequence parallelism
  double scores;  // elements of the full rectangle, all heads on this device
  double mask;    // bytes of a dropout mask element, or 0
};
Sizes sizes_of(const Transformer& model, const Training& training, const SliceShape& slice);

KernelCall product(std::string_view name, const GemmShape& shape, double bytes, int count = 1);
// A GEMM [rows, k] x [k, n], 16-bit in and out.
KernelCall gemm(std::string_view name, double rows, double k, double n, GemmPass pass = GemmPass::forward);
// The weight gradient [k, n] of that GEMM, accumulated into the gradient, which is read and written.
KernelCall weight_gemm(std::string_view name, double rows, double k, double n, int gradient_bytes);
// GEMMs of a linear layer [rows, k] x [k, n] in the training's precision: forward, with the cast of its input; input
// gradient [rows, n] x [n, k], with the cast of its output gradient; weight gradient [k, n], whose operands are cast
// already.
enum class Source : std::uint8_t { norm, other };
void add_linear(Kernels& out, const Training& training, std::string_view name, double rows, double k, double n,
                Source source = Source::other);
void add_linear_gradient(Kernels& out, const Training& training, std::string_view name, double rows, double n,
                         double k);
KernelCall linear_weight(const Training& training, std::string_view name, double rows, double k, double n);
// The same for GEMMs of any shape: with its operands in the training's precision, and the cast of `elements`.
KernelCall narrow_product(const Training& training, std::string_view name, GemmShape shape);
void add_cast(Kernels& out, std::string_view name, const Cast& cast, double elements);
// The bytes of a tensor-parallel all-reduce of rows x hidden in 16 bits; under sequence parallelism the all-gather, one
// half of it, moves what is cast already.
double reduced_bytes(const Training& training, const Sizes& s);
// The tensor-parallel communication before and after linear layers in one direction: an all-reduce, or under sequence
// parallelism the all-gather that the GEMM `gathered` needs and the reduce-scatter of what `reduced` computes, which
// tp_comm_overlap hides behind them.
void add_tensor_collectives(Kernels& out, const Training& training, const Sizes& s, std::string_view name,
                            const GemmShape& gathered, const GemmShape& reduced);
// `bytes` in total, moved by `count` kernels.
KernelCall memory(std::string_view name, double bytes, int count = 1);
// A collective over the tensor-parallel group; `bytes` of the whole tensor.
KernelCall all_reduce(std::string_view name, double bytes);
KernelCall all_gather(std::string_view name, double bytes);

// Fused causal attention, F or I, for a fraction `share` of all heads and tokens; reads `cache` elements of keys and
// values. The forward has two GEMMs of the rectangle's size, the backward five. Where values have a smaller head than
// keys and the GPU's constants have padded_values, the forward kernel's tiles are as wide as the keys', and the
// backward kernel's as the next power of two: with heads of 192 and 128 on a B200 (16 to 128 of them, 4,096 tokens) the
// prediction is 11 % below to 33 % above the measured forward, and 4 % below to 9 % above the backward; for the forward
// of longer sequences up to 36 % below (MooreThreads/SimuMax configs/system/b200_bf16_ceperm.json, Apache-2.0).
KernelCall fused_attention(const Transformer& model, const Training& training, OpKind kind, const SliceShape& slice,
                           const Sizes& s, double cache, double share);

// The casts before fused attention with operands of 8 bits: F's queries, keys and values, I's output gradient.
void add_attention_casts(Kernels& out, const Training& training, OpKind kind, const Sizes& s);

// The sums over the rows of the output times its gradient, before the backward kernel `attention`.
KernelCall row_sums(const KernelCall& attention, const Sizes& s);

void append(Kernels& out, const Kernels& more);
// Adds modules to recomputed_by, of all kernels or from `first` on.
void repeat_with(RecomputeModules modules, Kernels& out, std::size_t first = 0);

}  // namespace sluice::model::kernel_parts
