// The interval of a predicted iteration time, from measured runs like it, in the output of simulate and plan.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/input/files.h"
#include "model/scenario/error_classes.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kLlamaOnHopper = "--model llama3-8b --cluster dgx-h100 --gbs 64 --seq-length 8192 ";
const std::string kLlamaSizes = "--tp 2 --pp 4 --dp 2 ";

std::string text_printed_by(const std::string& arguments) {
  const CommandResult result = run_sluice(words(arguments));
  EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
  return result.out;
}

json json_printed_by(const std::string& arguments) { return json::parse(text_printed_by(arguments + " --json")); }

const ErrorClass& catalogue_class(const ErrorClasses& classes, const json& found) {
  for (const ErrorClass& each : classes.classes) {
    if (each.name() == found.at("description")) return each;
  }
  throw InputError("no such class");
}

TEST(ErrorClass, SimulateReportsTheIntervalOfRunsLikeIt) {
  const ErrorClasses classes = catalogue_error_classes();
  const json document = json_printed_by("simulate " + kLlamaOnHopper + kLlamaSizes);
  const json& found = document.at("error_class");
  const ErrorClass& of = catalogue_class(classes, found);
  EXPECT_EQ(found.at("class").at("gpu"), "Hopper");
  EXPECT_EQ(found.at("class").at("model"), "dense");
  EXPECT_EQ(found.at("rows"), of.rows);
  EXPECT_EQ(found.at("fraction"), 0.8);
  const double seconds = document.at("makespan_s");
  EXPECT_DOUBLE_EQ(found.at("low_s"), of.low * seconds);
  EXPECT_DOUBLE_EQ(found.at("high_s"), of.high * seconds);
  const std::string text = text_printed_by("simulate " + kLlamaOnHopper + kLlamaSizes);
  EXPECT_THAT(text, ContainsRegex("iteration [0-9.]+ s \\([0-9.]+ s to [0-9.]+ s in 8 of 10 such runs\\)"));
  EXPECT_THAT(text, HasSubstr("such runs: " + of.name() + "; " + std::to_string(of.rows) + " measured"));
}

TEST(ErrorClass, WhatNoMeasuredRunIsLikeHasNoInterval) {
  const std::string volta =
      "simulate --model llama3-8b --cluster p3.16xlarge --gbs 64 --seq-length 2048 --pp 8 --dp 2 ";
  const CommandResult result = run_sluice(words(volta));  // it does not fit in memory
  EXPECT_THAT(result.out, AllOf(HasSubstr("no measured runs like this one"), Not(HasSubstr("of 10 such runs"))));
  const json document = json::parse(run_sluice(words(volta + "--json")).out);
  EXPECT_TRUE(document.at("error_class").is_null());
  // Nor are there runs with documents of different length.
  const std::string documents = "simulate --model llama3-8b --cluster dgx-h100 --seq-length 8192 " + kLlamaSizes +
                                "--lengths lognormal:2000,1,8192,16 --pack greedy";
  EXPECT_THAT(text_printed_by(documents), HasSubstr("no measured runs like this one"));
}

// Times that are given, not predicted; stragglers; and a calibration, which has an interval of its own.
TEST(ErrorClass, OtherPredictionsSayNothing) {
  const TemporaryFolder folder;
  const std::string calibration = folder.path("ours.calibration.json");
  model::write_file_whole(calibration,
                          R"({"schema": "sluice.calibration/1", "scale": 1.1, "fixed_s": 0, "measurements": 1,
                              "relative_deviation": 0.05, "degrees_of_freedom": 1, "covariance": [0, 0, 0]})");
  for (const std::string& run : {std::string("--pp 4 --microbatches 8 --uniform f=1,b=1,w=1"),
                                 kLlamaOnHopper + kLlamaSizes + "--slow-rank 1=1.5",
                                 kLlamaOnHopper + kLlamaSizes + "--calibration " + calibration}) {
    EXPECT_FALSE(json_printed_by("simulate " + run).contains("error_class")) << run;
    EXPECT_THAT(text_printed_by("simulate " + run),
                AllOf(Not(HasSubstr("such runs")), Not(HasSubstr("no measured runs"))));
  }
}

TEST(ErrorClass, PlanTakesTheErrorOfDifferencesOfItsFastest) {
  const ErrorClasses classes = catalogue_error_classes();
  const std::string plan =
      "plan " + kLlamaOnHopper + "--gpus 16 --schedule 1f1b --cp 1 --mbs 1 --recompute none --even-stages ";
  const json document = json_printed_by(plan);
  const ErrorClass& of = catalogue_class(classes, document.at("error_class"));
  EXPECT_DOUBLE_EQ(document.at("model_error"), of.differences.difference);
  EXPECT_DOUBLE_EQ(document.at("error_class").at("low_s"),
                   of.low * document.at("ranking").at(0).at("iteration_s").get<double>());
  EXPECT_EQ(json_printed_by(plan + "--model-error 7%").at("model_error"), 0.07);
  EXPECT_THAT(text_printed_by(plan), ContainsRegex("#1: [0-9.]+ m?s to [0-9.]+ m?s in 8 of 10 such runs\n"));
  // A calibration does not change the errors of differences.
  const TemporaryFolder folder;
  model::write_file_whole(folder.path("c.json"),
                          R"({"schema": "sluice.calibration/1", "scale": 1.1, "fixed_s": 0, "measurements": 1,
                              "relative_deviation": 0.05, "degrees_of_freedom": 1, "covariance": [0, 0, 0]})");
  const json corrected = json_printed_by(plan + "--calibration " + folder.path("c.json"));
  EXPECT_EQ(corrected.at("model_error"), document.at("model_error"));
  EXPECT_FALSE(corrected.contains("error_class"));
}

TEST(ErrorClass, PlansThatNoMeasuredRunIsLikeHaveTheErrorOfAll) {
  const json document = json_printed_by(
      "plan --model gpt-2.7b --cluster p3.16xlarge --gpus 8 --gbs 32 --seq-length 1024 --schedule 1f1b --even-stages");
  EXPECT_TRUE(document.at("error_class").is_null());
  EXPECT_EQ(document.at("model_error"), catalogue_error_classes().all.difference);
}

TEST(ErrorClass, TheReportHasTheInterval) {
  const TemporaryFolder folder;
  text_printed_by("simulate " + kLlamaOnHopper + kLlamaSizes + "--report " + folder.path("r.html"));
  EXPECT_THAT(model::read_file(folder.path("r.html")), HasSubstr("in 8 of 10 such runs"));
}

}  // namespace
}  // namespace sluice::test
