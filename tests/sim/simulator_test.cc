#include "sim/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "sim/engine/predict.h"

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
  try {
    parse_scenario(R"({"schema": "sluice.scenario/1", "parallelism": {"pp": -1}})");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("scenario: /parallelism/pp: "));
  }
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

}  // namespace
}  // namespace sluice::test
