#pragma once

#include <string_view>
#include <vector>

#include "model/cost/stage_kernels.h"

// What the kernel tables of a layer's parts are written with.
namespace sluice::model::kernel_parts {

using Kernels = std::vector<KernelCall>;

// Sizes of one slice on one device, in elements.
struct Sizes {
  double rows;    // tokens of all sequences, of this context-parallel rank
  double hidden;  // elements of a row
  double query;   // of a row, on this device
  double output;  // of attention; = query but for latent attention
  double key_value;
  double qkv;
  double mlp;
  double mlp_in;  // twice mlp when gated
  double split;   // rows that norms, dropout and residuals see: split under sequence parallelism
  double scores;  // elements of the rectangle, all heads on this device
  double mask;    // bytes of a dropout mask element, or 0
};
Sizes sizes_of(const Transformer& model, const Training& training, const SliceSize& slice);

KernelCall product(std::string_view name, const GemmShape& shape, double bytes, int count = 1);
// [rows, k] x [k, n], 16-bit in and out.
KernelCall gemm(std::string_view name, double rows, double k, double n);
// The weight gradient [k, n] of that product, added to the gradient it reads and writes.
KernelCall weight_gemm(std::string_view name, double rows, double k, double n, int gradient_bytes);
// `bytes` in all, moved by `count` kernels.
KernelCall memory(std::string_view name, double bytes, int count = 1);
// Over the tensor-parallel group; bytes of the whole tensor.
KernelCall all_reduce(std::string_view name, double bytes);
KernelCall all_gather(std::string_view name, double bytes);

// Fused causal attention, F or I, `share` of that of all heads and tokens; `cache` elements of keys and values are
// read. Forward two products of the rectangle's size, back five. Where values have a smaller head than keys, the
// forward kernel's tiles are as wide as the keys', and the backward kernel's as the next power of two: with heads of
// 192 and 128 on a B200 (16 to 128 of them, 4,096 tokens) that is 11 % less to 33 % more than measured forward, and
// 4 % less to 9 % more back; forward on longer sequences up to 36 % less (MooreThreads/SimuMax
// configs/system/b200_bf16_ceperm.json, Apache-2.0).
KernelCall fused_attention(const Transformer& model, OpKind kind, const SliceSize& slice, const Sizes& s, double cache,
                           double share);

void append(Kernels& out, const Kernels& more);

}  // namespace sluice::model::kernel_parts
