#pragma once

#include "model/namespaces.h"

namespace sluice::model {

struct Gpu;

// `batch` products [m, k] x [k, n] of 16-bit operands.
struct GemmShape {
  double m = 0;
  double n = 0;
  double k = 0;
  double batch = 1;
  double result_bytes = 2;  // moved for an element of the result: 2 written, 8 where fp32 is read, added to and written

  bool apart = false;  // the products are launched one after another, as those of experts are

  double flops() const { return 2 * batch * m * n * k; }
  double bytes() const { return batch * (2 * (m * k + k * n) + result_bytes * m * n); }
};

// What a kernel's time is made of, in seconds. Arithmetic and memory traffic overlap: seconds() is the fourth root of
// the sum of their fourth powers, a maximum without its corner, and the launch comes on top.
struct KernelTime {
  double compute_s = 0;
  double memory_s = 0;
  double launch_s = 0;

  double seconds() const;
};

// The library's kernel: the result is cut into tiles, each on one multiprocessor; the fastest of ten tile sizes.
//   rate       peak / SMs x peak_fraction / (1 + operand_edge (1/tile rows + 1/tile columns)): small tiles load more
//   tile       2 x rows x columns x k / rate, and exposed_write of its result at the memory's share of one SM
//   waves      tiles / SMs, at least 1, 0.3 of it rounded up: later tiles start as earlier ones end
// Where the tiles do not fill the GPU, k is cut in 2, 4 or 8 and the parts are added through memory in fp32.
// Products that are launched apart take group_s more each: one's tiles fill what the last leaves free, but not at once.
// `bytes` go at memory_efficiency of the bandwidth. The time grows with m, n, k and batch, except that cutting k counts
// only in whole parts. m, n, k and batch are above 0.
KernelTime gemm_time(const Gpu& gpu, const GemmShape& shape, double bytes);

// Fused attention that executes `flops`, on tiles of query rows. Of causal attention the last tiles are the longest:
// the kernel takes tail_rows more rows on every multiprocessor, where one row of one head takes `row_flops` (over all
// the keys it sees). Heads are padded to multiples of 32 elements, and exponentials take as long as softmax_size more.
struct AttentionShape {
  double flops = 0;
  double row_flops = 0;
  double head_size = 128;  // of the products, in the mean
  double tile_size = 0;    // of a head in the kernel's tiles; 0: head_size, rounded up to what tiles are made of
  bool backward = false;
};
KernelTime attention_time(const Gpu& gpu, const AttentionShape& shape, double bytes);

}  // namespace sluice::model
