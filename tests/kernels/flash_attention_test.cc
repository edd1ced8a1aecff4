// Compares flash attention with naive attention in double precision, for shapes with different tiles, segments and
// groups.

#include "kernels/cuda/flash_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <vector>

#include "tests/kernels/sliced_attention.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

class FlashAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_ == nullptr) {
      std::cerr << "SKIPPED: no GPU\n";
      GTEST_SKIP() << "no GPU";
    }
    if (device_->compute_capability() < 80) {
      std::cerr << "SKIPPED: " << device_->name() << " is older than sm_80\n";
      GTEST_SKIP() << "older than sm_80";
    }
    device_->make_current();
  }
  void expect(const AttentionCase& of) { expect_attention_equals_naive(of, *device_); }

  std::unique_ptr<Device> device_ = make_test_device();
};

TEST(FlashAttentionShapes, SupportsHeadsOf64To128FromSm80) {
  const AttentionSizes shape{.sequences = 2, .tokens = 65, .heads = 4, .kv_heads = 2, .head_dim = 128};
  EXPECT_TRUE(cuda::flash_fits(shape, 80));
  EXPECT_FALSE(cuda::flash_fits(shape, 75));
  AttentionSizes other = shape;
  other.head_dim = 112;
  EXPECT_FALSE(cuda::flash_fits(other, 90));
  EXPECT_EQ(cuda::flash_scratch_bytes(other), 0);
  // Two sequences, two tiles of 64 queries, 4 heads, in float32.
  EXPECT_EQ(cuda::flash_scratch_bytes(shape), 2 * 128 * 4 * 128 * 4);
  // Columns are padded to a multiple of 32.
  other.head_dim = 80;
  EXPECT_TRUE(cuda::flash_fits(other, 80));
  EXPECT_EQ(cuda::flash_scratch_bytes(other), 2 * 128 * 4 * 96 * 4);
}

TEST_F(FlashAttention, OneSlice) {
  for (const Element element : {Element::float16, Element::bfloat16}) {
    for (const int head_dim : {64, 80, 96, 128}) {
      expect({.element = element, .head_dim = head_dim, .slices = {130}});
    }
  }
}

TEST_F(FlashAttention, WritesGradientsOfKeysWithoutReadingThem) {
  for (const int head_dim : {64, 96, 128}) {
    expect({.head_dim = head_dim, .heads = 2, .sequences = 2, .slices = {70}, .accumulate = false});
  }
}

TEST_F(FlashAttention, WritesGradientsOfKeysBesideThoseOfQueries) {
  for (const int head_dim : {64, 80, 96, 128}) {
    expect({.head_dim = head_dim, .heads = 4, .kv_heads = 2, .sequences = 2, .slices = {70}, .in_rows = true});
  }
  expect({.element = Element::float16, .heads = 2, .slices = {129}, .in_rows = true});
}

TEST_F(FlashAttention, LengthsAroundTiles) {
  for (const int tokens : {1, 63, 64, 65, 129}) {
    expect({.slices = {tokens}});
    for (const int head_dim : {80, 96, 128}) expect({.head_dim = head_dim, .slices = {tokens}});
  }
}

TEST_F(FlashAttention, UnevenSlicesFromLastToFirst) {
  expect({.slices = {1, 7, 64, 65, 130}});
  expect({.heads = 2, .kv_heads = 1, .sequences = 2, .slices = {67, 3, 90, 5}});
  expect({.element = Element::float16, .head_dim = 128, .slices = {70, 33, 2}});
}

TEST_F(FlashAttention, LongContext) {
  expect({.slices = {500, 300, 20}, .first_run = 2});
  expect({.head_dim = 128, .slices = {300, 129, 40}, .first_run = 2});
}

TEST_F(FlashAttention, EmptyAndManySlices) {
  expect({.slices = {40, 0, 30}, .first_run = 2});
  expect({.slices = std::vector<int>(130, 2), .first_run = 129});
}

TEST_F(FlashAttention, SequencesAndGroups) {
  expect({.heads = 2, .kv_heads = 2, .sequences = 3, .slices = {20, 67}});
  expect({.heads = 4, .kv_heads = 2, .sequences = 2, .slices = {65, 30}});
  for (const int head_dim : {80, 96, 128}) {
    expect({.head_dim = head_dim, .heads = 4, .kv_heads = 1, .sequences = 2, .slices = {40, 70}});
  }
  expect({.heads = 8, .kv_heads = 1, .slices = {66}});
}

TEST_F(FlashAttention, LargeScores) {
  // Scores of about 300 times sqrt(64), whose exponentials overflow float32. Almost all probability is on one key, and
  // the gradients are differences of equal numbers, so that the test only checks that they are finite.
  for (const Element element : {Element::float16, Element::bfloat16}) {
    const AttentionCase of{.element = element, .slices = {70, 80}, .magnitude = 300};
    const AttentionNumbers inputs = attention_inputs(of);
    AttentionNumbers expected(of);
    AttentionNumbers expected_gradients(of);
    naive_attention(of, inputs, expected, expected_gradients);
    AttentionNumbers results(of);
    AttentionNumbers gradients(of);
    device_attention(of, inputs, *device_, results, gradients);
    EXPECT_LT(distance(results.out, expected.out), allowed_error(element));
    EXPECT_LT(distance(results.log_sums, expected.log_sums), 1e-5);
    EXPECT_LT(distance(gradients.values, expected_gradients.values), allowed_error(element));
    for (const TokenRows* const rows : {&gradients.queries, &gradients.keys}) {
      EXPECT_TRUE(std::all_of(rows->at.begin(), rows->at.end(), [](double value) { return std::isfinite(value); }));
    }
  }
}

}  // namespace
}  // namespace sluice::test
