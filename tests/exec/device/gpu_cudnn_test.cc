// Attention by cuDNN on a GPU, compared with naive attention in double precision and with our own kernel. Skipped where
// there is no GPU, or no cuDNN.

#include <gtest/gtest.h>

#include <iostream>
#include <memory>

#include "exec/device/cudnn.h"
#include "kernels/attention_library.h"
#include "tests/kernels/library_attention.h"
#include "tests/kernels/sliced_attention.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

class GpuCudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_ == nullptr || device_->compute_capability() < 80) skip("no GPU of sm_80 or later");
    if (IsSkipped()) return;
    try {
      std::cerr << "cuDNN " << exec::cudnn().text << '\n';
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

TEST_F(GpuCudnn, SlicesAfterAPrefix) {
  for (const Element element : {Element::float16, Element::bfloat16}) {
    for (const int head_dim : {64, 80, 128}) {
      expect_library_equals_naive({.element = element, .head_dim = head_dim, .slices = {256, 128}}, *device_);
      expect_library_equals_naive({.element = element, .head_dim = head_dim, .slices = {0, 256}}, *device_);
    }
  }
  expect_library_equals_naive({.heads = 8, .kv_heads = 2, .sequences = 2, .slices = {128, 384}}, *device_);
  expect_library_equals_naive({.heads = 4, .kv_heads = 4, .slices = {512, 128}}, *device_);
}

// Until 9.15.0, the backward pass needs a multiple of 128 keys (exec/device/cudnn_attention.cc).
TEST_F(GpuCudnn, UnevenLengths) {
  if (exec::cudnn().version <= 91500) return skip("cuDNN 9.15.1 or later");
  expect_library_equals_naive({.slices = {77, 33}}, *device_);
  expect_library_equals_naive({.heads = 4, .kv_heads = 2, .sequences = 3, .slices = {0, 129}}, *device_);
  expect_library_equals_naive({.head_dim = 40, .heads = 2, .kv_heads = 2, .slices = {300, 65}}, *device_);
}

TEST_F(GpuCudnn, HeadsOf256OnHopper) {
  if (device_->compute_capability() != 90) return skip("sm_90");
  expect_library_equals_naive({.head_dim = 256, .heads = 2, .slices = {128, 128}}, *device_);
}

// As layers call it, and beside our own kernels: the differences are those of rounding to 16 bits.
TEST_F(GpuCudnn, AgreesWithAttentionByGemms) {
  for (const bool in_rows : {false, true}) {
    AttentionCase of{.head_dim = 128, .heads = 8, .kv_heads = 2, .sequences = 2, .slices = {1024}, .in_rows = in_rows};
    const AttentionNumbers inputs = attention_inputs(of);
    AttentionNumbers ours(of);
    AttentionNumbers our_gradients(of);
    device_attention(of, inputs, *device_, ours, our_gradients);
    of.choice = AttentionChoice::cudnn;
    AttentionNumbers theirs(of);
    AttentionNumbers their_gradients(of);
    device_attention(of, inputs, *device_, theirs, their_gradients);
    for (const std::string& note : device_->attention_library()->notes()) ADD_FAILURE() << note;
    EXPECT_LT(distance(theirs.out, ours.out), allowed_error(of.element));
    EXPECT_LT(distance(theirs.log_sums, ours.log_sums), 1e-5);
    EXPECT_LT(distance(their_gradients.queries, our_gradients.queries), allowed_error(of.element));
    EXPECT_LT(distance(their_gradients.keys, our_gradients.keys), allowed_error(of.element));
    EXPECT_LT(distance(their_gradients.values, our_gradients.values), allowed_error(of.element));
  }
}

}  // namespace
}  // namespace sluice::test
