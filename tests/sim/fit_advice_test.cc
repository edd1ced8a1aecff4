#include "sim/engine/fit_advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice::test {
namespace {

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
