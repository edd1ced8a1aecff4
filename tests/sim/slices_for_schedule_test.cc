#include "sim/planner/slices_for_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Long sequences of a small model, where attention dominates, so that even slices have very different times.
json document(const std::string& schedule, int microbatches = 4) {
  return {{"model",
           {{"num_layers", 8},
            {"hidden_size", 1024},
            {"num_attention_heads", 8},
            {"vocab_size", 32000},
            {"max_position_embeddings", 32768}}},
          {"cluster", "dgx-a100-80gb"},
          {"parallelism", {{"pp", 4}}},
          {"batch", {{"microbatches", microbatches}, {"sequence_length", 32768}}},
          {"schedule", {{"name", schedule}}}};
}

Scenario scenario_of(const json& text) { return scenario_from_json(text, "test", ""); }

Prediction predicted(Scenario scenario, const std::vector<std::int64_t>& lengths) {
  scenario.shape.slice_lengths = lengths;
  return predict(Setup(scenario));
}

// All cuts of `tokens` into `slices` multiples of `granularity`.
void for_cuts(std::int64_t tokens, std::int64_t granularity, int slices, std::vector<std::int64_t>& lengths,
              const std::function<void(const std::vector<std::int64_t>&)>& visit) {
  if (slices == 1) {
    lengths.push_back(tokens);
    visit(lengths);
    lengths.pop_back();
    return;
  }
  for (std::int64_t first = granularity; first <= tokens - granularity * (slices - 1); first += granularity) {
    lengths.push_back(first);
    for_cuts(tokens - first, granularity, slices - 1, lengths, visit);
    lengths.pop_back();
  }
}

TEST(SlicesForSchedule, FindTheBestCutOfMostSmallCases) {
  int cases = 0;
  int optimal = 0;
  for (const std::string schedule : {"terapipe", "seq1f1b", "eager-seq1f1b", "seq1f1b-zb1p", "seq1f1b-zb2p"}) {
    const Scenario scenario = scenario_of(document(schedule, 3));
    for (const int slices : {2, 3, 4}) {
      const ScheduleSlices found = slices_for_schedule({.scenario = scenario, .granularity = 4096, .slices = slices});
      ASSERT_TRUE(found.best);
      const SlicesCandidate& best = found.candidates[*found.best];
      Duration least = Duration::max();
      std::vector<std::int64_t> lengths;
      for_cuts(32768, 4096, slices, lengths, [&](const auto& cut) {
        const Prediction prediction = predicted(scenario, cut);
        ASSERT_GE(prediction.metrics.makespan, found.lower_bound) << schedule;
        if (prediction.fit->fits) least = std::min(least, prediction.metrics.makespan);
      });
      EXPECT_EQ(std::ssize(best.lengths), slices);
      EXPECT_EQ(predicted(scenario, best.lengths).metrics.makespan, best.makespan);
      EXPECT_GE(best.makespan, least);
      EXPECT_LE(best.makespan, best.even);
      EXPECT_TRUE(best.searched);
      ++cases;
      optimal += best.makespan == least;
    }
  }
  // A local search need not find all of them.
  EXPECT_GE(optimal, cases - 1) << "of " << cases;
}

// All cuts of all families with everything that the bound counts: blocking and overlapped transfers, slow links,
// recomputation, replicas with a distributed optimizer, uneven stages, chunks, a short last slice.
TEST(SlicesForSchedule, NoCutIsBelowTheBound) {
  const std::vector<json> changes = {
      json::object(),
      {{"software", "nemo"}},
      {{"cluster", {{"name", "p3.16xlarge"}, {"nodes", 4}}}, {"parallelism", {{"tp", 8}}}},
      {{"parallelism", {{"recompute", "full"}}}},
      {{"parallelism", {{"dp", 2}, {"distributed_optimizer", true}, {"overlap_grad_reduce", true}}}},
      {{"parallelism", {{"stage_layers", {1, 2, 3, 2}}}}},
  };
  int cuts = 0;
  for (const std::string schedule :
       {"terapipe", "seq1f1b", "eager-seq1f1b", "seq1f1b-interleaved", "seq1f1b-zb1p", "seq1f1b-zb2p"}) {
    for (const json& change : changes) {
      json text = document(schedule, schedule == "seq1f1b-interleaved" ? 4 : 2);
      text.merge_patch(change);
      const bool uneven = text["parallelism"].contains("stage_layers");
      if (schedule == "seq1f1b-interleaved" && uneven) text["parallelism"]["stage_layers"] = {1, 1, 1, 1, 1, 1, 1, 1};
      const Scenario scenario = scenario_of(text);
      for (const std::int64_t granularity : {4096, 5000}) {
        for (const int slices : {1, 2, 3}) {
          const ScheduleSlices found = slices_for_schedule(
              {.scenario = scenario, .granularity = granularity, .slices = slices, .time_budget_s = 0});
          // A short last granule: cuts the rounded-up sequence, then shortens it.
          const std::int64_t granules = (32768 + granularity - 1) / granularity;
          std::vector<std::int64_t> lengths;
          for_cuts(granules * granularity, granularity, slices, lengths, [&](std::vector<std::int64_t> cut) {
            cut.back() -= granules * granularity - 32768;
            ASSERT_GE(predicted(scenario, cut).metrics.makespan, found.lower_bound)
                << schedule << " " << change << " " << slices;
            ++cuts;
          });
          // The bound is not trivial.
          if (slices == 1) {
            EXPECT_GT(found.lower_bound, found.candidates[0].makespan / 4);
          }
        }
      }
    }
  }
  EXPECT_GT(cuts, 1000);
}

TEST(SlicesForSchedule, NoMoveOfOneGranuleIsAnImprovement) {
  const Scenario scenario = scenario_of(document("seq1f1b"));
  const ScheduleSlices found = slices_for_schedule({.scenario = scenario, .granularity = 512, .slices = 5});
  const SlicesCandidate& best = found.candidates[*found.best];
  for (std::size_t i = 0; i + 1 < best.lengths.size(); ++i) {
    for (const std::int64_t moved : {-512, 512}) {
      std::vector<std::int64_t> lengths = best.lengths;
      lengths[i] += moved;
      lengths[i + 1] -= moved;
      if (lengths[i] <= 0 || lengths[i + 1] <= 0) continue;
      EXPECT_GE(predicted(scenario, lengths).metrics.makespan, best.makespan) << i << " " << moved;
    }
  }
}

TEST(SlicesForSchedule, ChoosesTheNumberOfSlices) {
  const Scenario scenario = scenario_of(document("seq1f1b"));
  const ScheduleSlices found = slices_for_schedule({.scenario = scenario, .granularity = 1024, .max_slices = 12});
  ASSERT_TRUE(found.best);
  const SlicesCandidate& best = found.candidates[*found.best];
  EXPECT_GT(best.slices, 1);
  EXPECT_FALSE(found.out_of_time);
  ASSERT_EQ(found.candidates.front().slices, 1);
  for (const SlicesCandidate& candidate : found.candidates) {
    EXPECT_LE(candidate.lower_bound, candidate.makespan);
    EXPECT_LE(found.lower_bound, candidate.lower_bound);
    EXPECT_LE(best.makespan, candidate.makespan);
    EXPECT_EQ(std::accumulate(candidate.lengths.begin(), candidate.lengths.end(), std::int64_t{0}), 32768);
  }
  // Without slices it is 1F1B.
  EXPECT_EQ(found.candidates.front().makespan, predicted(scenario_of(document("1f1b")), {32768}).metrics.makespan);
  // Deterministic.
  const ScheduleSlices again = slices_for_schedule({.scenario = scenario, .granularity = 1024, .max_slices = 12});
  EXPECT_EQ(again.candidates[*again.best].lengths, best.lengths);
  EXPECT_EQ(again.simulations, found.simulations);
}

TEST(SlicesForSchedule, ExcludesCutsThatDoNotFit) {
  // The device has only the memory of the smallest cut into four slices, so that 1 slice does not fit.
  json text = document("seq1f1b", 8);
  const Prediction whole = predicted(scenario_of(text), {32768});
  Scenario scenario = scenario_of(text);
  scenario.cluster->gpu.memory_bytes = whole.fit->needed_bytes - 1;
  const ScheduleSlices found = slices_for_schedule({.scenario = scenario, .granularity = 2048, .max_slices = 4});
  ASSERT_TRUE(found.best);
  EXPECT_FALSE(found.candidates.front().fit->fits);
  EXPECT_TRUE(found.candidates[*found.best].fit->fits);
  EXPECT_GT(found.candidates[*found.best].slices, 1);
  scenario.cluster->gpu.memory_bytes = 1 << 20;
  EXPECT_FALSE(slices_for_schedule({.scenario = scenario, .granularity = 2048, .max_slices = 4}).best);
}

TEST(SlicesForSchedule, SkipsNumbersThatTheFamilyDoesNotSupport) {
  json text = document("seq1f1b-interleaved");
  text["parallelism"]["vpp"] = 2;
  text["schedule"]["group"] = 8;  // a multiple of the number of slices
  const Scenario scenario = scenario_of(text);
  const ScheduleSlices found = slices_for_schedule({.scenario = scenario, .granularity = 2048, .max_slices = 5});
  ASSERT_TRUE(found.best);
  int refused = 0;
  for (const SlicesCandidate& candidate : found.candidates) {
    refused += !candidate.refused.empty();
    if (candidate.refused.empty()) {
      const Prediction prediction = predicted(scenario, candidate.lengths);
      EXPECT_EQ(prediction.metrics.makespan, candidate.makespan);
      EXPECT_GE(prediction.metrics.makespan, candidate.lower_bound);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(SlicesForSchedule, StopsWhenTheTimeIsUp) {
  const ScheduleSlices found = slices_for_schedule(
      {.scenario = scenario_of(document("seq1f1b")), .granularity = 64, .slices = 4, .time_budget_s = 0});
  ASSERT_TRUE(found.best);
  EXPECT_TRUE(found.out_of_time);
  EXPECT_FALSE(found.candidates[*found.best].searched);
  EXPECT_LE(found.candidates[*found.best].simulations, 4);  // even, balanced, two of TeraPipe's
}

// With uniform costs even slices are optimal, and seq1f1b's closed form is (m k + p - 1)(f + x) / k: p = 4, m = 4,
// f + x = 3 s, k = 4: (16 + 3) 3 / 4 = 14.25 s. That equals the bound: 4 x 3 s of work, and 3 first slices in each
// direction.
TEST(SlicesForSchedule, ReachTheBoundWithUniformCosts) {
  const Scenario scenario = scenario_of({{"parallelism", {{"pp", 4}}},
                                         {"batch", {{"microbatches", 4}, {"sequence_length", 64}}},
                                         {"schedule", {{"name", "seq1f1b"}}}});
  const ScheduleSlices found = slices_for_schedule({.scenario = scenario, .granularity = 16, .slices = 4});
  EXPECT_THAT(found.candidates[0].lengths, testing::ElementsAre(16, 16, 16, 16));
  EXPECT_EQ(found.candidates[0].makespan, from_seconds(14.25, "T"));
  EXPECT_EQ(found.lower_bound, from_seconds(14.25, "T"));
}

std::string error_of(const SlicesRequest& request) {
  return test::error_from([&] { slices_for_schedule(request); });
}

TEST(SlicesForSchedule, RejectInvalidRequests) {
  EXPECT_EQ(error_of({.scenario = scenario_of(document("1f1b"))}),
            "test: /schedule/name: 1f1b has no slices: expected one of terapipe, seq1f1b, eager-seq1f1b, "
            "seq1f1b-interleaved, seq1f1b-zb1p, seq1f1b-zb2p");
  EXPECT_EQ(error_of({.scenario = scenario_of(document("seq1f1b")), .granularity = 8192, .slices = 5}),
            "test: slices: expected at most 4 slices of 32768 tokens at granularity 8192, got 5");
  EXPECT_EQ(error_of({.scenario = scenario_of(document("seq1f1b")), .granularity = 65536}),
            "test: granularity: expected 1 to the sequence's 32768 tokens, got 65536");
  json text = document("seq1f1b");
  text["perturbation"] = {{"jitter", "lognormal:0.1"}};
  EXPECT_THAT(error_of({.scenario = scenario_of(text)}), HasSubstr("/perturbation"));
  text = document("seq1f1b");
  text["schedule"]["name"] = "x.json";
  EXPECT_THAT(error_of({.scenario = scenario_of(text)}), HasSubstr("expected a family"));
}

}  // namespace
}  // namespace sluice::test
