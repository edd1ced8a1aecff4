// What predictions rest on: `assumptions` of simulate and plan.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "model/input/files.h"
#include "model/scenario/error_classes.h"
#include "model/scenario/settings.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kExperts = "--model mixtral-8x7b --cluster dgx-h100 --gbs 64 --seq-length 4096 ";
constexpr const char* kSizes = "--pp 4 --tp 2 --ep 4 --dp 4 --sequence-parallel ";

json run_json(const std::string& command) { return json::parse(run_sluice(words(command + " --json")).out); }

std::set<std::string> settings_in(const json& rows) {
  std::set<std::string> out;
  for (const json& row : rows) {
    EXPECT_FALSE(row.at("value").get<std::string>().empty()) << row;
    EXPECT_FALSE(row.at("source").get<std::string>().empty()) << row;
    out.insert(row.at("setting"));
  }
  return out;
}

// A key that is set, to the default too, is not assumed, and every assumed key has an effect or is the default.
TEST(Assumptions, AreTheKeysThatAreNotSet) {
  const TemporaryFolder folder;
  const std::string command = std::string("simulate ") + kExperts + kSizes;
  const json document = run_json(command);
  const std::set<std::string> assumed = settings_in(document.at("assumptions"));
  for (const char* each : {"/software", "network", "clock under power", "attention kernel", "/parallelism/recompute",
                           "/parallelism/moe_token_dispatcher", "/parallelism/expert_imbalance"}) {
    EXPECT_EQ(assumed.count(each), 1U) << each;
  }
  for (const std::string& each : assumed) {
    const Setting* const row = find_setting(each);
    if (row == nullptr || row->flags.empty() || row->place == nullptr) continue;
    const json fallback = json::parse(row->fallback, nullptr, false);
    if (fallback.is_discarded()) continue;
    const std::string value = fallback.is_string() ? fallback.get<std::string>() : fallback.dump();
    const std::string flag =
        row->kind == SettingKind::yes ? std::string(row->flag()) + "=" + value : std::string(row->flag()) + " " + value;
    const json given = run_json(command + flag);
    EXPECT_EQ(given.at("makespan_s"), document.at("makespan_s")) << flag;
    EXPECT_EQ(settings_in(given.at("assumptions")).count(each), 0U) << flag;
  }
}

// Settings that cannot matter are not listed.
TEST(Assumptions, DependOnTheScenario) {
  const std::string dense = "simulate --model llama3-8b --cluster dgx-h100 --gbs 16 --seq-length 4096 ";
  const auto alone = settings_in(run_json(dense + "--pp 4").at("assumptions"));
  for (const std::string& each : alone) EXPECT_EQ(each.find("/parallelism/moe_"), std::string::npos) << each;
  for (const char* each : {"/parallelism/expert_imbalance", "/parallelism/sequence_parallel",
                           "/parallelism/distributed_optimizer", "/parallelism/cp_comm_type"}) {
    EXPECT_EQ(alone.count(each), 0U) << each;
  }
  const auto wide = settings_in(run_json(dense + "--pp 2 --tp 2 --dp 2 --cp 2").at("assumptions"));
  for (const char* each :
       {"/parallelism/sequence_parallel", "/parallelism/distributed_optimizer", "/parallelism/cp_comm_type"}) {
    EXPECT_EQ(wide.count(each), 1U) << each;
  }
  const json sources = run_json(dense + "--pp 4 --dp 4").at("assumptions");
  EXPECT_THAT(sources.dump(), HasSubstr("catalogue/links/infiniband-ndr.json"));
  EXPECT_THAT(sources.dump(), HasSubstr("catalogue/software/megatron-lm.json"));
}

TEST(Assumptions, TextHasAtMostSixLines) {
  for (const std::string& command :
       {std::string("simulate ") + kExperts + kSizes,
        std::string("simulate ") + kExperts + kSizes + "--schedule dualpipe",
        std::string("plan ") + kExperts + "--gpus 32 --pp 4 --tp 2 --schedule 1f1b --mbs 1"}) {
    std::istringstream out(run_sluice(words(command)).out);
    int lines = 0;
    bool inside = false;
    for (std::string line; std::getline(out, line);) {
      inside = inside || line.starts_with("  assumed ");
      if (!inside) continue;
      ++lines;
      EXPECT_LE(line.size(), 120U) << line;
      if (line.starts_with("  not modeled ")) break;
    }
    EXPECT_TRUE(inside) << command;
    EXPECT_LE(lines, 6) << command;
  }
}

// Every command that predicts from sizes names them, in text and in JSON.
TEST(Assumptions, AreNamedByEveryCommandThatPredicts) {
  const std::string dense = "--model llama3-8b --cluster dgx-h100 --seq-length 4096 ";
  for (const std::string& command :
       {"slice --pp 4 --backward " + dense, "slice --pp 4 --joint 2 " + dense,
        "slice --pp 4 --slices 4 --equal-flops " + dense,
        "slice --pp 4 --microbatches 4 --for seq1f1b --slices 2 --time-budget 0 " + dense,
        "slice --pp 4 --balance --for 1f1b --lengths lognormal:50,1,4096,512 --time-budget 0 " + dense,
        "simulate --pp 4 --gbs 16 --sweep mbs=1,2 " + dense,
        "plan --partition --gpus 4 --tp 1 --cp 1 --dp 1 --pp 4 --vpp 1 --mbs 1 --gbs 4 --schedule 1f1b --recompute "
        "full "
        "--recompute-num-layers 0 --use-distributed-optimizer no --use-tp-pp-dp-mapping no " +
            dense,
        std::string("weave --schedule dualpipe ") + kExperts + "--pp 4 --ep 4 --dp 4"}) {
    const json document = run_json(command);
    EXPECT_EQ(settings_in(document.at("assumptions")).count("/software"), 1U) << command;
    EXPECT_GT(document.at("not_modeled").size(), 0U) << command;
    const std::string text = run_sluice(words(command)).out;
    EXPECT_THAT(text, HasSubstr("\n  assumed  cluster")) << command;
    EXPECT_THAT(text, HasSubstr("\n  not modeled ")) << command;
  }
  // A swept key is given.
  const auto swept =
      settings_in(run_json("simulate --pp 4 --gbs 16 --sweep recompute=none,full " + dense)["assumptions"]);
  EXPECT_EQ(swept.count("/parallelism/recompute"), 0U);
  EXPECT_EQ(swept.count("/parallelism/precision"), 1U);
}

// What the search chooses is not assumed; what it does not search is.
TEST(Assumptions, OfAPlanAreThoseOfItsFastest) {
  const std::string plan_of_experts =
      std::string("plan ") + kExperts + "--gpus 32 --pp 4 --tp 2 --ep 4 --schedule 1f1b --mbs 1 ";
  const json plan = run_json(plan_of_experts);
  const auto assumed = settings_in(plan.at("assumptions"));
  EXPECT_EQ(assumed.count("/parallelism/moe_token_dispatcher"), 0U);  // searched
  EXPECT_EQ(assumed.count("/parallelism/recompute"), 0U);
  EXPECT_GT(plan.at("not_modeled").size(), 0U);
  const auto given = run_json(plan_of_experts + "--moe-token-dispatcher deepep");
  EXPECT_EQ(settings_in(given.at("assumptions")).count("/parallelism/moe_token_dispatcher"), 0U);
}

// --assume gives a value to what is not given, and to nothing else.
TEST(Assumptions, AreSetInOnePlace) {
  const std::string command = std::string("simulate ") + kExperts + kSizes;
  const json before = run_json(command);
  const json assumed = run_json(command + "--assume parallelism/moe_token_dispatcher=deepep");
  EXPECT_EQ(settings_in(before["assumptions"]).count("/parallelism/moe_token_dispatcher"), 1U);
  EXPECT_EQ(settings_in(assumed["assumptions"]).count("/parallelism/moe_token_dispatcher"), 0U);
  EXPECT_EQ(assumed["makespan_s"], run_json(command + "--moe-token-dispatcher deepep")["makespan_s"]);
  EXPECT_NE(assumed["makespan_s"], before["makespan_s"]);
  for (const auto& [flags, message] :
       {std::pair("--assume parallelism/pp=2", "--assume: /parallelism/pp is given by the scenario or a flag"),
        {"--assume parallelism/moe_token_dispatche=deepep", "did you mean '/parallelism/moe_token_dispatcher'?"},
        {"--assume parallelism/moe_token_dispatcher=fast", "--moe-token-dispatcher: expected"},
        {"--assume deepep", "--assume: expected KEY=VALUE"}}) {
    const CommandResult result = run_sluice(words(command + flags));
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST(Assumptions, AreAPanelOfTheReport) {
  const TemporaryFolder folder;
  const std::string path = folder.path("r.html");
  run_sluice(words(std::string("simulate ") + kExperts + kSizes + "--report " + path));
  EXPECT_THAT(read_file(path), HasSubstr("<h2 id=\"h-assumed\">Assumed</h2>"));
  EXPECT_THAT(read_file(path), HasSubstr("/parallelism/moe_token_dispatcher"));
  run_sluice(words("simulate --pp 2 --microbatches 2 --report " + path));
  EXPECT_EQ(read_file(path).find("{{assumptions}}"), std::string::npos);
}

// The interval of a predicted iteration time, from measured runs like it, in the output of simulate and plan.

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
