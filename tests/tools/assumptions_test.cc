// What predictions rest on: `assumptions` of simulate and plan.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "model/input/files.h"
#include "model/scenario/settings.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace sluice::test
