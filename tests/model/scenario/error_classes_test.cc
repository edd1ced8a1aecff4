#include "model/scenario/error_classes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "model/scenario/scenario.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Llama 3 8B on 16 H100, with changes.
Scenario scenario_with(const Json& patch) {
  Json document = {{"model", "llama3-8b"},
                   {"cluster", "dgx-h100"},
                   {"cost", "analytic"},
                   {"schedule", "1f1b"},
                   {"parallelism", {{"tp", 2}, {"pp", 4}, {"dp", 2}}},
                   {"batch", {{"micro_batch", 1}, {"microbatches", 8}, {"sequence_length", 8192}}}};
  document.merge_patch(patch);
  return scenario_from_json(document, "s.json", "");
}

std::string fact(const Json& patch, const std::string& key) {
  for (const auto& [name, word] : run_facts(scenario_with(patch))) {
    if (name == key) return word;
  }
  return "";
}

TEST(ErrorClasses, FactsOfARun) {
  EXPECT_EQ(run_facts(scenario_with(Json::object())), (RunFacts{{"gpu", "Hopper"},
                                                                {"model", "dense"},
                                                                {"code_base", "Megatron"},
                                                                {"bits", "16-bit"},
                                                                {"pipeline", "pipeline"},
                                                                {"framework", "Megatron-LM"},
                                                                {"scale", "several nodes"}}));
  EXPECT_EQ(fact({{"cluster", "gb200-nvl72"}}, "gpu"), "Blackwell");
  EXPECT_EQ(fact({{"cluster", "gb200-nvl72"}}, "scale"), "one node");
  EXPECT_EQ(fact({{"cluster", "gb200-nvl72"}, {"parallelism", {{"precision", "nvfp4"}}}}, "bits"), "4-bit");
  EXPECT_EQ(fact({{"parallelism", {{"precision", "fp8"}}}}, "bits"), "8-bit");
  EXPECT_EQ(fact({{"parallelism", {{"pp", 1}}}}, "pipeline"), "no pipeline");
  EXPECT_EQ(fact({{"parallelism", {{"pp", 1}}}}, "scale"), "one node");
  EXPECT_EQ(fact({{"software", "torchtitan-eager"}}, "code_base"), "torchtitan");
  EXPECT_EQ(fact({{"software", {{"name", "ours"}, {"issue_s", 1e-5}}}}, "code_base"), "ours");
}

TEST(ErrorClasses, FactsOfExpertsAndOtherMixers) {
  const Json small = {{"model", "moonlight-16b-a3b"}, {"parallelism", {{"tp", 1}, {"pp", 1}, {"dp", 16}, {"ep", 8}}}};
  EXPECT_EQ(fact(small, "model"), "experts");
  EXPECT_EQ(fact(small, "expert_groups"), "expert groups within a node");
  Json wide = small;
  wide["parallelism"]["ep"] = 16;
  EXPECT_EQ(fact(wide, "expert_groups"), "expert groups across nodes");
  EXPECT_EQ(fact({{"model", "nemotron-3-nano"}}, "model"), "hybrid");
  EXPECT_EQ(fact({{"parallelism", {{"lora_rank", 16}}}}, "model"), "adapters");
}

// Given times, a calibration, and injected slowness have no class.
TEST(ErrorClasses, OnlyPlainAnalyticPredictionsHaveFacts) {
  EXPECT_THAT(run_facts(scenario_with({{"cost", "uniform"}})), IsEmpty());
  const Json calibration = {{"schema", "sluice.calibration/1"},
                            {"scale", 1.1},
                            {"fixed_s", 0},
                            {"measurements", 1},
                            {"relative_deviation", 0.05},
                            {"degrees_of_freedom", 1},
                            {"covariance", {0, 0, 0}}};
  EXPECT_THAT(run_facts(scenario_with({{"calibration", calibration}})), IsEmpty());
  EXPECT_THAT(run_facts(scenario_with({{"perturbation", {{"slow_ranks", {{{"rank", 0}, {"factor", 2}}}}}}})),
              IsEmpty());
}

ErrorClasses error_classes_of(const std::string& text) {
  const Json json = parse_json(text, "e.json");
  return error_classes_from_json(JsonReader(json, "e.json"));
}

std::string class_text(const std::string& facts, double low) {
  return R"({"class": )" + facts + R"(, "rows": 20, "configurations": 12, "sources": 2, "median": 1.02, "low": )" +
         std::to_string(low) + R"(, "high": 1.1, "difference": 0.03, "between_groups": 0.02, "own": 0.01})";
}

std::string file_text(const std::string& classes) {
  return R"({"schema": "sluice.errors/1", "all": {"difference": 0.05, "between_groups": 0.1, "own": 0.04}, "classes": [)" +
         classes + "]}";
}

TEST(ErrorClasses, TheFinestThatAppliesIsFound) {
  const ErrorClasses classes = error_classes_of(
      file_text(class_text(R"({"pipeline": "pipeline", "bits": "16-bit", "model": "dense", "gpu": "Hopper"})", 0.9) +
                "," + class_text(R"({"model": "dense", "gpu": "Hopper"})", 0.8)));
  EXPECT_EQ(classes.all.difference, 0.05);
  const auto low_of = [&](const Json& patch) {
    const ErrorClass* found = classes.find(run_facts(scenario_with(patch)));
    return found == nullptr ? 0 : found->low;
  };
  EXPECT_EQ(low_of(Json::object()), 0.9);
  EXPECT_EQ(low_of({{"parallelism", {{"precision", "fp8"}}}}), 0.8);
  EXPECT_EQ(low_of({{"parallelism", {{"pp", 1}}}}), 0.8);
  EXPECT_EQ(low_of({{"cluster", "dgx-b200"}}), 0);
  EXPECT_EQ(classes.classes[0].name(), "Hopper, dense, 16-bit, pipeline");  // in the order of the keys
  EXPECT_EQ(classes.classes[1].rows, 20);
}

TEST(ErrorClasses, WrongFilesAreRefused) {
  const auto error_of = [](const std::string& text) -> std::string {
    return test::error_from([&] { error_classes_of(text); }, "");
  };
  EXPECT_THAT(error_of(R"({"schema": "sluice.errors/2", "all": {}, "classes": []})"), HasSubstr("sluice.errors/1"));
  EXPECT_THAT(error_of(file_text(class_text(R"({"gpus": "Hopper"})", 0.9))), HasSubstr("/classes/0/class"));
  EXPECT_THAT(error_of(file_text(class_text(R"({"gpu": "Hopper"})", 1.03))), HasSubstr("/classes/0/low"));
}

// Every class of the catalogue is part of a coarser one or has the fewest facts, and has no more runs than that.
TEST(ErrorClasses, OfTheCatalogueAreNested) {
  const ErrorClasses catalogue = catalogue_error_classes();
  ASSERT_GE(catalogue.classes.size(), 10U);
  for (const ErrorClass& each : catalogue.classes) {
    EXPECT_GE(each.facts.size(), 2U) << each.name();
    EXPECT_GE(each.rows, each.configurations) << each.name();
    EXPECT_GE(each.configurations, 8) << each.name();
    EXPECT_LT(each.low, each.high) << each.name();
    EXPECT_EQ(catalogue.find(each.facts), &each) << each.name();
    RunFacts fewer = each.facts;
    fewer.pop_back();
    const ErrorClass* coarser = catalogue.find(fewer);
    if (coarser == nullptr) {
      EXPECT_TRUE(std::all_of(each.facts.begin() + 2, each.facts.end(),
                              [](const auto& one) { return one.first != "gpu" && one.first != "model"; }));
      continue;
    }
    EXPECT_GT(coarser->rows, each.rows) << each.name();
  }
  // No run on a V100 was measured.
  EXPECT_EQ(catalogue.find(run_facts(scenario_with({{"cluster", "p3.16xlarge"}, {"parallelism", {{"tp", 1}}}}))),
            nullptr);
  EXPECT_NE(catalogue.find(run_facts(scenario_with(Json::object()))), nullptr);
}

}  // namespace
}  // namespace sluice::test
