#pragma once

#include <cstdint>
#include <string_view>

#include "model/blocks/block.h"

// Helpers for the kernels of blocks.
namespace sluice::model::kernel_parts {

Sizes sizes_of(int hidden, bool dropout, const Training& training, const SliceShape& slice);

KernelCall product(std::string_view name, const GemmShape& shape, double bytes, int count = 1);
// A GEMM [rows, k] x [k, n], 16-bit in and out.
KernelCall gemm(std::string_view name, double rows, double k, double n, GemmPass pass = GemmPass::forward);
// The weight gradient [k, n] of that GEMM, accumulated into the gradient, which is read and written.
KernelCall weight_gemm(std::string_view name, double rows, double k, double n, int gradient_bytes);
// GEMMs of a linear layer [rows, k] x [k, n] in the training's precision: forward, with the cast of its input; input
// gradient [rows, n] x [n, k], with the cast of its output gradient; weight gradient [k, n], whose operands are cast
// already.
// `gathered`: of a norm, or of a sum of gradients, on the rank's own rows, which sequence parallelism gathers. On GPUs
// that multiply narrow operands in any layout they are cast before that; others transpose all of them after it.
enum class Source : std::uint8_t { gathered, norm, other };
void add_linear(Kernels& out, const Training& training, std::string_view name, double rows, double k, double n,
                Source source = Source::other);
void add_linear_gradient(Kernels& out, const Training& training, std::string_view name, double rows, double n, double k,
                         Source source = Source::other);
KernelCall linear_weight(const Training& training, std::string_view name, double rows, double k, double n);
// The same for GEMMs of any shape: with its operands in the training's precision, and the cast of `elements`.
KernelCall narrow_product(const Training& training, std::string_view name, GemmShape shape);
void add_cast(Kernels& out, std::string_view name, const Cast& cast, double elements);
// The tensor-parallel all-reduce of rows x hidden in 16 bits after or before linear layers: under sequence parallelism
// a reduce-scatter, and an all-gather of what is cast already.
KernelCall layer_reduce(std::string_view name, const Training& training, const Sizes& s);
// The tensor-parallel communication before and after linear layers in one direction: an all-reduce, or under sequence
// parallelism the all-gather that the GEMM `gathered` needs and the reduce-scatter of what `reduced` computes, which
// tp_comm_overlap hides behind them.
void add_tensor_collectives(Kernels& out, const Training& training, const Sizes& s, std::string_view name,
                            const GemmShape& gathered, const GemmShape& reduced);
// `bytes` in total, moved by `count` kernels.
KernelCall memory(std::string_view name, double bytes, int count = 1);
// One kernel of `flops` at `fraction` of the GPU's peak in 16 bits.
KernelCall rated(std::string_view name, double flops, double fraction, double bytes);
// One kernel of `flops`, of which each multiprocessor computes `rate` per second: kernels that use tensor cores little
// take as long on GPUs whose tensor cores are faster.
KernelCall rated_by_multiprocessor(std::string_view name, double flops, double rate, double bytes);
// A collective over the tensor-parallel group; `bytes` of the whole tensor.
KernelCall all_reduce(std::string_view name, double bytes);
KernelCall all_gather(std::string_view name, double bytes);

void append(Kernels& out, const Kernels& more);
// Adds modules to recomputed_by, of all kernels or from `first` on.
void repeat_with(RecomputeModules modules, Kernels& out, std::size_t first = 0);

}  // namespace sluice::model::kernel_parts
