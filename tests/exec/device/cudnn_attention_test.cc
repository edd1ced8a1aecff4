// Attention by cuDNN on emulated devices, with an interpreter of its graphs in place of the library: results, the
// choice between the library and our own kernels, and what happens when a call of the library fails.

#include "exec/device/cudnn_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm_attention.h"
#include "kernels/device_kernels.h"
#include "kernels/emulation/block.h"
#include "kernels/emulation/device.h"
#include "tests/kernels/library_attention.h"
#include "tests/kernels/sliced_attention.h"
#include "tests/support/fake_cudnn.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An emulated device with the library.
class CudnnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_cudnn_state() = {};
    start(80);
  }
  void TearDown() override {
    device_.reset();
    library_.reset();
    EXPECT_EQ(fake_cudnn_state().descriptors, 0);
    EXPECT_EQ(fake_cudnn_state().handles, 0);
  }
  void start(int compute_capability) {
    device_.reset();
    library_ = make_cudnn_attention(fake_cudnn, {.name = "GPU", .compute_capability = compute_capability});
    kernels::emulation::EmulatedDeviceSpec spec;
    spec.compute_capability = compute_capability;
    spec.attention = library_.get();
    device_ = kernels::emulation::make_device(spec);
  }
  void expect(const AttentionCase& of) { expect_attention_equals_naive(of, *device_); }

  std::unique_ptr<AttentionLibrary> library_;
  std::unique_ptr<Device> device_;
};

AttentionCase by_cudnn(AttentionCase of) {
  of.choice = AttentionChoice::cudnn;
  return of;
}

TEST_F(CudnnAttention, GraphsComputeAttention) {
  for (const Element element : {Element::float16, Element::bfloat16}) {
    for (const int head_dim : {8, 64, 72, 128}) {
      expect(by_cudnn({.element = element, .head_dim = head_dim, .heads = 2, .kv_heads = 2, .slices = {20}}));
    }
  }
  EXPECT_EQ(fake_cudnn_state().executed, 16);
  EXPECT_THAT(library_->notes(), ElementsAre());
}

TEST_F(CudnnAttention, SequencesGroupsAndRowsOfGradients) {
  for (const bool in_rows : {false, true}) {
    for (const bool accumulate : {false, true}) {
      if (in_rows && accumulate) continue;
      expect(by_cudnn(
          {.heads = 4, .kv_heads = 2, .sequences = 3, .slices = {17}, .accumulate = accumulate, .in_rows = in_rows}));
      expect(by_cudnn({.heads = 3, .kv_heads = 1, .slices = {9}, .accumulate = accumulate, .in_rows = in_rows}));
    }
  }
  EXPECT_EQ(fake_cudnn_state().executed, 12);
  EXPECT_THAT(library_->notes(), ElementsAre());
}

TEST_F(CudnnAttention, RunsWithoutKernelsOfOurs) {
  const AttentionCase of = by_cudnn({.head_dim = 64, .heads = 2, .slices = {16}, .in_rows = true});
  AttentionNumbers results(of);
  AttentionNumbers gradients(of);
  const std::int64_t before = kernels::emulation::kernel_work().grids;
  device_attention(of, attention_inputs(of), *device_, results, gradients);
  EXPECT_EQ(kernels::emulation::kernel_work().grids, before);
}

TEST_F(CudnnAttention, SlicesAfterAPrefix) {
  expect_library_equals_naive({.slices = {20, 12}}, *device_);
  expect_library_equals_naive({.element = Element::float16, .heads = 2, .kv_heads = 2, .slices = {3, 17}}, *device_);
  expect_library_equals_naive({.head_dim = 72, .heads = 4, .kv_heads = 2, .sequences = 2, .slices = {30, 9}}, *device_);
  expect_library_equals_naive({.heads = 2, .slices = {15, 1}}, *device_);
}

TEST_F(CudnnAttention, ReadsTheKeysOfThePrefix) {
  expect(by_cudnn({.heads = 2, .slices = {20, 30}}));
  EXPECT_EQ(fake_cudnn_state().executed, 4);
  expect(by_cudnn({.heads = 4, .kv_heads = 2, .sequences = 2, .slices = {20, 1, 30}}));
  EXPECT_GE(fake_cudnn_state().executed, 8);
  const int before = fake_cudnn_state().executed;
  // An empty slice before adds no keys.
  expect(by_cudnn({.heads = 2, .slices = {0, 20}, .first_run = 1}));
  EXPECT_EQ(fake_cudnn_state().executed, before + 2);
}

TEST_F(CudnnAttention, IsNotUsedForOtherChoices) {
  expect({.heads = 2, .slices = {20}});
  EXPECT_EQ(fake_cudnn_state().calls, 0);
}

TEST_F(CudnnAttention, EveryFailureFallsBack) {
  // Both passes of two sequences, whose log sums cuDNN stores in another order.
  const AttentionCase of = by_cudnn({.heads = 2, .sequences = 2, .slices = {12}, .in_rows = true});
  expect(of);
  const int calls = fake_cudnn_state().calls;
  ASSERT_GT(calls, 500);
  // Every call around the beginning, the end of each plan and the executions; of the others every 23rd.
  int fallbacks = 0;
  const int step = small_scope() ? 4 : 1;
  for (int fails_at = 1; fails_at <= calls; fails_at += (fails_at < 10 || fails_at > calls - 40 ? 1 : 23) * step) {
    SCOPED_TRACE(fails_at);
    TearDown();
    fake_cudnn_state() = {.fails_at = fails_at};
    start(80);
    expect(of);
    EXPECT_LE(fake_cudnn_state().executed, 2);
    if (fake_cudnn_state().executed == 2) continue;  // the heuristic's second list has the plan
    ++fallbacks;
    ASSERT_EQ(library_->notes().size(), 1U);
    EXPECT_THAT(library_->notes()[0], HasSubstr("GPU: "));
    EXPECT_THAT(library_->notes()[0], HasSubstr(": CUDNN_STATUS_BAD_PARAM: fake"));
  }
  EXPECT_GT(fallbacks, 40 / step);
}

TEST_F(CudnnAttention, AFailedPlanIsNotTriedAgain) {
  fake_cudnn_state().fails_at = 3;  // the second descriptor
  const AttentionCase of = by_cudnn({.heads = 2, .slices = {12}, .in_rows = true});
  expect(of);
  EXPECT_EQ(fake_cudnn_state().executed, 1);  // the backward pass alone
  expect(of);
  EXPECT_EQ(fake_cudnn_state().executed, 2);
  ASSERT_EQ(library_->notes().size(), 1U);
  EXPECT_THAT(
      library_->notes()[0],
      HasSubstr("forward pass of attention of 1 x 12 tokens after a prefix of 0, 2 heads of 64 over 1, bfloat16"));
}

TEST_F(CudnnAttention, FallsBackWithoutTheLibrary) {
  device_.reset();
  library_ = make_cudnn_attention([]() -> const Cudnn& { throw DeviceError("cuDNN not found: no such file"); },
                                  {.name = "GPU", .compute_capability = 80});
  kernels::emulation::EmulatedDeviceSpec spec;
  spec.attention = library_.get();
  device_ = kernels::emulation::make_device(spec);
  expect(by_cudnn({.heads = 2, .slices = {12}}));
  expect(by_cudnn({.heads = 4, .slices = {12}}));
  EXPECT_THAT(library_->notes(), ElementsAre("GPU: cuDNN not found: no such file"));
}

TEST_F(CudnnAttention, FallsBackIfTheWorkspaceIsTooSmall) {
  const AttentionCase of = by_cudnn({.heads = 2, .slices = {12}, .in_rows = true});
  fake_cudnn_state().workspace_bytes = std::int64_t{1} << 30;
  expect(of);
  EXPECT_EQ(fake_cudnn_state().executed, 0);
  ASSERT_EQ(library_->notes().size(), 2U);
  EXPECT_THAT(library_->notes()[1], HasSubstr("backward pass"));
  EXPECT_THAT(library_->notes()[1], HasSubstr("needs a workspace of 1073741824 bytes, of which "));
}

TEST_F(CudnnAttention, FallsBackToGemmsOnOlderDevices) {
  start(75);
  expect(by_cudnn({.element = Element::float16, .heads = 2, .slices = {12}}));
  EXPECT_EQ(fake_cudnn_state().executed, 0);
  ASSERT_EQ(library_->notes().size(), 2U);
  EXPECT_THAT(library_->notes()[0], HasSubstr("needs sm_80 or later, the device is sm_75"));
}

TEST(WhyNotCudnn, LimitsOfVersionsAndDevices) {
  AttentionProblem problem{.sizes = {.sequences = 1, .tokens = 64, .heads = 2, .kv_heads = 2, .head_dim = 256}};
  EXPECT_EQ(why_not_cudnn(91600, 90, problem, true), "");
  EXPECT_EQ(why_not_cudnn(91600, 80, problem, false),
            "heads of 256 elements, expected a multiple of 8 up to 128 on sm_80");
  problem.sizes.head_dim = 68;
  EXPECT_EQ(why_not_cudnn(91600, 90, problem, false),
            "heads of 68 elements, expected a multiple of 8 up to 256 on sm_90");
  problem.sizes.head_dim = 64;
  EXPECT_EQ(why_not_cudnn(91500, 90, problem, true), "64 keys: until 9.15.0, cuDNN needs a multiple of 128");
  EXPECT_EQ(why_not_cudnn(91500, 90, problem, false), "");
  problem.sizes.context = 64;
  EXPECT_EQ(why_not_cudnn(91500, 90, problem, true), "");
  problem.sizes.context = 0;
  problem.sizes.tokens = 1;
  EXPECT_EQ(why_not_cudnn(91600, 90, problem, false), "expected more than one key");
}

TEST(AttentionScratch, CountsTheWorkspaceOfTheLibrary) {
  const AttentionSizes shape{.sequences = 1, .tokens = 16384, .heads = 32, .kv_heads = 8, .head_dim = 128};
  const std::int64_t queries = std::int64_t{16384} * 32 * 128;
  const std::int64_t keys = std::int64_t{16384} * 8 * 128;
  // 16-bit gradients of keys and values; queries in float32 twice; a float per row and head; 16-bit gradients of keys
  // and values of all heads; 64 KiB.
  const std::int64_t bytes = 4 * keys + 8 * queries + std::int64_t{4} * 16384 * 32 + 4 * queries + 65536;
  EXPECT_EQ(cuda::attention_scratch_bytes(shape, AttentionChoice::cudnn), bytes);
  const std::int64_t of_gemms = cuda::attention_scratch_bytes(shape, AttentionChoice::gemm);
  EXPECT_GE(of_gemms, cuda::kAttentionWorkspace / 2);
  EXPECT_LT(of_gemms, bytes);
  // The plan of a stage follows.
  const auto scratch = [](AttentionChoice choice) {
    Transformer model;
    model.layers = 1;
    model.hidden = 4096;
    model.heads = 32;
    model.kv_heads = 8;
    model.head_dim = 128;
    model.ffn_hidden = 16384;
    model.vocab = 256;
    return device_kernels()
        ->make_stage({.model = model, .contents = {.layers = 1}, .attention = choice}, Precision::bfloat16)
        ->scratch_bytes({.sequences = 1, .tokens = 16384, .context = 0});
  };
  EXPECT_EQ(scratch(AttentionChoice::cudnn) - scratch(AttentionChoice::gemm), bytes - of_gemms);
}

}  // namespace
}  // namespace sluice::test
