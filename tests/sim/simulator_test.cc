#include "sim/simulator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule_file.h"
#include "sim/engine/engine.h"
#include "sim/engine/fit_advice.h"
#include "sim/engine/predict.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

const std::string kExamples = std::string(SLUICE_SOURCE_DIR) + "/examples/";

TEST(Simulator, PredictsAScenarioFileAsPredictDoes) {
  const Scenario scenario = read_scenario(kExamples + "llama3-8b-zbv-h100.json");
  const Prediction found = Simulator(scenario).predict();
  const Prediction expected = predict(model::Setup(scenario));
  EXPECT_EQ(found.iteration, expected.iteration);
  EXPECT_EQ(found.timeline.end, expected.timeline.end);
  ASSERT_TRUE(found.fit);
  EXPECT_EQ(found.fit->needed_bytes, expected.fit->needed_bytes);
}

TEST(Simulator, ResolvesPathsInTextAgainstTheFolder) {
  const char* text = R"({"schema": "sluice.scenario/1", "model": "models/gpt3-1b.json", "cluster": "dgx-a100-80gb",
    "parallelism": {"pp": 4}, "batch": {"microbatches": 8, "sequence_length": 2048}})";
  EXPECT_TRUE(Simulator(parse_scenario(text, kExamples)).predict().fit);
  EXPECT_THROW(parse_scenario(text, "/nowhere"), InputError);
}

TEST(Simulator, NamesThePlaceOfAnError) {
  EXPECT_THAT(
      test::error_from([&] { parse_scenario(R"({"schema": "sluice.scenario/1", "parallelism": {"pp": -1}})"); }),
      HasSubstr("scenario: /parallelism/pp: "));
}

TEST(Simulator, SearchesAnAutomaticSchedule) {
  const Scenario scenario = parse_scenario(R"({"schema": "sluice.scenario/1", "parallelism": {"pp": 2},
    "batch": {"microbatches": 2}, "schedule": {"name": "auto", "time_budget_s": 0.1}, "cost": "uniform"})");
  const Simulator simulator(scenario);
  EXPECT_EQ(simulator.schedule().num_ranks(), 2);
  EXPECT_EQ(simulator.graph().schedule().num_microbatches(), 2);
  EXPECT_GT(simulator.predict().iteration_s(), 0);
}

// The period of a schedule without a flush is found by repeating what the caller gave, never another family's.
TEST(Simulator, PredictsAScheduleWithoutAFlushThatNoFamilyBuilt) {
  ScheduleParts parts = make_parts(find_family("pipedream"), {.ranks = 3, .microbatches = 1, .batches = 2});
  parts.family = "custom";
  const Prediction prediction = Simulator(Scenario{}, Schedule(std::move(parts))).predict();
  EXPECT_EQ(prediction.iteration, prediction.period);
  EXPECT_GT(prediction.period, Duration::zero());
}

// Without a flush, the period is the growth per batch of a long run over whole cycles of p / gcd(p, m) batches, for a
// family, for its file, and for a list of no family that shows its steady state.
TEST(Simulator, PredictsThePeriodOfALongRunWithoutAFlush) {
  std::mt19937 random(3);
  const auto draw = [&](int low, int high) { return static_cast<int>(random() % (high - low + 1)) + low; };
  for (int i = 0; i < (small_scope() ? 40 : 200); ++i) {
    const bool two_versions = i % 2 == 0;
    const int p = draw(2, 7);
    const int m = draw(two_versions ? p - 1 : 1, 12);
    const auto tenths = [&](int low, int high) { return draw(low, high) / 10.0; };
    const nlohmann::json cost = {{"kind", "uniform"},
                                 {"f", tenths(1, 30)},
                                 {"b", tenths(1, 30)},
                                 {"w", tenths(1, 30)},
                                 {"comm", i % 3 == 0 ? tenths(20, 60) : tenths(0, 9)},
                                 {"optimizer", tenths(0, 5)}};
    const nlohmann::json document = {{"schema", "sluice.scenario/1"}, {"cost", cost}};
    const Scenario scenario = parse_scenario(document.dump());
    const auto schedule = [&](int batches) {
      return make_schedule(find_family(two_versions ? "pipedream-2bw" : "pipedream"),
                           {.ranks = p, .microbatches = m, .batches = batches});
    };
    const int cycle = p / std::gcd(p, m);
    const auto makespan = [&](int batches) {
      const model::Setup setup(scenario, schedule(batches));
      return measure(setup.graph(), simulate(setup.graph(), price(setup.graph(), setup.cost()))).makespan.count();
    };
    const std::int64_t growth = makespan(300 + 2 * cycle) - makespan(300);
    const std::int64_t period = (growth + cycle) / (2 * cycle);
    SCOPED_TRACE(fmt::format("p {} m {} {}", p, m, document.dump()));
    const int shown = (2 * p + 2 + m) / m;  // batches that show the steady state
    for (const int batches : {1, 4, shown}) {
      EXPECT_EQ(Simulator(scenario, schedule(batches)).predict().period.count(), period) << batches;
    }
    Schedule saved = schedule_from_json(schedule_to_json(schedule(1)), "file");
    EXPECT_EQ(Simulator(scenario, std::move(saved)).predict().period.count(), period);
    ScheduleParts parts = schedule(shown).parts();
    parts.family = "custom";
    EXPECT_EQ(Simulator(scenario, Schedule(std::move(parts))).predict().period.count(), period);
  }
}

// GPT-3 13B on 8 A100 with 256 sequences in flight, which need far more than 80 GiB.
Scenario too_large(const nlohmann::json& changes) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"num_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "vocab_size": 51200,
              "max_position_embeddings": 2048},
    "cluster": {"name": "dgx-a100-80gb", "nodes": 2},
    "parallelism": {"tp": 2, "pp": 4, "dp": 2},
    "batch": {"micro_batch": 4, "microbatches": 64, "sequence_length": 2048},
    "schedule": "gpipe",
    "cost": "analytic"})");
  document.merge_patch(changes);
  return scenario_from_json(document, "test", "");
}

TEST(FitAdvice, ReturnsChangesThatFitFastestFirst) {
  const model::Setup setup(too_large(nlohmann::json::object()));
  ASSERT_FALSE(predict(setup).fit->fits);
  const std::vector<Remedy> remedies = what_would_fit(setup);
  ASSERT_FALSE(remedies.empty());
  EXPECT_LE(remedies.size(), 5U);
  EXPECT_TRUE(std::is_sorted(remedies.begin(), remedies.end(),
                             [](const Remedy& a, const Remedy& b) { return a.iteration_s < b.iteration_s; }));
  for (const Remedy& remedy : remedies) EXPECT_LE(remedy.needed_bytes, predict(setup).fit->capacity_bytes);
  const auto again = what_would_fit(setup);
  for (std::size_t i = 0; i < remedies.size(); ++i) EXPECT_EQ(remedies[i].flags, again[i].flags);
}

TEST(FitAdvice, EqualsThePredictionOfTheChangedScenario) {
  const model::Setup setup(too_large(nlohmann::json::object()));
  const auto remedies = what_would_fit(setup);
  const auto find = [&](const std::string& flags) {
    return std::find_if(remedies.begin(), remedies.end(), [&](const Remedy& r) { return r.flags == flags; });
  };
  const auto leaner = find("--schedule 1f1b");
  ASSERT_NE(leaner, remedies.end());
  const Prediction prediction = predict(model::Setup(too_large({{"schedule", "1f1b"}})));
  EXPECT_TRUE(prediction.fit->fits);
  EXPECT_EQ(leaner->needed_bytes, prediction.fit->needed_bytes);
  EXPECT_EQ(leaner->iteration_s, to_seconds(prediction.iteration));
}

TEST(FitAdvice, IsEmptyIfNoChangeFits) {
  // 13 billion parameters with 18 bytes each on one GPU need 220 GiB, with any recomputation.
  const model::Setup setup(too_large({{"parallelism", {{"tp", 1}, {"pp", 1}, {"dp", 1}}},
                                      {"batch", {{"micro_batch", 1}, {"microbatches", 1}}},
                                      {"schedule", "1f1b"}}));
  ASSERT_FALSE(predict(setup).fit->fits);
  EXPECT_TRUE(what_would_fit(setup).empty());
}

}  // namespace
}  // namespace sluice::test
