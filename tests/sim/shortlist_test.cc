#include "sim/planner/shortlist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Shortlist, IsTheRankingWithoutErrors) {
  const std::vector<Candidate> candidates = {{3, 0}, {1, 0}, {2, 1}, {4, 2}};
  const Shortlist found = shortlist(candidates, 3, {});
  EXPECT_THAT(found.chosen, ElementsAre(1, 2, 0));
  EXPECT_EQ(found.probability, 1);
  EXPECT_THAT(shortlist(candidates, 9, {}).chosen, ElementsAre(1, 2, 0, 3));
  EXPECT_THAT(shortlist({}, 3, {.group = 0.1, .own = 0.1}).chosen, IsEmpty());
}

// Of two candidates, the probability that one is faster has a closed form.
TEST(Shortlist, ProbabilityIsThatOfTheNormalDistribution) {
  for (const double slower : {1.0, 1.05, 1.2}) {
    const auto first_wins = [&](double deviation) { return 0.5 * std::erfc(-std::log(slower) / (2 * deviation)); };
    const ChoiceErrors errors{.group = 0.1, .own = 0.05};
    const Shortlist apart = shortlist(std::vector<Candidate>{{1, 0}, {slower, 1}}, 1, errors);
    EXPECT_NEAR(apart.probability, first_wins(std::hypot(errors.group, errors.own)), 0.03);
    // The error that they share does not matter.
    const Shortlist alike = shortlist(std::vector<Candidate>{{1, 0}, {slower, 0}}, 1, errors);
    EXPECT_NEAR(alike.probability, first_wins(errors.own), 0.03);
  }
}

// A candidate of another group is worth more than the second of the first group, though that is predicted faster.
TEST(Shortlist, PrefersCandidatesOfOtherGroups) {
  const std::vector<Candidate> candidates = {{1, 0}, {1.04, 0}, {1.05, 0}, {1.06, 1}};
  EXPECT_THAT(shortlist(candidates, 2, {.group = 0.1, .own = 0.01}).chosen, ElementsAre(0, 3));
}

// Where errors are as assumed, the shortlist loses as much as it predicts, and less than the first of the ranking.
TEST(Shortlist, LosesAsMuchAsItPredicts) {
  constexpr int kSpaces = 300;
  constexpr ChoiceErrors kErrors{.group = 0.1, .own = 0.04};
  std::mt19937_64 engine(20);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> between(0, 0.3);
  double expected_loss = 0;
  double expected_hits = 0;
  double loss = 0;
  double loss_of_first = 0;
  int hits = 0;
  for (int space = 0; space < kSpaces; ++space) {
    std::vector<Candidate> candidates;
    std::vector<double> measured;
    std::vector<double> shared(5);
    for (double& one : shared) one = kErrors.group * normal(engine);
    for (int i = 0; i < 40; ++i) {
      candidates.push_back({std::exp(between(engine)), i % 5});
      measured.push_back(candidates.back().predicted_s * std::exp(shared[i % 5] + kErrors.own * normal(engine)));
    }
    const double fastest = *std::min_element(measured.begin(), measured.end());
    const auto loss_of = [&](const Shortlist& list) {
      double best = INFINITY;
      for (const int chosen : list.chosen) best = std::min(best, measured[chosen]);
      return best / fastest - 1;
    };
    const Shortlist found = shortlist(candidates, 5, kErrors);
    expected_loss += found.loss / kSpaces;
    expected_hits += found.probability;
    loss += loss_of(found) / kSpaces;
    hits += loss_of(found) == 0 ? 1 : 0;
    loss_of_first += loss_of(shortlist(candidates, 5, {})) / kSpaces;
  }
  EXPECT_NEAR(loss, expected_loss, 0.01);
  EXPECT_NEAR(hits, expected_hits, 0.08 * kSpaces);
  EXPECT_LT(loss, 0.8 * loss_of_first);
}

}  // namespace
}  // namespace sluice::test
