// Dynamic context parallelism (model/batches/context_groups.h).

#include "model/batches/context_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "model/to_size.h"

namespace sluice::test {
namespace {

using namespace model;  // NOLINT(google-build-using-namespace)

double squares(std::int64_t tokens, int ranks) {
  return static_cast<double>(tokens) * static_cast<double>(tokens) / ranks;
}

double time_of(const ContextGroup& group, const ContextProblem& problem) {
  const std::vector<double> times = times_of_ranks(group, problem);
  return *std::max_element(times.begin(), times.end());
}

// Megatron-LM's scheduler, executed with these lengths, has two groups with these times; 8704 is the least time of one
// group with the least ranks, 8480 that of any ranks (enumerated by another program).
TEST(ContextGroups, FollowMegatronsRule) {
  const ContextProblem problem{
      .documents = {16, 128, 8, 48, 96, 24, 64, 32}, .ranks = 4, .most_tokens = 64, .time = squares};
  const std::vector<ContextGroup> groups = megatron_groups(problem);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_THAT(times_of_ranks(groups[0], problem), testing::ElementsAre(8192, 8192, 4608, 4608));
  EXPECT_THAT(times_of_ranks(groups[1], problem), testing::ElementsAre(4096, 2304, 1024, 896));
  EXPECT_EQ(time_of(groups[0], problem) + time_of(groups[1], problem), 12288);
  EXPECT_EQ(time_of(fastest_group(problem), problem), 8480);
}

// Squares, of which every document takes its least ranks, since more cost much.
TEST(ContextGroups, UseTheLeastRanksWhereMoreAreSlow) {
  ContextProblem problem{.documents = {16, 128, 8, 48, 96, 24, 64, 32}, .ranks = 4, .most_tokens = 64, .time = {}};
  problem.time = [](std::int64_t tokens, int ranks) {
    return squares(tokens, ranks) * (ranks == least_ranks(tokens, 64) ? 1 : 100);
  };
  EXPECT_EQ(time_of(fastest_group(problem), problem), 8704);
}

ContextProblem random_problem(std::mt19937& random, int most_documents) {
  ContextProblem out{
      .documents = {}, .ranks = 1 << std::uniform_int_distribution<>(0, 4)(random), .most_tokens = 64, .time = {}};
  const int count = std::uniform_int_distribution<>(1, most_documents)(random);
  for (int i = 0; i < count; ++i) {
    out.documents.push_back(std::uniform_int_distribution<std::int64_t>(1, 64 * out.ranks)(random));
  }
  const double fixed = std::uniform_real_distribution<>(0, 500)(random);
  out.time = [fixed](std::int64_t tokens, int ranks) {
    return squares(tokens, ranks) + fixed * (1 + std::log2(ranks));
  };
  return out;
}

void check_group(const ContextGroup& group, const ContextProblem& problem) {
  int before = problem.ranks;
  for (const SharedDocument& document : group) {
    EXPECT_LE(document.tokens, problem.most_tokens * document.ranks);
    EXPECT_EQ(document.first % document.ranks, 0);
    EXPECT_LE(document.first + document.ranks, problem.ranks);
    EXPECT_LE(document.ranks, before);
    before = document.ranks;
  }
}

TEST(ContextGroups, HaveEveryDocumentOnceOnAlignedRanksAndNoRankIdle) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const ContextProblem problem = random_problem(random, 60);
    Documents all = problem.documents;
    std::sort(all.begin(), all.end());
    Documents of_rule;
    for (const ContextGroup& group : megatron_groups(problem)) {
      check_group(group, problem);
      EXPECT_THAT(times_of_ranks(group, problem), testing::Each(testing::Gt(0)));
      for (const SharedDocument& document : group) of_rule.push_back(document.tokens);
    }
    const ContextGroup fastest = fastest_group(problem);
    check_group(fastest, problem);
    Documents of_fastest;
    for (const SharedDocument& document : fastest) of_fastest.push_back(document.tokens);
    std::sort(of_rule.begin(), of_rule.end());
    std::sort(of_fastest.begin(), of_fastest.end());
    EXPECT_EQ(of_rule, all);
    EXPECT_EQ(of_fastest, all);
  }
}

// The least time over all numbers of ranks and all places, document by document.
double exhaustive(const ContextProblem& problem, std::size_t next, std::vector<double>& loads) {
  if (next == problem.documents.size()) return *std::max_element(loads.begin(), loads.end());
  double least = std::numeric_limits<double>::infinity();
  const std::int64_t tokens = problem.documents[next];
  for (int ranks = least_ranks(tokens, problem.most_tokens); ranks <= problem.ranks; ranks *= 2) {
    for (int first = 0; first < problem.ranks; first += ranks) {
      for (int rank = first; rank < first + ranks; ++rank) loads[to_size(rank)] += problem.time(tokens, ranks);
      least = std::min(least, exhaustive(problem, next + 1, loads));
      for (int rank = first; rank < first + ranks; ++rank) loads[to_size(rank)] -= problem.time(tokens, ranks);
    }
  }
  return least;
}

TEST(ContextGroups, AreNearTheLeastTime) {
  std::mt19937 random(11);
  double excess = 0;
  int rounds = 0;
  while (rounds < 200) {
    const ContextProblem problem = random_problem(random, 5);
    if (problem.ranks > 4) continue;
    ++rounds;
    std::vector<double> loads(to_size(problem.ranks));
    const double least = exhaustive(problem, 0, loads);
    const double found = time_of(fastest_group(problem), problem);
    EXPECT_GE(found, least * (1 - 1e-9));
    EXPECT_LE(least_time(problem), least * (1 + 1e-9));
    excess += found / least - 1;
  }
  EXPECT_LT(excess / rounds, 0.01);
}

}  // namespace
}  // namespace sluice::test
