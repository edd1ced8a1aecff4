// Builds cuDNN's plans of attention for an A100 and an H100 without a device: cuDNN itself checks the graphs, selects
// engines, compiles their kernels and reports workspaces. Skipped where cuDNN is not found.

#include "exec/device/cudnn_plans.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <iostream>
#include <optional>
#include <string>

#include "exec/device/cudnn_attention.h"
#include "exec/device/dynamic_library.h"
#include "kernels/device.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

// The properties of devices that cuDNN reads (CUDA C++ Programming Guide, technical specifications per compute
// capability; NVIDIA A100 and H100 data sheets), with the names of cuDNN 9.28. "deviceVer" is 900 of sm_90.
std::string properties_of(int compute_capability) {
  const bool hopper = compute_capability == 90;
  return std::string(R"({"deviceVer":)") + (hopper ? "900" : "800") + R"(,"multiProcessorCount":)" +
         (hopper ? "132" : "108") + R"(,"maxSharedMemoryPerBlockOptin":)" + (hopper ? "232448" : "166912") +
         R"(,"l2CacheSize":)" + (hopper ? "52428800" : "41943040") +
         R"(,"totalGlobalMem":85899345920,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
         R"("reservedSharedMemoryPerBlock":1024,"oversizedSharedMemoryPerBlock":0,"maxRegistersPerSM":65536,)"
         R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"regsPerBlock":65536,)"
         R"("smClockRateKHz":1410000,"memClockRateKHz":1593000,"memoryBusWidth":5120,)"
         R"("maxBlockSize":[1024,1024,64],"maxGridSize":[2147483647,65535,65535],"supportCoopLaunch":1,)"
         R"("pciDeviceId":0,"isTccDriver":0,"cudaDeviceId":0,"driverVer":13000,"deviceName":"GPU"})";
}

class CudnnPlans : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    // Before cuDNN, which then does not load a real driver.
    ASSERT_NE(dlopen(SLUICE_STUB_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    try {
      library_ = load_cudnn(cuda_library_folders());
    } catch (const DeviceError& error) {
      std::cerr << "SKIPPED: " << error.what() << '\n';
      GTEST_SKIP() << error.what();
    }
    constexpr int kLeastThatNeedsNoDevice = 91200;
    if (library_->version < kLeastThatNeedsNoDevice) {
      std::cerr << "SKIPPED: cuDNN " << library_->text << " builds no plans without a device\n";
      GTEST_SKIP() << library_->text;
    }
  }

  // Builds both plans as attention does, if cuDNN supports them.
  void expect(AttentionSizes sizes, Element element, bool in_rows) {
    const std::int64_t rows = in_rows ? sizes.query_width() + 2 * sizes.key_width() : sizes.key_width();
    const std::int64_t keys = sizes.context + sizes.tokens;
    AttentionProblem problem{.sizes = sizes,
                             .element = element,
                             .key_stride = sizes.key_width(),
                             .key_sequence_stride = keys * sizes.key_width()};
    SCOPED_TRACE(::testing::Message() << sizes.sequences << " x " << sizes.tokens << " tokens after " << sizes.context
                                      << ", " << sizes.heads << " heads of " << sizes.head_dim << " over "
                                      << sizes.kv_heads);
    const CudnnTarget target{.properties = properties_of(GetParam())};
    ASSERT_EQ(why_not_cudnn(library_->version, GetParam(), problem, false), "");
    try {
      const CudnnPlan forward = plan_attention_forward(*library_, target, problem);
      EXPECT_LE(forward.workspace_bytes, library_workspace_bytes(sizes));
      if (!why_not_cudnn(library_->version, GetParam(), problem, true).empty()) return;
      problem.queries_gradient_stride = sizes.query_width() + 2 * sizes.key_width();
      problem.keys_gradient_stride = rows;
      problem.keys_gradient_sequence_stride = keys * rows;
      const CudnnPlan backward = plan_attention_backward(*library_, target, problem);
      // Beside the dot products and the gradient of queries in float32, each padded to 256 bytes.
      const std::int64_t own = 4 * sizes.rows() * (sizes.heads + sizes.query_width()) + 2 * 256;
      EXPECT_LE(backward.workspace_bytes + own, library_workspace_bytes(sizes));
    } catch (const DeviceError& error) {
      ADD_FAILURE() << error.what();
    }
  }

  std::optional<Cudnn> library_;
};

TEST_P(CudnnPlans, SlicesAndPrefixes) {
  const AttentionSizes llama{.tokens = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128};
  for (const std::int64_t context : {0, 4096, 28672}) {
    AttentionSizes sizes = llama;
    sizes.context = context;
    expect(sizes, Element::bfloat16, true);
  }
  AttentionSizes uneven = llama;
  uneven.tokens = 1000;
  uneven.context = 2001;
  expect(uneven, Element::bfloat16, false);
}

TEST_P(CudnnPlans, HeadsAndSequences) {
  for (const int head_dim : {40, 64, 128}) {
    expect({.sequences = 2, .tokens = 1024, .heads = 8, .kv_heads = 8, .head_dim = head_dim}, Element::float16, true);
    expect({.sequences = 2, .tokens = 1024, .heads = 8, .kv_heads = 1, .head_dim = head_dim}, Element::bfloat16, false);
  }
  if (GetParam() == 90) {
    expect({.tokens = 1024, .heads = 8, .kv_heads = 4, .head_dim = 256}, Element::bfloat16, true);
  }
}

TEST_P(CudnnPlans, FewTokens) {
  for (const int tokens : {2, 33, 64, 129}) {
    expect({.sequences = 2, .tokens = tokens, .heads = 4, .kv_heads = 2, .head_dim = 64}, Element::bfloat16, true);
  }
  expect({.tokens = 1, .heads = 4, .kv_heads = 4, .head_dim = 64, .context = 8}, Element::bfloat16, false);
}

// cuDNN's own opinion of a graph that it does not support is an error with its text, not a plan.
TEST_P(CudnnPlans, UnsupportedHeadsAreErrors) {
  const AttentionProblem problem{.sizes = {.tokens = 64, .heads = 4, .kv_heads = 4, .head_dim = 36},
                                 .key_stride = 144,
                                 .key_sequence_stride = 64 * 144};
  const CudnnTarget target{.properties = properties_of(GetParam())};
  EXPECT_THROW(plan_attention_forward(*library_, target, problem), DeviceError);
}

INSTANTIATE_TEST_SUITE_P(Sm, CudnnPlans, ::testing::Values(80, 90), ::testing::PrintToStringParamName());

TEST(LoadCudnn, ReportsWhatIsWrong) {
  const std::string nowhere = "/nonexistent";
  try {
    const Cudnn found = load_cudnn(std::span(&nowhere, 1));
    std::cerr << "SKIPPED: cuDNN is on the loader's path: " << found.path << '\n';
    GTEST_SKIP() << found.path;
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()).find("cuDNN not found: libcudnn.so.9"), 0U) << error.what();
  }
  const std::string old = SLUICE_OLD_CUDNN;
  EXPECT_EQ(test::error_from<DeviceError>([&] { load_cudnn(std::span(&old, 1)); }),
            "cuDNN is too old: " + old + "/libcudnn.so.9 is version 9.1.0, expected 9.10.2 or later");
}

}  // namespace
}  // namespace sluice::test
