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
};

// Kernels timed on one GPU type.
struct MeasuredKernels {
  std::string origin;  // the column `source` of its first row, or the table's file
  std::vector<MeasuredGemm> gemms;
  std::array<std::vector<MeasuredGemm>, 2> narrow;  // with operands of 8 and 4 bits
  std::vector<MeasuredGemm> grouped;                // one GEMM per expert, launched separately
  std::vector<MeasuredAttention> attention;
};

// Whether a table contains kernels: columns gpu, m_tokens, k, n, median_ms (GEMMs), gpu, dtype, m, n, k, best_us
// (GEMMs of inference frameworks in bf16, fp8, fp8_block or nvfp4, narrow ones with the cast of their first operand;
// rows with m below 1,024 are those of decoding, and are not read), or gpu, op, shape, m, k, n,
// achieved_tflops (op matmul: GEMMs; group_matmul: GEMMs of experts; sdp_fwd and sdp_bwd: causal attention, with the
// FLOPs of the full square, in the format of its shape: bf16, fp8 or mxfp8).
bool has_measured_kernels(const CsvTable& table);

// Reads kernels by GPU: its name in the catalogue ("a100-80gb"), or in the table if the catalogue does not have it.
// Throws InputError naming file, row and column.
std::map<std::string, MeasuredKernels> read_measured_kernels(const CsvTable& table);

// Constants of `gpu` fitted to measured kernels. A kind of kernel with fewer than 6 rows keeps its constants, and its
// errors have 0 rows. Attention whose values are smaller than its keys is fitted only where the GPU's constants have no
// padded_values, as other kernels run it. overhead_keys is fitted to sequences of several lengths.
struct GpuFit {
  Gpu gpu;
  std::string origin;
  LogFit gemm;
  // Of narrow GEMMs, with 8 and 4 bits. Its last two constants are efficiencies of the casts, with a scale per tensor
  // or row and with one per block, which are not in `gpu`: training fuses casts.
  std::array<LogFit, 2> narrow;
  LogFit grouped;                                  // of group_s only, with the other constants from `gemm`
  std::array<std::array<LogFit, 2>, 2> attention;  // of 16 and 8 bits, forward and backward
};
GpuFit fit_gpu(const Gpu& gpu, const MeasuredKernels& measured);

}  // namespace sluice::sim
