#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/cost/gemm.h"
#include "model/input/csv.h"
#include "sim/calibration/log_fit.h"

namespace sluice::sim {

// A measured GEMM.
struct MeasuredGemm {
  GemmShape shape;
  double seconds = 0;
  double cast_bytes = 0;      // of the cast of its first operand, which the time includes
  bool block_scales = false;  // of that cast
};

// A measured fused causal attention, which executes half of the square.
struct MeasuredAttention {
  AttentionWork shape;
  double bytes = 0;
  double seconds = 0;
  bool by_head = false;    // one of the kernels of its head size, with what launching it costs in a framework
  double other_bytes = 0;  // moved by kernels that the time of a framework includes: writes to a cache, row sums
};

// A layer of experts on one rank in a framework, forward: two grouped GEMMs of the same number of rows per expert, and
// kernels that choose experts, copy rows in order and back, and compute the activation.
struct MeasuredExperts {
  std::array<GemmShape, 2> gemms;
  double other_bytes = 0;
  double seconds = 0;
};

// Kernels timed on one GPU type.
struct MeasuredKernels {
  std::string origin;            // of GEMMs: the column `source` of the first row, or the table's file
  std::string attention_origin;  // the same of attention
  std::vector<MeasuredGemm> gemms;
  std::array<std::vector<MeasuredGemm>, 2> narrow;      // with operands of 8 and 4 bits
  std::vector<MeasuredGemm> grouped;                    // one GEMM per expert, launched separately
  std::array<std::vector<MeasuredExperts>, 4> experts;  // by kExpertsFormats
  std::vector<MeasuredAttention> attention;
};
// Of experts' operands: 16 bits, 8 with a scale per tensor or row, 8 with one per block, and 4.
inline constexpr std::array<const char*, 4> kExpertsFormats = {"16 bits", "8 bits", "8 bits in blocks", "4 bits"};

// Whether a table contains kernels: columns gpu, m_tokens, k, n, median_ms (GEMMs), gpu, dtype, m, n, k, best_us
// (GEMMs of inference frameworks in bf16, fp8, fp8_block or nvfp4, narrow ones with the cast of their first operand;
// rows with m below 1,024 are those of decoding, and are not read), or gpu, dtype, batch, seq, heads, kv_heads,
// head_dim, window, best_us (causal attention of inference frameworks, whole prompts in bf16 or fp8, which are written
// to a cache; prompts of fewer than 1,024 tokens in total are not read), or gpu, kernel, pass, sequences, tokens,
// heads, head_dim, value_head_dim, us (benchmarks/kernels/pytorch_rates.py: its attention), gpu, what, dtype, tokens,
// hidden, inter, topk, experts, ep, distribution, gated, best_us (layers of experts with balanced loads; those with
// fewer than 1,024 rows per expert, and other formats, are not read), or gpu, op, shape, m, k, n, achieved_tflops (op
// matmul: GEMMs; group_matmul: GEMMs of experts; sdp_fwd and sdp_bwd: causal attention, with the FLOPs of the full
// square, in the format of its shape: bf16, fp8 or mxfp8).
bool has_measured_kernels(const CsvTable& table);

// Reads kernels by GPU: its name in the catalogue ("a100-80gb"), or in the table if the catalogue does not have it.
// Throws InputError naming file, row and column.
std::map<std::string, MeasuredKernels> read_measured_kernels(const CsvTable& table);

// Adds those of another table.
void add(MeasuredKernels& kernels, const MeasuredKernels& more);

// Constants of `gpu` fitted to measured kernels. A kind of kernel with fewer than 6 rows keeps its constants, and its
// errors have 0 rows. Attention whose values are smaller than its keys is fitted only where the GPU's constants have no
// padded_values, as other kernels run it. overhead_keys is fitted to sequences of several lengths. Attention in
// frameworks gives the constants of single head sizes, for sizes of which there are enough rows, and of which no other
// is three times as fast: the slower one has no kernel, but falls back to something else.
struct GpuFit {
  Gpu gpu;
  std::string origin;
  std::string attention_origin;
  LogFit gemm;
  // Of narrow GEMMs, with 8 and 4 bits. Its last two constants are efficiencies of the casts, with a scale per tensor
  // or row and with one per block, which are not in `gpu`: training fuses casts.
  std::array<LogFit, 2> narrow;
  LogFit grouped;  // of group_s only, with the other constants from `gemm`
  // By format: the time of the grouped GEMMs relative to that of `gpu`, whose constants are those of single ones, the
  // memory efficiency of a layer's other kernels, and its fixed time. None are in `gpu`: training has other kernels.
  std::array<LogFit, 4> experts;
  std::array<std::array<LogFit, 2>, 2> attention;  // of 16 and 8 bits, forward and backward
  // The same in frameworks, by head size (mean over the GEMMs). The fourth constant is what launching costs there,
  // which is not in `gpu`.
  std::array<std::array<std::map<double, LogFit>, 2>, 2> heads;
};
GpuFit fit_gpu(const Gpu& gpu, const MeasuredKernels& measured);

}  // namespace sluice::sim
