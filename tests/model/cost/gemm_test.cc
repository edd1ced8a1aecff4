#include "model/cost/gemm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/cluster/cluster.h"

namespace sluice::test {
namespace {

constexpr const char* kGpus[] = {"v100-32gb", "a100-80gb", "a100-pcie-80gb", "h100-80gb", "b200-180gb"};
constexpr double kSizes[] = {1, 3, 64, 100, 128, 129, 500, 1024, 4096, 4097, 12288, 50000};

double seconds(const Gpu& gpu, const GemmShape& shape) { return gemm_time(gpu, shape, shape.bytes()).seconds(); }

// 100 multiprocessors of 1 TFLOP/s, no overheads but those a test adds.
Gpu plain() {
  Gpu gpu;
  gpu.peak_flops_per_s = 100e12;
  gpu.num_sms = 100;
  gpu.memory_bandwidth_bytes_per_s = 1e12;
  return gpu;
}

TEST(Gemm, GrowsWithEverySizeAndStaysBelowPeakAndBandwidth) {
  for (const char* name : kGpus) {
    const Gpu gpu = catalogue_gpu(name);
    for (const double a : kSizes) {
      for (const double b : kSizes) {
        double before_m = 0, before_n = 0, before_k = 0, before_batch = 0;
        for (const double x : kSizes) {
          const GemmShape m{.m = x, .n = a, .k = b};
          const GemmShape n{.m = a, .n = x, .k = b};
          const GemmShape k{.m = a, .n = b, .k = x};
          const GemmShape batch{.m = a, .n = b, .k = 64, .batch = x};
          for (const GemmShape& shape : {m, n, k, batch}) {
            const double now = seconds(gpu, shape);
            ASSERT_TRUE(std::isfinite(now));
            EXPECT_GT(now * gpu.peak_flops_per_s, shape.flops()) << name << a << ' ' << b << ' ' << x;
            EXPECT_GT(now * gpu.memory_bandwidth_bytes_per_s, shape.bytes()) << name << a << ' ' << b << ' ' << x;
          }
          EXPECT_GE(seconds(gpu, m), before_m) << name << a << ' ' << b << ' ' << x;
          EXPECT_GE(seconds(gpu, n), before_n) << name << a << ' ' << b << ' ' << x;
          EXPECT_GT(seconds(gpu, k), before_k) << name << a << ' ' << b << ' ' << x;
          EXPECT_GE(seconds(gpu, batch), before_batch) << name << a << ' ' << b << ' ' << x;
          before_m = seconds(gpu, m);
          before_n = seconds(gpu, n);
          before_k = seconds(gpu, k);
          before_batch = seconds(gpu, batch);
        }
      }
    }
  }
}

TEST(Gemm, OfASkinnyShapeIsBoundByMemory) {
  // One row: 2 FLOPs for each 2 bytes of the matrix. The arithmetic, even on tiles of 32 rows, takes less than half as
  // long, and (1 + 1/16)^(1/4) is 1.015.
  for (const char* name : kGpus) {
    const Gpu gpu = catalogue_gpu(name);
    const GemmShape shape{.m = 1, .n = 16384, .k = 16384};
    const double bytes_s = shape.bytes() / (gpu.memory_bandwidth_bytes_per_s * gpu.gemm.memory_efficiency);
    EXPECT_NEAR(seconds(gpu, shape) - gpu.gemm.launch_s, bytes_s, 0.02 * bytes_s) << name;
  }
}

TEST(Gemm, IncreasesWithWavesOfTiles) {
  // 10 x 10 tiles of 128 x 128 and k = 1000 on 100 SMs of 1 TFLOP/s: 2 x 128 x 128 x 1000 / 1e12 s.
  const Gpu gpu = plain();
  const auto compute_s = [&](double m) { return gemm_time(gpu, {.m = m, .n = 1280, .k = 1000}, 0).seconds(); };
  const double wave = 2.0 * 128 * 128 * 1000 / 1e12;
  EXPECT_DOUBLE_EQ(compute_s(1280), wave);
  EXPECT_DOUBLE_EQ(compute_s(2560), 2 * wave);
  // 32 rows more: 20 tiles of 32 x 64, an eighth as large, none of which fits in a wave of 100 of 128 x 128. With
  // tiles of 32 x 128, 410 are 4.1 waves of a quarter, 0.3 of the rounding to 5: 0.7 x 4.1 + 0.3 x 5 = 4.37 of them.
  // With 32 x 64, 820 are 8.2 of an eighth: 0.7 x 8.2 + 0.3 x 9 = 8.44, less. 64 x 64 has 21 x 20 = 420 as well:
  // 4.2 waves, 4.44 of a quarter.
  EXPECT_DOUBLE_EQ(compute_s(1312), 8.44 / 8 * wave);
}

TEST(Gemm, TakesLongerForSmallTilesAndTheirResults) {
  Gpu gpu = plain();
  gpu.gemm.operand_edge = 32;
  gpu.gemm.exposed_write = 0.5;
  gpu.gemm.launch_s = 3e-6;
  // A whole wave of 256 x 128: rate / (1 + 32/256 + 32/128) and 0.5 x 2 bytes x 256 x 128 at 1e12 / 100 bytes/s; the
  // same number of 128 x 128 would be two waves at 1 + 32/64.
  const double tile = 256 * 128;
  EXPECT_NEAR(gemm_time(gpu, {.m = 2560, .n = 1280, .k = 1024}, 0).seconds(),
              2 * tile * 1024 / 1e12 * 1.375 + 0.5 * 2 * tile / 1e10 + 3e-6, 1e-12);
}

TEST(Gemm, SplitsKWhereTilesAreFew) {
  // Eight tiles of 32 x 64 are fastest; eight parts of k keep 64 SMs busy. Adding them is too little to see.
  Gpu gpu = plain();
  gpu.memory_bandwidth_bytes_per_s = 1e15;
  const GemmShape one{.m = 128, .n = 128, .k = 1 << 20};
  const double alone = 2.0 * 32 * 64 * one.k / 1e12;
  EXPECT_NEAR(gemm_time(gpu, one, 0).seconds(), alone / 8, 1e-3 * alone);
}

TEST(Gemm, OfManySmallGemmsFillsTheGpu) {
  const Gpu gpu = catalogue_gpu("a100-80gb");
  const GemmShape one{.m = 512, .n = 512, .k = 128};
  GemmShape many = one;
  many.batch = 64;
  EXPECT_LT(seconds(gpu, many), 32 * seconds(gpu, one));
}

TEST(Gemm, LaunchedSeparatelyTakesMoreTimeEach) {
  Gpu gpu = catalogue_gpu("b200-180gb");
  gpu.gemm.group_s = 2e-6;
  const GemmShape together{.m = 300, .n = 2048, .k = 1024, .batch = 16};
  GemmShape apart = together;
  apart.apart = true;
  EXPECT_NEAR(seconds(gpu, apart), seconds(gpu, together) + 16 * 2e-6, 1e-12);
}

TEST(Gemm, AddingToAWiderResultTakesLonger) {
  for (const char* name : kGpus) {
    const Gpu gpu = catalogue_gpu(name);
    const GemmShape shape{.m = 4096, .n = 4096, .k = 4096};
    GemmShape added = shape;
    added.result_bytes = 8;
    EXPECT_GT(seconds(gpu, added), seconds(gpu, shape)) << name;
  }
}

TEST(Attention, AddsItsTailOnEveryMultiprocessor) {
  Gpu gpu = plain();
  gpu.kernel_s = 1e-6;
  gpu.attention_forward = {.peak_fraction = 0.5, .tail_rows = 10, .softmax_size = 64};
  // (1e12 + 10 rows x 100 SMs x 1e9) FLOPs, times 1 + 64/64, at half of 100 TFLOP/s.
  EXPECT_NEAR(attention_time(gpu, {.flops = 1e12, .row_flops = 1e9, .head_size = 64}, 0).seconds(),
              2 * 2e12 / 50e12 + 1e-6, 1e-12);
  // Twice the head size in half as many heads does the same FLOPs in less time.
  EXPECT_LT(attention_time(gpu, {.flops = 1e12, .row_flops = 1e9, .head_size = 128}, 0).seconds(),
            attention_time(gpu, {.flops = 1e12, .row_flops = 1e9, .head_size = 64}, 0).seconds());
  // Bytes alone.
  EXPECT_NEAR(attention_time(gpu, {.flops = 1, .row_flops = 1}, 1e12).seconds(), 1 + 1e-6, 1e-9);
}

TEST(Attention, AddsKeysToEveryRow) {
  Gpu gpu = plain();
  gpu.attention_forward = {.peak_fraction = 0.5, .overhead_keys = 100};
  EXPECT_NEAR(attention_time(gpu, {.flops = 1e12, .key_flops = 1e9}, 0).seconds(), 1.1e12 / 50e12, 1e-12);
}

TEST(Attention, PadsSmallerValuesOnlyInKernelsThatNeedIt) {
  Gpu gpu = plain();
  gpu.attention_forward = {.peak_fraction = 0.5};
  const AttentionWork work{.flops = 1e12, .head_size = 160, .tile_size = padded_tile(192, false)};
  EXPECT_NEAR(attention_time(gpu, work, 0).seconds(), 1.2 * 1e12 / 50e12, 1e-12);
  gpu.attention_forward.padded_values = false;
  EXPECT_NEAR(attention_time(gpu, work, 0).seconds(), 1e12 / 50e12, 1e-12);
  EXPECT_EQ(padded_tile(192, true), 256);
}

TEST(Attention, HasConstantsOfItsOwnForSomeHeadSizes) {
  Gpu gpu = plain();
  gpu.attention_forward = {.peak_fraction = 0.5, .softmax_size = 64, .overhead_keys = 100};
  gpu.attention_forward.heads = {{.head_size = 64, .peak_fraction = 0.25, .overhead_keys = 200, .window_keys = 300}};
  AttentionWork work{.flops = 1e12, .key_flops = 1e9, .head_size = 64};
  EXPECT_NEAR(attention_time(gpu, work, 0).seconds(), 1.2e12 / 25e12, 1e-12);
  work.windowed = true;
  EXPECT_NEAR(attention_time(gpu, work, 0).seconds(), 1.5e12 / 25e12, 1e-12);
  work.head_size = 128;
  EXPECT_NEAR(attention_time(gpu, work, 0).seconds(), 1.5 * 1.1e12 / 50e12, 1e-12);
}

TEST(Attention, HasConstantsOfItsOwnFor8Bits) {
  Gpu gpu = plain();
  gpu.gemm_8bit.peak_flops_per_s = 200e12;
  gpu.attention_forward = gpu.attention_backward = {.peak_fraction = 0.5};
  gpu.attention_8bit_forward = AttentionConstants{.peak_fraction = 0.4};
  gpu.attention_8bit_backward = AttentionConstants{.peak_fraction = 0.25};
  EXPECT_NEAR(attention_time(gpu, {.flops = 1e12, .narrow = true}, 0).seconds(), 1e12 / 80e12, 1e-12);
  EXPECT_NEAR(attention_time(gpu, {.flops = 1e12, .backward = true, .narrow = true}, 0).seconds(), 1e12 / 50e12, 1e-12);
}

}  // namespace
}  // namespace sluice::test
