// GEMMs with epilogues by cublasLt on a GPU, compared with double precision. Skipped where there is no GPU, or no
// cublasLt. CublasLtStages compares whole stages.

#include <gtest/gtest.h>

#include <iostream>
#include <memory>

#include "exec/device/cublas.h"
#include "kernels/device_kernels.h"
#include "tests/kernels/device_training_run.h"
#include "tests/kernels/library_gemms.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

class GpuCublasLt : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_ == nullptr || !device_->has_bfloat16()) return skip("no GPU with bfloat16");
    try {
      std::cerr << "cublasLt " << exec::cublaslt().version << '\n';
    } catch (const DeviceError& error) {
      return skip(error.what());
    }
    device_->make_current();
  }
  static void skip(const std::string& why) {
    std::cerr << "SKIPPED: " << why << '\n';
    GTEST_SKIP() << why;
  }

  std::unique_ptr<Device> device_ = make_test_device();
};

TEST_F(GpuCublasLt, EpiloguesEqualNaive) {
  for (const Element element : {Element::float16, Element::bfloat16}) {
    expect_epilogues_equal_naive({.element = element, .rows = 128, .outputs = 256, .inputs = 64}, *device_);
    expect_epilogues_equal_naive({.element = element, .rows = 384, .outputs = 512, .inputs = 1024}, *device_);
    expect_epilogues_equal_naive({.element = element, .rows = 100, .outputs = 88, .inputs = 72}, *device_);
  }
}

// An algorithm for every GEMM of a GPT's layer, so that nothing falls back.
TEST_F(GpuCublasLt, LayersOfGptNeedNoOtherKernels) {
  Transformer model = small_gpt();
  model.hidden = 1024;
  model.heads = model.kv_heads = 16;
  model.head_dim = 64;
  model.ffn_hidden = 4096;
  model.layers = 1;
  model.positions = 512;
  const TrainingCase of{.model = model,
                        .stages = {whole(model)},
                        .precision = Precision::bfloat16,
                        .slices = {512},
                        .backward = TrainingCase::Backward::split,
                        .gemms = GemmChoice::cublaslt};
  run_on_devices(of, rounded(of.precision, random_matrices(model, 3)), [](Device& device) {
    for (const std::string& note : device.gemm_library()->notes()) ADD_FAILURE() << note;
  });
}

}  // namespace
}  // namespace sluice::test
