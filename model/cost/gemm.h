#pragma once

#include "model/namespaces.h"

namespace sluice::model {

struct Gpu;

// A batch of `batch` GEMMs [m, k] x [k, n] with 16-bit operands.
struct GemmShape {
  double m = 0;
  double n = 0;
  double k = 0;
  double batch = 1;
  double result_bytes = 2;  // bytes moved per element of the result: 2 if written, 8 if an fp32 sum is read and written

  bool apart = false;  // the GEMMs are launched one after another, as for experts

  double flops() const { return 2 * batch * m * n * k; }
  double bytes() const { return batch * (2 * (m * k + k * n) + result_bytes * m * n); }
};

// The components of a kernel's time, in seconds. Arithmetic and memory traffic overlap: seconds() is the fourth root of
// the sum of their fourth powers, a smooth maximum, plus the launch.
struct KernelTime {
  double compute_s = 0;
  double memory_s = 0;
  double launch_s = 0;

  double seconds() const;
};

// Time of the library's kernel: the result is cut into tiles, each on one multiprocessor; the fastest of ten tile
// sizes.
//   rate       peak / SMs x peak_fraction / (1 + operand_edge (1/tile rows + 1/tile columns)): small tiles load more
//   tile       2 x rows x columns x k / rate, and exposed_write of its result at the memory's share of one SM
//   waves      tiles / SMs, at least 1, 0.3 of it rounded up: later tiles start as earlier ones end
// Where the tiles do not fill the GPU, k is split in 2, 4 or 8 and the parts are added through memory in fp32. GEMMs
// that are launched separately take group_s more each: the tiles of one fill what the previous one leaves free, but not
// immediately. `bytes` are moved at memory_efficiency of the bandwidth. The time increases with m, n, k and batch,
// except that k is split into whole parts only. m, n, k and batch must be above 0.
KernelTime gemm_time(const Gpu& gpu, const GemmShape& shape, double bytes);

// Fused attention that executes `flops`, on tiles of query rows. In causal attention the last tiles are the longest:
// the kernel takes the time of tail_rows more rows on every multiprocessor, where one row of one head takes `row_flops`
// (over all keys that it attends to). Heads are padded to multiples of 32 elements, and exponentials take as long as
// softmax_size more elements.
struct AttentionWork {
  double flops = 0;
  double row_flops = 0;
  double head_size = 128;  // mean over the GEMMs
  double tile_size = 0;    // head size of the kernel's tiles; 0: head_size, rounded up to a supported size
  bool backward = false;
};
KernelTime attention_time(const Gpu& gpu, const AttentionWork& shape, double bytes);

}  // namespace sluice::model
