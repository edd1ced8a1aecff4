#include "model/cost/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "model/cluster/cluster.h"

namespace sluice::model {
namespace {

struct Tile {
  double rows;
  double columns;
};
constexpr Tile kTiles[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128},
                           {256, 64},  {64, 256},  {64, 64},   {32, 128}, {32, 64}};
// The fraction of rounding up to whole waves that takes effect: tiles do not start synchronously.
constexpr double kRounding = 0.3;
constexpr int kMostParts = 8;  // parts of k
// Fused attention is compiled for heads of 32, 64, 96, ... elements; others run as the next larger
// (Dao-AILab/flash-attention, csrc).
constexpr double kHeadStep = 32;

// std::ceil is a call without SSE 4.1.
double round_up(double x) {
  const auto whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole + (x > whole ? 1 : 0);
}

// The constants of the kernel that runs heads of this size, with the size that it takes the time of.
HeadConstants kernel_of(const AttentionConstants& a, const AttentionWork& shape) {
  for (const HeadConstants& one : a.heads) {
    if (std::abs(one.head_size - shape.head_size) < 1e-6) return one;
  }
  double padded = kHeadStep * round_up(shape.head_size / kHeadStep);
  if (shape.tile_size > 0) padded = a.padded_values ? shape.tile_size : shape.head_size;
  return {.head_size = padded + a.softmax_size,
          .peak_fraction = a.peak_fraction,
          .tail_rows = a.tail_rows,
          .overhead_keys = a.overhead_keys};
}

}  // namespace

double KernelTime::seconds() const {
  const double compute = compute_s * compute_s;
  const double memory = memory_s * memory_s;
  return std::sqrt(std::sqrt(compute * compute + memory * memory)) + launch_s;
}

KernelTime gemm_time(const Gpu& gpu, const GemmShape& shape, double bytes) {
  const TileConstants g = gpu.tile_constants(shape.bits);
  const double sms = gpu.num_sms;
  const double rate = gpu.gemm_flops_per_s(shape.bits) / sms;
  const double bandwidth = gpu.memory_bandwidth_bytes_per_s * g.memory_efficiency;
  const double write_s = g.exposed_write * shape.result_bytes * sms / gpu.memory_bandwidth_bytes_per_s;
  // One element of the result, without and with its part of the operands.
  const double element_s = 2 * shape.k / rate;
  const double added_s = 8 * shape.batch * shape.m * shape.n / bandwidth;  // fp32, written and read, per part of k
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles = shape.batch * round_up(shape.m / tile.rows) * round_up(shape.n / tile.columns);
    const double elements = tile.rows * tile.columns;
    const double arithmetic_s = elements * element_s * (1 + g.operand_edge * (1 / tile.rows + 1 / tile.columns));
    const double result_s = elements * write_s;
    const int most = tiles < sms ? kMostParts : 1;
    for (int parts = 1; parts <= most; parts *= 2) {
      const double filled = tiles * parts / sms;
      const double waves = (1 - kRounding) * std::max(1.0, filled) + kRounding * round_up(filled);
      const double seconds = waves * (arithmetic_s / parts + result_s) + (parts > 1 ? parts * added_s : 0);
      best = std::min(best, seconds);
    }
  }
  return {.compute_s = best,
          .memory_s = bytes / bandwidth,
          .launch_s = g.launch_s + (shape.apart ? shape.batch * gpu.gemm.group_s : 0)};
}

KernelTime attention_time(const Gpu& gpu, const AttentionWork& shape, double bytes) {
  const AttentionConstants& a = gpu.attention(shape.backward, shape.narrow);
  const HeadConstants head = kernel_of(a, shape);
  const double flops = shape.flops + head.tail_rows * gpu.num_sms * shape.row_flops +
                       (head.overhead_keys + (shape.windowed ? head.window_keys : 0)) * shape.key_flops;
  const double executed = flops * head.head_size / shape.head_size;
  return {.compute_s = executed / (gpu.peak_of(shape.narrow ? 8 : 16) * head.peak_fraction),
          .memory_s = bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency),
          .launch_s = gpu.kernel_s};
}

}  // namespace sluice::model
