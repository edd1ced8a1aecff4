// Public header.
#pragma once

#include "model/blocks/kernel_call.h"

namespace sluice::model {

struct Gpu;

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
//   rate       peak / SMs x peak_fraction, both of the operands' format, / (1 + operand_edge (1/tile rows + 1/tile
//              columns)): small tiles load more; elements of half the size load and multiply in half the time
//   tile       2 x rows x columns x k / rate, and exposed_write of its result at the memory's share of one SM
//   waves      tiles / SMs, at least 1, 0.3 of it rounded up: later tiles start as earlier ones end
// Where the tiles do not fill the GPU, k is split in 2, 4 or 8 and the parts are added through memory in fp32. GEMMs
// that are launched separately take group_s more each: the tiles of one fill what the previous one leaves free, but not
// immediately. `bytes` are moved at memory_efficiency of the bandwidth. The time increases with m, n, k and batch,
// except that k is split into whole parts only. m, n, k and batch must be above 0, and the GPU must have the format.
KernelTime gemm_time(const Gpu& gpu, const GemmShape& shape, double bytes);

// Fused attention that executes `flops`, on tiles of query rows. In causal attention the last tiles are the longest:
// the kernel takes the time of tail_rows more rows on every multiprocessor, where one row of one head takes `row_flops`
// (over all keys that it attends to). Every row takes the time of overhead_keys more keys, where one key takes
// `key_flops` (over all rows of all heads), and with a window that of window_keys more. Heads are padded to multiples
// of 32 elements, and exponentials take as long as softmax_size more elements, except where the GPU has constants of
// the kernel for this head size. The GPU must have attention with operands of 8 bits where they are narrow.
struct AttentionWork {
  double flops = 0;
  double row_flops = 0;
  double key_flops = 0;
  double head_size = 128;  // mean over the GEMMs
  double tile_size = 0;    // head size of tiles padded to the size of the keys; 0: head_size, rounded up
  bool backward = false;
  bool narrow = false;    // operands of 8 bits
  bool windowed = false;  // queries attend to fewer keys than precede them
};
KernelTime attention_time(const Gpu& gpu, const AttentionWork& shape, double bytes);

}  // namespace sluice::model
