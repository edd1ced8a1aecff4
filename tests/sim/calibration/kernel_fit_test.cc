#include "sim/calibration/kernel_fit.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "sim/calibration/catalogue_files.h"
#include "tests/support/errors.h"
#include "traces/chrome/trace_events.h"

namespace sluice::test {
namespace {

// Times of a GPU with known constants.
MeasuredKernels kernels_of(const Gpu& gpu) {
  MeasuredKernels out;
  for (const double m : {64.0, 256.0, 512.0, 2048.0, 4096.0, 16384.0}) {
    for (const double n : {768.0, 1536.0, 4096.0, 5120.0, 12288.0}) {
      for (const double k : {128.0, 1024.0, 4096.0, 8192.0}) {
        const GemmShape shape{.m = m, .n = n, .k = k, .result_bytes = m == 2048 ? 8.0 : 2.0};
        out.gemms.push_back({.shape = shape, .seconds = gemm_time(gpu, shape, shape.bytes()).seconds()});
      }
    }
  }
  for (const double experts : {4.0, 8.0, 16.0, 64.0}) {
    for (const double m : {64.0, 1024.0}) {
      const GemmShape shape{.m = m, .n = 1536, .k = 4096, .batch = experts, .apart = true};
      out.grouped.push_back({.shape = shape, .seconds = gemm_time(gpu, shape, shape.bytes()).seconds()});
    }
  }
  for (const double heads : {2.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
    for (const bool backward : {false, true}) {
      const AttentionWork shape{.flops = 1e9 * heads, .row_flops = 1e6, .head_size = 128, .backward = backward};
      out.attention.push_back({.shape = shape, .bytes = 0, .seconds = attention_time(gpu, shape, 0).seconds()});
    }
  }
  return out;
}

TEST(KernelFit, RecoversTheConstantsOfTheTimes) {
  Gpu gpu = catalogue_gpu("a100-80gb");
  gpu.gemm = {.peak_fraction = 0.8,
              .operand_edge = 30,
              .exposed_write = 0.8,
              .memory_efficiency = 0.7,
              .launch_s = 3e-6,
              .group_s = 6e-6};
  gpu.attention_forward = {.peak_fraction = 0.6, .tail_rows = 200, .softmax_size = 20};
  gpu.attention_backward = {.peak_fraction = 0.5, .tail_rows = 60, .softmax_size = 20};
  Gpu start = catalogue_gpu("a100-80gb");
  start.attention_forward.softmax_size = start.attention_backward.softmax_size = 20;
  const GpuFit fit = fit_gpu(start, kernels_of(gpu));
  // Priors have a small effect: 120 rows at 10 % against one prior per constant.
  EXPECT_NEAR(fit.gpu.gemm.peak_fraction, 0.8, 0.02);
  EXPECT_NEAR(fit.gpu.gemm.operand_edge, 30, 3);
  EXPECT_NEAR(fit.gpu.gemm.exposed_write, 0.8, 0.08);
  EXPECT_NEAR(fit.gpu.gemm.memory_efficiency, 0.7, 0.01);
  EXPECT_NEAR(fit.gpu.gemm.launch_s, 3e-6, 1e-7);
  EXPECT_NEAR(fit.gpu.gemm.group_s, 6e-6, 3e-7);
  EXPECT_NEAR(fit.gpu.attention_forward.peak_fraction, 0.6, 0.01);
  EXPECT_NEAR(fit.gpu.attention_forward.tail_rows, 200, 10);
  EXPECT_NEAR(fit.gpu.attention_backward.tail_rows, 60, 5);
  EXPECT_EQ(fit.gemm.in_sample.rows, 120);
  EXPECT_EQ(fit.gemm.held_out.rows, 120);
  EXPECT_LT(fit.gemm.in_sample.worst, 0.02);
  EXPECT_LT(fit.gemm.held_out.worst, 0.03);
  EXPECT_EQ(fit.gpu.memory_efficiency, start.memory_efficiency);
}

// 4 sequence lengths, 3 numbers of heads and 2 sizes of values, of 16 and 8 bits.
std::vector<MeasuredAttention> attention_of(const Gpu& gpu) {
  std::vector<MeasuredAttention> out;
  for (const double tokens : {1024.0, 2048.0, 4096.0, 16384.0}) {
    for (const double heads : {2.0, 8.0, 64.0}) {
      for (const double head_size : {128.0, 160.0}) {
        for (const bool backward : {false, true}) {
          for (const bool narrow : {false, true}) {
            AttentionWork shape{.flops = 2 * tokens * tokens * heads * head_size,
                                .row_flops = 4 * tokens * head_size,
                                .key_flops = 4 * tokens * heads * head_size,
                                .head_size = head_size,
                                .tile_size = head_size > 128 ? 192.0 : 0.0,
                                .backward = backward,
                                .narrow = narrow};
            out.push_back({.shape = shape, .bytes = 0, .seconds = attention_time(gpu, shape, 0).seconds()});
          }
        }
      }
    }
  }
  return out;
}

TEST(KernelFit, RecoversTheConstantsOfAttentionOfSeveralLengths) {
  Gpu gpu = catalogue_gpu("gb200-186gb");
  gpu.attention_forward = {.peak_fraction = 0.7, .tail_rows = 40, .overhead_keys = 600, .padded_values = false};
  gpu.attention_backward = {.peak_fraction = 0.6, .tail_rows = 80, .overhead_keys = 400, .padded_values = true};
  gpu.attention_8bit_forward = AttentionConstants{
      .peak_fraction = 0.5, .tail_rows = 60, .softmax_size = 64, .overhead_keys = 900, .padded_values = false};
  gpu.attention_8bit_backward = gpu.attention_8bit_forward;
  Gpu start = gpu;
  for (AttentionConstants* one : {&start.attention_forward, &start.attention_backward, &*start.attention_8bit_forward,
                                  &*start.attention_8bit_backward}) {
    one->peak_fraction = 0.3;
    one->tail_rows = one->overhead_keys = 0;
  }
  const GpuFit fit = fit_gpu(
      start, {.origin = "", .attention_origin = "", .gemms = {}, .grouped = {}, .attention = attention_of(gpu)});
  const auto expect_near = [](const AttentionConstants& found, const AttentionConstants& known) {
    EXPECT_NEAR(found.peak_fraction / known.peak_fraction, 1, 0.02);
    EXPECT_NEAR(found.tail_rows / known.tail_rows, 1, 0.1);
    EXPECT_NEAR(found.overhead_keys / known.overhead_keys, 1, 0.05);
  };
  expect_near(fit.gpu.attention_forward, gpu.attention_forward);
  expect_near(fit.gpu.attention_backward, gpu.attention_backward);
  expect_near(*fit.gpu.attention_8bit_forward, *gpu.attention_8bit_forward);
  expect_near(*fit.gpu.attention_8bit_backward, *gpu.attention_8bit_backward);
  // With padded values, rows with smaller values are left out.
  EXPECT_EQ(fit.attention[0][0].in_sample.rows, 24);
  EXPECT_EQ(fit.attention[0][1].in_sample.rows, 12);
  EXPECT_EQ(fit.attention[1][0].in_sample.rows, 24);
}

// Attention of inference frameworks, in heads of which the largest have no kernel of their own.
TEST(KernelFit, FindsConstantsOfHeadSizesBesidesLaunches) {
  Gpu known = catalogue_gpu("h100-80gb");
  known.attention_backward.heads.clear();
  known.attention_forward.heads = {
      {.head_size = 64, .peak_fraction = 0.4, .tail_rows = 40, .overhead_keys = 500, .window_keys = 100},
      {.head_size = 128, .peak_fraction = 0.7, .tail_rows = 60, .overhead_keys = 300, .window_keys = 200},
      {.head_size = 192, .peak_fraction = 0.1, .tail_rows = 60, .overhead_keys = 300, .window_keys = 200}};
  std::string table = "gpu,dtype,batch,seq,heads,kv_heads,head_dim,window,best_us\n";
  const auto add = [&](int batch, int tokens, int heads, int head_size, int window) {
    const std::string row = fmt::format("H100,bf16,{},{},{},8,{},{}", batch, tokens, heads, head_size, window);
    const std::string one = "gpu,dtype,batch,seq,heads,kv_heads,head_dim,window,best_us\n" + row + ",1\n";
    const auto measured = read_measured_kernels(CsvTable(one, "one.csv"));
    const MeasuredAttention& shape = measured.at("h100-80gb").attention.at(0);
    const double seconds = attention_time(known, shape.shape, shape.bytes).seconds() + 2e-5 +
                           shape.other_bytes / (known.memory_bandwidth_bytes_per_s * known.memory_efficiency);
    table += fmt::format("{},{:.3f}\n", row, 1e6 * seconds);
  };
  for (const int head_size : {64, 128, 192}) {
    for (const int tokens : {1024, 4096, 16384}) {
      for (const int heads : {8, 16, 64}) {
        for (const int window : {0, 128, 512}) add(tokens == 1024 ? 4 : 1, tokens, heads, head_size, window);
      }
    }
  }
  Gpu start = known;
  start.attention_forward.heads.clear();
  const GpuFit fit = fit_gpu(start, read_measured_kernels(CsvTable(table, "t.csv")).at("h100-80gb"));
  const std::vector<HeadConstants>& found = fit.gpu.attention_forward.heads;
  ASSERT_EQ(found.size(), 2U) << "heads of 192 fall back to something else";
  for (const double head_size : {64.0, 128.0}) {
    for (const bool windowed : {false, true}) {
      const AttentionWork work{.flops = 4.0 * 32 * head_size * (windowed ? 256.0 * 8192 : 4096.5 * 8192),
                               .row_flops = 4 * head_size * (windowed ? 256 : 8192),
                               .key_flops = 4.0 * 32 * head_size * 8192,
                               .head_size = head_size,
                               .windowed = windowed};
      const double expected = attention_time(known, work, 0).seconds();
      EXPECT_NEAR(attention_time(fit.gpu, work, 0).seconds() / expected, 1, windowed ? 0.1 : 0.03) << head_size;
    }
  }
  const LogFit& one = fit.heads[0][0].at(128);
  EXPECT_EQ(one.in_sample.rows, 27);
  EXPECT_NEAR(one.constants[3], 2e-5, 2e-6);
  EXPECT_GT(one.known.mean, 2 * one.held_out.mean) << "the constants before have no head sizes";
  EXPECT_EQ(fit.attention[0][0].in_sample.rows, 0);
  EXPECT_EQ(fit.gpu.attention_forward.peak_fraction, start.attention_forward.peak_fraction);
  // The file has them, and is read again.
  const nlohmann::json own = {{"node",
                               {{"gpu", parse_json(gpu_file_with("h100-80gb", fit, "test"), "out")},
                                {"gpus", 8},
                                {"intra_node", "nvlink4"},
                                {"inter_node", "infiniband-ndr"}}}};
  const Gpu again = cluster_from_json(JsonReader(own, "out")).gpu;
  ASSERT_EQ(again.attention_forward.heads.size(), 2U);
  // A fit that distinguishes no head sizes replaces them.
  const GpuFit plain =
      fit_gpu(known, {.origin = "", .attention_origin = "", .gemms = {}, .attention = attention_of(known)});
  EXPECT_TRUE(plain.gpu.attention_forward.heads.empty());
  EXPECT_THAT(gpu_file_with("h100-80gb", plain, "test"), testing::Not(testing::HasSubstr("attention_forward_heads")));
  EXPECT_NEAR(again.attention_forward.heads[1].window_keys / found[1].window_keys, 1, 0.01);
}

// GEMMs of 8 bits with the casts of their first operand, of which every other one has block scales.
TEST(KernelFit, FindsConstantsOfNarrowGemmsBesidesCasts) {
  Gpu gpu = catalogue_gpu("h100-80gb");
  gpu.gemm.sustained_fraction = gpu.gemm_8bit.sustained_fraction = 1;
  Gpu known = gpu;
  known.gemm_8bit.peak_fraction = 0.6;
  known.gemm_8bit.tiles =
      TileConstants{.operand_edge = 30, .exposed_write = 0.4, .memory_efficiency = 0.7, .launch_s = 6e-6};
  MeasuredKernels measured;
  for (const double m : {1024, 3072, 8192, 20480}) {
    for (const double n : {512, 2048, 6144, 28672}) {
      for (const double k : {768, 4096, 14336}) {
        MeasuredGemm one{.shape = {.m = m, .n = n, .k = k, .bits = 8, .operand_bytes = 1},
                         .cast_bytes = 3 * m * k,
                         .block_scales = measured.narrow[0].size() % 2 == 1};
        one.seconds = gemm_time(known, one.shape, one.shape.bytes()).seconds() + gpu.kernel_s +
                      one.cast_bytes / (gpu.memory_bandwidth_bytes_per_s * (one.block_scales ? 0.9 : 0.5));
        measured.narrow[0].push_back(one);
      }
    }
  }
  const GpuFit fit = fit_gpu(gpu, measured);
  EXPECT_LT(fit.narrow[0].in_sample.mean, 0.01);
  for (const double m : {1536, 12288}) {
    const GemmShape other{.m = m, .n = 5120, .k = 5120, .bits = 8, .operand_bytes = 1};
    const auto time_on = [&](const Gpu& one) { return gemm_time(one, other, other.bytes()).seconds(); };
    EXPECT_NEAR(time_on(fit.gpu) / time_on(known), 1, 0.02);
  }
  EXPECT_NEAR(fit.narrow[0].constants[5], 0.5, 0.05);
  EXPECT_NEAR(fit.narrow[0].constants[6], 0.9, 0.1);
  EXPECT_EQ(fit.narrow[1].in_sample.rows, 0);
  EXPECT_EQ(fit.gpu.gemm.launch_s, gpu.gemm.launch_s);
}

// Times of layers with known constants, in the table's columns: 8 experts of 64 on each of 8 ranks.
TEST(KernelFit, FindsTheTimeOfGroupedGemmsBesidesTheRestOfTheLayer) {
  Gpu gpu = catalogue_gpu("h100-80gb");
  gpu.gemm.sustained_fraction = 1;
  std::string rows = "gpu,what,dtype,tokens,hidden,inter,topk,experts,ep,distribution,gated,best_us\n";
  for (const double tokens : {8192, 16384, 65536, 262144}) {
    for (const double hidden : {1024, 2048, 7168}) {
      for (const double width : {512, 1536, 4096}) {
        const double m = tokens * 8 / 64;
        const GemmShape first{.m = m, .n = 2 * width, .k = hidden, .batch = 8};
        const GemmShape second{.m = m, .n = hidden, .k = width, .batch = 8};
        const double gemms =
            gemm_time(gpu, first, first.bytes()).seconds() + gemm_time(gpu, second, second.bytes()).seconds();
        const double bytes = 2 * 8 * m * (3 * hidden + 3 * width) + 2 * hidden * std::min(tokens, 8 * m);
        const double seconds = 0.8 * gemms + bytes / (gpu.memory_bandwidth_bytes_per_s * 0.4) + 1e-4;
        rows += fmt::format("H100,layer,bf16,{},{},{},8,64,8,balanced,1,{}\n", tokens, hidden, width, 1e6 * seconds);
      }
    }
  }
  rows += "H100,layer,bf16,512,1024,512,8,64,8,balanced,1,1\nH100,layer,bf16,8192,1024,512,8,64,8,power_law_1.2,1,1\n";
  const auto read = read_measured_kernels(CsvTable(rows, "moe.csv"));
  const GpuFit fit = fit_gpu(gpu, read.at("h100-80gb"));
  EXPECT_EQ(fit.experts[0].in_sample.rows, 36);  // without 64 rows per expert, and without uneven loads
  EXPECT_LT(fit.experts[0].held_out.mean, 0.01);
  EXPECT_NEAR(fit.experts[0].constants[0], 0.8, 0.04);
  EXPECT_NEAR(fit.experts[0].constants[1], 0.4, 0.04);
  EXPECT_GT(fit.experts[0].known.mean, 0.05);
  EXPECT_EQ(fit.experts[1].in_sample.rows, 0);
  EXPECT_EQ(fit.gpu.gemm.peak_fraction, gpu.gemm.peak_fraction);
}

TEST(KernelFit, KeepsConstantsWithoutRows) {
  const Gpu gpu = catalogue_gpu("h100-80gb");
  MeasuredKernels few = kernels_of(gpu);
  few.gemms.resize(5);
  few.attention.resize(4);
  const GpuFit fit = fit_gpu(gpu, few);
  EXPECT_EQ(fit.gemm.in_sample.rows, 0);
  EXPECT_EQ(fit.gpu.gemm.launch_s, gpu.gemm.launch_s);
  EXPECT_EQ(fit.gpu.attention_forward.peak_fraction, gpu.attention_forward.peak_fraction);
}

TEST(KernelFit, ReadsAllKindsOfTables) {
  const CsvTable frameworks(
      "gpu,dtype,m,n,k,best_us\nH100,bf16,2048,512,1024,25\nH100,fp8_block,1024,512,1024,15\n"
      "H100,fp8,512,512,1024,15\nB200,nvfp4,1024,64,32,9\n",
      "f.csv");
  ASSERT_TRUE(has_measured_kernels(frameworks));
  const auto by_gpu = read_measured_kernels(frameworks);
  const MeasuredKernels& h100 = by_gpu.at("h100-80gb");
  ASSERT_EQ(h100.gemms.size(), 1U);
  EXPECT_EQ(h100.gemms[0].shape.bytes(), 2.0 * (2048 * 1024 + 512 * 1024 + 2048 * 512));
  ASSERT_EQ(h100.narrow[0].size(), 1U) << "GEMMs of fewer tokens are those of decoding";
  EXPECT_TRUE(h100.narrow[0][0].block_scales);
  EXPECT_EQ(h100.narrow[0][0].cast_bytes, 3.0 * 1024 * 1024);
  EXPECT_EQ(by_gpu.at("b200-180gb").narrow[1].at(0).shape.bits, 4);
  EXPECT_THROW(read_measured_kernels(CsvTable("gpu,dtype,m,n,k,best_us\nH100,int8,2048,512,1024,25\n", "f.csv")),
               InputError);

  const CsvTable prompts(
      "gpu,dtype,batch,seq,heads,kv_heads,head_dim,window,best_us\nH100,fp8,2,1000,8,2,64,100,25\n"
      "H100,bf16,1,1000,8,2,64,0,25\n",
      "p.csv");
  ASSERT_TRUE(has_measured_kernels(prompts));
  const auto of_prompts = read_measured_kernels(prompts);
  ASSERT_EQ(of_prompts.at("h100-80gb").attention.size(), 1U) << "prompts of fewer tokens are not read";
  const MeasuredAttention& prompt = of_prompts.at("h100-80gb").attention[0];
  EXPECT_EQ(prompt.shape.flops, 4.0 * 2 * 8 * 64 * (5050 + 900 * 100));
  EXPECT_EQ(prompt.shape.key_flops, 4.0 * 2 * 8 * 64 * 1000);
  EXPECT_TRUE(prompt.shape.narrow);
  EXPECT_TRUE(prompt.shape.windowed);
  EXPECT_EQ(prompt.bytes, 2 * 1000 * 64 * (2 * 8 + 2 * 2));
  EXPECT_EQ(prompt.other_bytes, 2 * 1000 * 64 * 2 * 4);

  const CsvTable rates(
      "gpu,kernel,pass,sequences,tokens,heads,head_dim,value_head_dim,us\n"
      "NVIDIA H200,attention,backward,2,100,8,64,64,5\nNVIDIA H200,attention,forward,1,100,8,192,128,5\n"
      "NVIDIA H200,rms_norm,forward,,,,,,5\n",
      "r.csv");
  const auto of_rates = read_measured_kernels(rates);
  ASSERT_EQ(of_rates.at("h200-141gb").attention.size(), 2U);
  EXPECT_EQ(of_rates.at("h200-141gb").attention[1].shape.head_size, 160);
  const MeasuredAttention& rate = of_rates.at("h200-141gb").attention[0];
  EXPECT_TRUE(rate.shape.backward);
  EXPECT_EQ(rate.shape.flops, 10.0 * 2 * 8 * 64 * 5050);
  EXPECT_EQ(rate.bytes, 2.0 * 2 * 8 * 100 * 64 * 10) << "of five tensors read, three gradients written, two read again";

  const CsvTable timed("gpu,m_tokens,k,n,median_ms\nh100,64,512,1024,0.25\n", "t.csv");
  ASSERT_TRUE(has_measured_kernels(timed));
  const MeasuredGemm gemm = read_measured_kernels(timed).at("h100-80gb").gemms.at(0);
  EXPECT_EQ(gemm.shape.flops(), 2.0 * 64 * 512 * 1024);
  EXPECT_EQ(gemm.seconds, 0.25e-3);

  const std::string head = "gpu,op,shape,m,k,n,achieved_tflops\n";
  const CsvTable rated(
      head + "X,matmul,\"b=2, m=10, k=30, n=20, layout=NT, accumulate=True, out_dtype=fp32\",10,30,20,0.5\n" +
          "X,sdp_fwd,\"batch=1, seq_len=100, head_num=8, kv_head_num=2, qk_head_dim=64, v_head_dim=64\",,,,0.5\n" +
          "X,sdp_bwd,\"batch=1, seq_len=100, head_num=8, kv_head_num=2, qk_head_dim=64, v_head_dim=64\",,,,0.5\n" +
          "X,sdp_bwd,\"batch=1, seq_len=100, head_num=8, kv_head_num=2, qk_head_dim=192, v_head_dim=64\",,,,0.5\n" +
          "X,group_matmul,\"ng=4, M=10, N=20, K=30, main_grad_dtype=fp32, stage=bwd_grad_w, "
          "accumulate=True\",,,,0.5\n" +
          "X,group_matmul,\"ng=4, M=10, N=20, K=30, main_grad_dtype=fp32, stage=bwd_grad_act, "
          "accumulate=False\",,,,1\n",
      "r.csv");
  ASSERT_TRUE(has_measured_kernels(rated));
  const MeasuredKernels found = read_measured_kernels(rated).at("X");
  ASSERT_EQ(found.gemms.size(), 1u);
  EXPECT_EQ(found.gemms[0].shape.result_bytes, 8);           // fp32 read and written
  EXPECT_DOUBLE_EQ(found.gemms[0].seconds, 24000 / 0.5e12);  // 2 x 2 x 10 x 20 x 30 FLOPs
  // The weights' gradient of each of four experts is [30, 20] over 10 tokens; that of their input [10, 30] over 20.
  ASSERT_EQ(found.grouped.size(), 2u);
  EXPECT_EQ(found.grouped[0].shape.m, 30);
  EXPECT_EQ(found.grouped[0].shape.k, 10);
  EXPECT_EQ(found.grouped[0].shape.result_bytes, 8);
  EXPECT_DOUBLE_EQ(found.grouped[0].seconds, 48000 / 0.5e12);
  EXPECT_EQ(found.grouped[1].shape.n, 30);
  EXPECT_EQ(found.grouped[1].shape.k, 20);
  EXPECT_EQ(found.grouped[1].shape.result_bytes, 2);
  ASSERT_EQ(found.attention.size(), 3u);
  // Two GEMMs of 100 x 100 x 64 per head; the table counts the full square, of which 101/200 is executed.
  EXPECT_DOUBLE_EQ(found.attention[0].seconds, 4.0 * 100 * 100 * 64 * 8 / 0.5e12);
  EXPECT_DOUBLE_EQ(found.attention[0].shape.flops, 4.0 * 5050 * 64 * 8);
  EXPECT_DOUBLE_EQ(found.attention[0].bytes, 2.0 * 100 * 64 * (2 * 8 + 2 * 2));
  EXPECT_DOUBLE_EQ(found.attention[1].shape.flops, 2.5 * 4.0 * 5050 * 64 * 8);
  // Three GEMMs of 192 elements, two of 64.
  EXPECT_DOUBLE_EQ(found.attention[2].shape.flops, 2.0 * 5050 * (3 * 192 + 2 * 64) * 8);
  EXPECT_DOUBLE_EQ(found.attention[2].shape.key_flops, 2.0 * 100 * (3 * 192 + 2 * 64) * 8);
  EXPECT_EQ(found.attention[2].shape.tile_size, 256);
  EXPECT_FALSE(found.attention[2].shape.narrow);
  const auto of_format = [&](const std::string& format) {
    const CsvTable table(
        head +
            "X,sdp_fwd,\"batch=1, seq_len=100, head_num=8, kv_head_num=2, qk_head_dim=64, v_head_dim=64, "
            "format=" +
            format + "\",,,,0.5\n",
        "f.csv");
    return read_measured_kernels(table).at("X").attention.at(0).shape.narrow;
  };
  EXPECT_TRUE(of_format("mxfp8"));
  EXPECT_FALSE(of_format("bf16"));
  EXPECT_THROW(of_format("int8"), InputError);

  const CsvTable bad(head + "X,matmul,\"b=1, out_dtype=fp32\",10,30,20,0.5\n", "b.csv");
  EXPECT_EQ(test::error_from([&] { read_measured_kernels(bad); }),
            "b.csv: row 1, column shape: expected a value of accumulate, got 'b=1, out_dtype=fp32'");
  EXPECT_FALSE(has_measured_kernels(CsvTable("gpu,op\n", "n.csv")));
}

// Compares the catalogue's constants with the tables that they were fitted to, if the measured data are available.
// A sustained rate slows GEMMs of iterations down; timed kernels neither have it nor change it.
TEST(KernelFit, LeavesTheSustainedFraction) {
  Gpu gpu = catalogue_gpu("a100-80gb");
  gpu.gemm.launch_s = 0;
  const GemmShape shape{.m = 8192, .n = 8192, .k = 8192};
  const double before = gemm_time(gpu, shape, 0).compute_s;
  const MeasuredKernels measured = kernels_of(gpu);
  gpu.gemm.exposed_write = 0;
  const double arithmetic = gemm_time(gpu, shape, 0).compute_s;
  gpu.gemm.sustained_fraction = 0.8;
  EXPECT_DOUBLE_EQ(gemm_time(gpu, shape, 0).compute_s, arithmetic / 0.8);
  EXPECT_LT(arithmetic, before);
  const GpuFit fit = fit_gpu(gpu, measured);
  EXPECT_EQ(fit.gpu.gemm.sustained_fraction, 0.8);
  EXPECT_NEAR(fit.gpu.gemm.peak_fraction, 0.913, 0.02);
  EXPECT_THAT(gpu_file_with("a100-80gb", fit, "test"), testing::HasSubstr("\"sustained_fraction\": 0.8,"));
}

TEST(KernelFit, CatalogueAgreesWithTheTables) {
  const char* folder = std::getenv("SLUICE_DATA");
  if (folder == nullptr) {
    std::cerr << "SKIPPED: SLUICE_DATA does not name the folder of measured data\n";
    GTEST_SKIP();
  }
  for (const char* name : {"gemm_efficiency_vidur.csv", "gemm_attention_efficiency_simumax.csv"}) {
    for (const auto& [gpu, measured] : read_measured_kernels(read_csv(std::string(folder) + "/" + name))) {
      if (!gpu.starts_with("a100")) continue;  // inference frameworks have newer libraries for the others
      const Gpu known = catalogue_gpu(gpu);
      const GpuFit fit = fit_gpu(known, measured);
      // Fitting iterations changed that of the A100 by 2 % (docs/results.md, Predictions).
      EXPECT_NEAR(known.gemm.peak_fraction / fit.gpu.gemm.peak_fraction, 1, 0.025) << gpu;
      EXPECT_NEAR(known.gemm.launch_s / fit.gpu.gemm.launch_s, 1, 0.05) << gpu;
      EXPECT_LT(fit.gemm.held_out.mean, 0.07) << gpu;
      if (!measured.grouped.empty()) {
        EXPECT_NEAR(known.gemm.group_s / fit.gpu.gemm.group_s, 1, 0.1) << gpu;
        EXPECT_LT(fit.grouped.held_out.mean, 0.13) << gpu;
      }
      if (!measured.attention.empty()) {
        EXPECT_LT(fit.attention[0][0].held_out.mean, 0.05) << gpu;
      }
    }
  }
  for (const char* name : {"kernel_gemm.csv.gz", "kernel_attention.csv.gz"}) {
    const std::string path = std::string(folder) + "/" + name;
    for (const auto& [gpu, measured] : read_measured_kernels(CsvTable(traces::TraceSource(path).text(), path))) {
      const GpuFit fit = fit_gpu(catalogue_gpu(gpu), measured);
      if (fit.gemm.in_sample.rows > 0) {
        EXPECT_LT(fit.gemm.known.mean, 0.08) << gpu;
      }
      for (const LogFit& narrow : fit.narrow) {
        if (narrow.in_sample.rows > 0) {
          EXPECT_LT(narrow.known.mean, 0.08) << gpu;
        }
      }
      for (const auto& [size, head] : fit.heads[0][0]) EXPECT_LT(head.held_out.mean, 0.23) << gpu << ", " << size;
    }
  }
}

TEST(KernelFit, CatalogueAgreesWithTheAttentionOfCudnn) {
  const CsvTable table = read_csv(SLUICE_SOURCE_DIR "/benchmarks/kernels/attention_cudnn.csv");
  for (const auto& [gpu, measured] : read_measured_kernels(table)) {
    const Gpu known = catalogue_gpu(gpu);
    const GpuFit fit = fit_gpu(known, measured);
    const auto expect_fitted = [&, &gpu = gpu](const LogFit& found, const AttentionConstants& ours,
                                               const AttentionConstants& its) {
      if (found.in_sample.rows == 0) return;
      EXPECT_NEAR(its.peak_fraction / ours.peak_fraction, 1, 0.01) << gpu;
      EXPECT_NEAR(its.overhead_keys / ours.overhead_keys, 1, 0.01) << gpu;
      EXPECT_LT(found.held_out.mean, 0.08) << gpu;
    };
    expect_fitted(fit.attention[0][0], known.attention_forward, fit.gpu.attention_forward);
    expect_fitted(fit.attention[0][1], known.attention_backward, fit.gpu.attention_backward);
    expect_fitted(fit.attention[1][0], *known.attention_8bit_forward, *fit.gpu.attention_8bit_forward);
    expect_fitted(fit.attention[1][1], *known.attention_8bit_backward, *fit.gpu.attention_8bit_backward);
    EXPECT_EQ(fit.attention[1][0].in_sample.rows > 0, gpu.starts_with("gb")) << gpu;
  }
}

}  // namespace
}  // namespace sluice::test
