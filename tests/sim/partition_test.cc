#include "sim/planner/partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "sim/engine/predict.h"
#include "sim/planner/partition_bounds.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

Scenario small_scenario(const nlohmann::json& changes) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"num_layers": 6, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 51200,
              "max_position_embeddings": 2048},
    "cluster": {"name": "dgx-a100-80gb", "nodes": 16},
    "parallelism": {"pp": 2, "tp": 2},
    "batch": {"microbatches": 6, "sequence_length": 2048}})");
  document.merge_patch(changes);
  return scenario_from_json(document, "test", "");
}

// Calls `visit` with all ways to put `layers` layers on stages.
void each_partition(int layers, std::vector<int>& on, std::size_t stage, const std::function<void()>& visit) {
  if (stage + 1 == on.size()) {
    on[stage] = layers;
    visit();
    return;
  }
  for (on[stage] = 0; on[stage] <= layers; ++on[stage]) each_partition(layers - on[stage], on, stage + 1, visit);
}

Prediction predicted_with(Scenario scenario, const std::vector<int>& layers) {
  scenario.first_stage_layers = scenario.last_stage_layers = 0;
  scenario.stage_layers = layers;
  const model::Setup setup(scenario);
  return predict(setup);
}

std::int64_t needed_bytes_of(const Scenario& scenario, const std::vector<int>& layers) {
  return predicted_with(scenario, layers).fit->needed_bytes;
}

// The key of a partition by a whole prediction.
PartitionKey predicted_key(const Scenario& scenario, const std::vector<int>& layers) {
  using Memory = PartitionKey::Memory;
  const Prediction prediction = predicted_with(scenario, layers);
  const Gpu& gpu = scenario.cluster->gpu;
  const std::int64_t needed = prediction.fit->needed_bytes;
  if (needed > gpu.memory_bytes) return {Memory::over, needed};
  const double usable = static_cast<double>(gpu.memory_bytes) * (1 - gpu.memory_margin);
  return {static_cast<double>(needed) > usable ? Memory::tight : Memory::fits, prediction.iteration.count()};
}

// A pseudo-random small configuration of any family with a flush.
Scenario random_scenario(std::mt19937& random) {
  const auto below = [&](unsigned count) { return static_cast<int>(random() % count); };
  const Family* family = nullptr;
  while (family == nullptr || family->asynchronous || family->vocabulary_barriers > 0)
    family = &all_families()[to_size(below(static_cast<unsigned>(std::size(all_families()))))];
  const int chunks = family->fixed_chunks > 0 ? family->fixed_chunks : 2;
  const int pp = 2 + below(chunks > 1 ? 2 : 3);
  nlohmann::json changes = {
      {"parallelism", {{"pp", pp}}},
      {"batch", {{"microbatches", 2 * pp * (1 + below(3))}}},
      {"schedule", {{"name", family->name}}},
      {"model", {{"num_layers", 4 + below(chunks > 1 ? 3 : 5)}, {"hidden_size", 1024 << below(3)}}}};
  if (family->sliced) changes["schedule"]["slices"] = 2;
  if (family->fixed_chunks == 0) changes["parallelism"]["vpp"] = chunks;
  if (below(2) == 0) changes["parallelism"]["recompute"] = "full";
  if (below(2) == 0) changes["parallelism"]["tp"] = 8;  // a node per rank
  if (below(3) == 0) changes["parallelism"]["overlap_transfers"] = true;
  if (below(2) == 0) {
    changes["parallelism"]["dp"] = 2;
    changes["parallelism"]["overlap_grad_reduce"] = below(2) == 0;
  }
  if (below(3) == 0) {
    changes["parallelism"]["sequence_parallel"] = true;
    changes["model"].update({{"disable_bias_linear", true},
                             {"num_experts", 8},
                             {"moe_router_topk", 2},
                             {"moe_ffn_hidden_size", 1024},
                             {"ffn_hidden_size", 16384}});
    changes["model"]["moe_layer_freq"] = nlohmann::json::array();
    const int dense = below(3);
    for (int layer = 0; layer < changes["model"]["num_layers"]; ++layer) {
      changes["model"]["moe_layer_freq"].push_back(layer < dense ? 0 : 1);
    }
    if (below(2) == 0 && changes["parallelism"].contains("dp")) changes["parallelism"]["ep"] = 4;
  }
  Scenario scenario = small_scenario(changes);
  try {
    make_schedule(scenario);
  } catch (const InputError&) {
    return random_scenario(random);  // not for this number of ranks
  }
  return scenario;
}

// Gives every second scenario too little memory for its fastest partition.
void limit_memory(Scenario& scenario, int i) {
  if (i % 2 == 0) return;
  const Partition free = best_partition(scenario);
  Gpu& gpu = scenario.cluster->gpu;
  gpu.memory_margin = 0.02;
  gpu.memory_bytes = free.result.needed_bytes - free.result.needed_bytes / (40 + 10 * i);
}

// The result equals the best of all partitions, each predicted on its own, and no lower bound exceeds any of them.
TEST(Partition, IsTheBestOfAll) {
  std::mt19937 random(11);
  int uneven = 0;
  int capped = 0;
  const int cases = small_scope() ? 24 : 60;
  for (int i = 0; i < cases; ++i) {
    Scenario scenario = random_scenario(random);
    limit_memory(scenario, i);
    const Partition found = best_partition(scenario);
    SCOPED_TRACE(fmt::format("{}: {} pp {} layers {}: {}", i, scenario.schedule, scenario.training.pp,
                             scenario.model->layers, fmt::join(found.layers, ",")));
    EXPECT_TRUE(found.proven);
    EXPECT_EQ(std::accumulate(found.layers.begin(), found.layers.end(), 0), scenario.model->layers);
    const PartitionBounds bounds(scenario, make_schedule(scenario), scenario.microbatches, true);
    std::optional<PartitionKey> best;
    int excluded = 0;
    std::vector<int> layers(found.layers.size());
    each_partition(scenario.model->layers, layers, 0, [&] {
      const PartitionKey key = predicted_key(scenario, layers);
      EXPECT_FALSE(key < bounds.least(layers)) << fmt::format("{}", fmt::join(layers, ","));
      if (!best || key < *best) best = key;
      excluded += key.memory > PartitionKey::Memory::fits ? 1 : 0;
    });
    EXPECT_TRUE(predicted_key(scenario, found.layers) == *best);
    EXPECT_EQ(found.result.needed_bytes, needed_bytes_of(scenario, found.layers));
    EXPECT_LE(bounds.least_of_all(*best), best->value);
    if (best->memory != PartitionKey::Memory::over) {
      EXPECT_EQ(found.result.makespan.count(), best->value);
      EXPECT_LE(found.bound, found.result.iteration);
    }
    if (found.layers != found.given) ++uneven;
    if (excluded > 0) ++capped;
  }
  EXPECT_GT(uneven, cases * 25 / 60);
  EXPECT_GT(capped, cases * 20 / 60);
}

// With multi-token prediction, all partitions with it on the last stage, or on the one before an only head.
TEST(Partition, OfMultiTokenPredictionIsTheBestOfBothPlaces) {
  std::mt19937 random(5);
  int alone = 0;
  for (int i = 0; i < 16; ++i) {
    Scenario scenario = random_scenario(random);
    scenario.model->mtp_layers = 1 + i % 2;
    limit_memory(scenario, i);
    const Partition found = best_partition(scenario);
    SCOPED_TRACE(fmt::format("{}: {} pp {}: {} with {} on {}", i, scenario.schedule, scenario.training.pp,
                             fmt::join(found.layers, ","), scenario.model->mtp_layers, found.mtp_stage));
    EXPECT_TRUE(found.proven);
    const int last = static_cast<int>(found.layers.size()) - 1;
    std::optional<PartitionKey> best;
    for (const int stage : {last, last - 1}) {
      if (stage != last && last < 2) continue;
      scenario.mtp_stage = stage;
      const PartitionBounds bounds(scenario, make_schedule(scenario), scenario.microbatches, true);
      std::vector<int> layers(found.layers.size());
      each_partition(scenario.model->layers, layers, 0, [&] {
        if (stage != last && layers.back() > 0) {
          EXPECT_THROW(predicted_key(scenario, layers), InputError);
          return;
        }
        const PartitionKey key = predicted_key(scenario, layers);
        EXPECT_FALSE(key < bounds.least(layers)) << fmt::format("{}", fmt::join(layers, ","));
        if (!best || key < *best) best = key;
      });
    }
    scenario.mtp_stage = found.mtp_stage;
    EXPECT_TRUE(predicted_key(scenario, found.layers) == *best);
    EXPECT_LE(found.bound, found.result.iteration);
    if (found.mtp_stage != kLastStage) ++alone;
  }
  EXPECT_GT(alone, 2);
}

// With little effort the result is not proven, but between the bound and the given partition, and always the same.
TEST(Partition, PrintsABoundWithoutProof) {
  const Scenario scenario = small_scenario({{"model", {{"num_layers", 30}}},
                                            {"parallelism", {{"pp", 4}, {"vpp", 5}}},
                                            {"schedule", {{"name", "interleaved-1f1b"}}},
                                            {"batch", {{"microbatches", 16}}}});
  const PartitionLimits limits{.vertices = 1, .nodes = 100};
  const Partition found = best_partition(scenario, limits);
  EXPECT_FALSE(found.proven);
  EXPECT_LE(found.simulated, 64);
  EXPECT_GT(found.bound.count(), 0);
  EXPECT_LT(found.bound, found.result.iteration);
  EXPECT_LT(to_seconds(found.result.iteration), 1.2 * to_seconds(found.bound));
  ASSERT_EQ(found.given_result.status, PlanStatus::simulated);
  EXPECT_LT(found.result.iteration, found.given_result.iteration);
  EXPECT_EQ(best_partition(scenario, limits).layers, found.layers);
}

// More stages than layers have no even partition.
TEST(Partition, LeavesStagesEmpty) {
  const Scenario scenario = small_scenario({{"model", {{"num_layers", 6}, {"vocab_size", 512000}}},
                                            {"parallelism", {{"pp", 4}, {"vpp", 2}}},
                                            {"schedule", {{"name", "interleaved-1f1b"}}},
                                            {"batch", {{"microbatches", 8}}}});
  const Partition found = best_partition(scenario);
  EXPECT_TRUE(found.proven);
  EXPECT_TRUE(found.given.empty());
  EXPECT_EQ(found.given_result.status, PlanStatus::refused);
  EXPECT_EQ(found.layers.back(), 0);  // the head alone
}

TEST(Partition, StopsOnRequest) {
  const std::atomic<bool> stop = true;
  const Partition found = best_partition(small_scenario(nlohmann::json::object()), {}, &stop);
  EXPECT_EQ(found.result.status, PlanStatus::refused);
  EXPECT_FALSE(found.proven);
}

// Without a flush there is no bound, and all partitions are simulated.
TEST(Partition, OfASteadyPipeline) {
  const Scenario scenario = small_scenario({{"schedule", {{"name", "pipedream-2bw"}}}});
  const Partition found = best_partition(scenario);
  EXPECT_TRUE(found.proven);
  EXPECT_EQ(found.simulated, 7);
  EXPECT_EQ(found.bound.count(), 0);
  std::vector<int> layers(2);
  each_partition(6, layers, 0,
                 [&] { EXPECT_GE(predicted_key(scenario, layers).value, found.result.iteration.count()); });
}

TEST(Partition, OfOneStage) {
  const Partition found = best_partition(small_scenario({{"parallelism", {{"pp", 1}}}}));
  EXPECT_EQ(found.layers, std::vector{6});
  EXPECT_TRUE(found.proven);
  EXPECT_EQ(found.result.iteration, found.given_result.iteration);
}

TEST(Partition, NeedsAModelAndRanks) {
  const auto error = [](const nlohmann::json& changes) {
    try {
      best_partition(small_scenario(changes));
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error({{"parallelism", {{"pp", nullptr}}}}),
            "test: /parallelism/pp: required: the number of pipeline ranks (--pp)");
  Scenario scenario = small_scenario(nlohmann::json::object());
  scenario.cluster.reset();
  EXPECT_THROW(best_partition(scenario), InputError);
}

}  // namespace
}  // namespace sluice::test
