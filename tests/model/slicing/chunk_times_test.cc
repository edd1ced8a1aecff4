#include "model/slicing/chunk_times.h"

#include <gtest/gtest.h>

#include <random>

#include "model/errors.h"
#include "model/slicing/terapipe.h"

namespace sluice::model {
namespace {

TEST(ChunkTimes, TheFormulaIsFound) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 200; ++round) {
    const auto or_none = [&](double most) { return uniform(random) < 0.3 ? 0 : most * uniform(random); };
    const ChunkTimes given{.fixed_s = or_none(0.01),
                           .per_context_s = or_none(1e-7),
                           .per_token_s = 1e-5 * (0.1 + uniform(random)),
                           .attention_s = or_none(1e-10)};
    std::vector<MeasuredChunk> chunks;
    for (const std::int64_t tokens : {512, 2048, 8192}) {
      for (const std::int64_t context : {0, 4096, 30000})
        chunks.push_back({tokens, context, given.seconds(tokens, context)});
    }
    const ChunkTimes found = fit_chunk_times(chunks, "test");
    EXPECT_LT(found.max_error, 1e-9);
    EXPECT_NEAR(found.seconds(1000, 100000) / given.seconds(1000, 100000), 1, 1e-6);
  }
}

TEST(ChunkTimes, OfOneSizeGrowByAttentionAlone) {
  const ChunkTimes given{.per_token_s = 2e-5, .attention_s = 3e-10};
  std::vector<MeasuredChunk> chunks;
  for (std::int64_t i = 0; i < 11; ++i) chunks.push_back({5120, 5120 * i, given.seconds(5120, 5120 * i)});
  const ChunkTimes found = fit_chunk_times(chunks, "test");
  EXPECT_EQ(found.fixed_s, 0);
  EXPECT_EQ(found.per_context_s, 0);
  EXPECT_NEAR(found.seconds(1024, 70000) / given.seconds(1024, 70000), 1, 1e-9);
  EXPECT_THROW(fit_chunk_times({}, "test"), InputError);
  EXPECT_THROW(parse_chunks("tokens,context\n1,2\n", "test", 1), InputError);
  EXPECT_THROW(parse_chunks("tokens,context,seconds\n1,0,0\n", "test", 1), InputError);
  EXPECT_EQ(parse_chunks("tokens,context,seconds,ranks\n8,16,3,2\n", "test", 4).at(0).seconds, 1.5);
}

// Exact optima of another program for t = 4 + 2 n + (2 u n + n^2) / 8.
TEST(ChunkTimes, HaveTheOptimaOfAnEnumeration) {
  const ChunkTimes times{.fixed_s = 4, .per_token_s = 2, .attention_s = 0.125};
  for (const auto& [tokens, cells, best] :
       {std::tuple(16, 4, 137.0), std::tuple(32, 4, 308.0), std::tuple(32, 8, 386.875)}) {
    const SlicingProblem problem{
        .forward = slice_times(
            tokens, 1, [&](std::int64_t n, std::int64_t u) { return from_seconds(times.seconds(n, u), "time"); }),
        .num_cells = cells};
    EXPECT_EQ(to_seconds(best_slices(problem).latency), best);
  }
}

}  // namespace
}  // namespace sluice::model
