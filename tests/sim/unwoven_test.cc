// Timelines in which nothing is woven do not depend on the code of parts.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"
#include "sim/engine/predict.h"
#include "traces/rows/part_rows.h"

namespace sluice::test {
namespace {

using nlohmann::json;

// What a run of a family gives: all times, and whether the parts of its ops occur.
struct UnwovenRun {
  std::vector<Duration> start;
  std::vector<Duration> end;
  bool has_joint_blocks = false;
  bool has_parts = false;
};

// `keys` is merged into the parallelism of the scenario. Returns nothing if the family does not support the shape.
std::optional<UnwovenRun> run_of(const json& scenario, const Family& family, const json& keys) {
  json document = scenario;
  document["schedule"] = std::string(family.name);
  document["parallelism"].update(keys);
  if (family.fixed_chunks == 0) document["parallelism"]["vpp"] = 2;
  std::optional<Setup> setup;
  try {
    setup.emplace(scenario_from_json(document, "test", ""));
  } catch (const InputError&) {
    return std::nullopt;
  }
  const Prediction prediction = predict(*setup, {});
  UnwovenRun run{.start = prediction.timeline.start, .end = prediction.timeline.end};
  for (const Vertex& vertex : setup->graph().vertices()) run.has_joint_blocks |= vertex.kind == VertexKind::joint;
  run.has_parts = !part_rows(setup->graph(), setup->cost(), prediction.timeline).empty();
  return run;
}

const std::vector<json> kVariants = {
    {{"joint_overlap", "none"}}, {{"weave", "whole-backward"}}, {{"weave", "search"}}, {{"moe_communication_sms", 7}}};

TEST(Unwoven, DenseTimelinesAreIdentical) {
  const json dense = {{"model", "llama3-8b"},
                      {"cluster", "dgx-h100"},
                      {"parallelism", {{"pp", 4}, {"tp", 2}}},
                      {"batch", {{"microbatches", 8}, {"sequence_length", 4096}}}};
  int families = 0;
  int joint = 0;
  for (const Family& family : all_families()) {
    SCOPED_TRACE(family.name);
    const auto plain = run_of(dense, family, json::object());
    if (!plain) continue;
    ++families;
    joint += plain->has_joint_blocks ? 1 : 0;
    EXPECT_FALSE(plain->has_parts);
    for (const json& variant : kVariants) {
      const auto other = run_of(dense, family, variant);
      ASSERT_TRUE(other) << variant;
      EXPECT_EQ(other->start, plain->start) << variant;
      EXPECT_EQ(other->end, plain->end) << variant;
    }
  }
  EXPECT_GE(families, 20);
  EXPECT_GE(joint, 3);
}

TEST(Unwoven, ExpertsWithoutJointBlocksHaveIdenticalTimelines) {
  const json experts = {{"model", "qwen3-30b-a3b"},
                        {"cluster", "dgx-h100"},
                        {"parallelism", {{"pp", 2}, {"dp", 8}, {"ep", 8}}},
                        {"batch", {{"microbatches", 8}, {"micro_batch", 4}, {"sequence_length", 4096}}}};
  int families = 0;
  int woven = 0;
  for (const Family& family : all_families()) {
    SCOPED_TRACE(family.name);
    const auto plain = run_of(experts, family, json::object());
    if (!plain) continue;
    EXPECT_TRUE(plain->has_parts);
    const auto apart = run_of(experts, family, kVariants[0]);
    ASSERT_TRUE(apart);
    if (plain->has_joint_blocks) {
      // The switch is what weaves.
      EXPECT_NE(apart->end, plain->end);
      ++woven;
      continue;
    }
    ++families;
    for (const json& variant : kVariants) {
      const auto other = run_of(experts, family, variant);
      ASSERT_TRUE(other) << variant;
      EXPECT_EQ(other->start, plain->start) << variant;
      EXPECT_EQ(other->end, plain->end) << variant;
    }
  }
  EXPECT_GE(families, 15);
  EXPECT_GE(woven, 3);
}

}  // namespace
}  // namespace sluice::test
