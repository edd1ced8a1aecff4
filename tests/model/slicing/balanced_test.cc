#include "model/slicing/balanced.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/errors.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

double flops_of(const Transformer& model, std::int64_t tokens, std::int64_t context) {
  return layer_slice_flops(model, tokens, context).forward();
}

// The largest slice, in FLOPs.
double largest(const Transformer& model, const std::vector<std::int64_t>& lengths) {
  double most = 0;
  std::int64_t context = 0;
  for (const std::int64_t length : lengths) {
    most = std::max(most, flops_of(model, length, context));
    context += length;
  }
  return most;
}

TEST(BalancedSlices, HaveEqualFlopsToWithinAMultiple) {
  const Transformer model = example("gpt3-1b.json");
  for (const std::int64_t tokens : {512, 4096, 32768}) {
    for (const std::int64_t multiple : {1, 8, 128}) {
      for (const int slices : {1, 2, 3, 4}) {
        const auto lengths = balanced_slices(model, tokens, slices, multiple);
        ASSERT_EQ(std::ssize(lengths), slices);
        EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), tokens);
        const double even = flops_of(model, tokens, 0) / slices;
        std::int64_t context = 0;
        for (const std::int64_t length : lengths) {
          // The error of each end is at most half a multiple.
          EXPECT_NEAR(flops_of(model, length, context), even, flops_of(model, multiple, tokens));
          context += length;
        }
      }
    }
  }
}

TEST(BalancedSlices, AreCloseToTheBestCut) {
  // All cuts of 24 tokens in three: none has a smaller largest slice by more than one token's FLOPs.
  const Transformer model = example("gpt3-1b.json");
  double best = 1e300;
  for (std::int64_t a = 1; a < 23; ++a) {
    for (std::int64_t b = 1; a + b < 24; ++b) best = std::min(best, largest(model, {a, b, 24 - a - b}));
  }
  EXPECT_LE(largest(model, balanced_slices(model, 24, 3, 1)), best + flops_of(model, 1, 24));
}

TEST(BalancedSlices, RejectMoreSlicesThanTokens) {
  const Transformer model = example("gpt3-1b.json");
  EXPECT_THROW(balanced_slices(model, 512, 5, 128), InputError);
  EXPECT_THROW(balanced_slices(model, 512, 0, 1), InputError);
}

}  // namespace
}  // namespace sluice::test
