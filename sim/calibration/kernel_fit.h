#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/cost/gemm.h"
#include "model/input/csv.h"
#include "sim/calibration/log_fit.h"

namespace sluice::sim {

// A matrix product that somebody timed.
struct MeasuredProduct {
  GemmShape shape;
  double seconds = 0;
};

// A fused attention that somebody timed, causal: half the square is executed.
struct MeasuredAttention {
  AttentionWork shape;
  double bytes = 0;
  double seconds = 0;
};

// Kernels timed on one GPU type.
struct MeasuredKernels {
  std::string origin;  // the column `source` of its first row, or the table's file
  std::vector<MeasuredProduct> products;
  std::vector<MeasuredProduct> grouped;  // launched apart, an expert each
  std::vector<MeasuredAttention> attention;
};

// What a table of kernels is known by: columns gpu, m_tokens, k, n, median_ms (products), or gpu, op, shape, m, k, n,
// achieved_tflops (op matmul, products, group_matmul, those of experts; sdp_fwd and sdp_bwd, attention of the full
// square's FLOPs).
bool has_measured_kernels(const CsvTable& table);

// By name of the catalogue ("a100-80gb"), or as the table names the GPU where the catalogue does not hold it. Attention
// whose keys and values are of different sizes is left out: it runs kernels of its own.
// Throws InputError naming file, row and column.
std::map<std::string, MeasuredKernels> read_measured_kernels(const CsvTable& table);

// The constants of `gpu` that these times decide; the others stay. Needs at least 6 rows of a kind, otherwise the
// errors have 0 rows and that kind's constants stay too.
struct GpuFit {
  Gpu gpu;
  std::string origin;
  LogFit gemm;
  LogFit grouped;  // of group_s alone, with the other constants as the products have them
  LogFit attention_forward;
  LogFit attention_backward;
};
GpuFit fit_gpu(const Gpu& gpu, const MeasuredKernels& measured);

}  // namespace sluice::sim
