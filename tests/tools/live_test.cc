// What a live page runs (tools/live), without a browser, and `schedules --gallery`. tests/browser/live.mjs has the
// rest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/schedule/family.h"
#include "tests/support/command.h"
#include "tests/support/report_text.h"
#include "tools/command/exit_codes.h"
#include "tools/command/scenario_flags.h"
#include "tools/simulate/live_engine.h"
#include "tools/simulate/live_page.h"
#include "tools/simulate/live_run.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using tools::LiveResult;
using tools::run_live;

nlohmann::json live_request(const std::string& schedule, int ranks, int microbatches) {
  return {{"scenario",
           {{"schedule", {{"name", schedule}}},
            {"parallelism", {{"pp", ranks}}},
            {"batch", {{"microbatches", microbatches}}},
            {"cost", {{"kind", "uniform"}, {"f", 1}, {"b", 1}, {"w", 1}}}}}};
}

TEST(Live, ReturnsTheDocumentOfTheCommand) {
  for (const Family& family : all_families()) {
    const std::string name(family.name);
    // Hanayo has as many microbatches as ranks; DualPipe at least twice as many.
    const int microbatches = name == "hanayo" ? 4 : 8;
    nlohmann::json request = live_request(name, 4, microbatches);
    request["document"] = true;
    const LiveResult result = run_live(request.dump());
    ASSERT_EQ(result.status, tools::kDone) << name << ": " << result.header;
    const std::string flags = "simulate --pp 4 --uniform f=1,b=1,w=1 --json --schedule " + name + " --microbatches ";
    const std::string printed = run_sluice(words(flags + std::to_string(microbatches))).out;
    auto command = nlohmann::ordered_json::parse(printed);
    command.erase("scenario");
    EXPECT_EQ(nlohmann::json::parse(result.header)["document"], command.dump(2) + "\n") << name;
  }
}

// The second run is that of a report with --compare-with.
TEST(Live, ComparesWithARunBeside) {
  nlohmann::json request = live_request("1f1b", 4, 8);
  request["beside"] = live_request("zb-v", 4, 8);
  const auto header = nlohmann::json::parse(run_live(request.dump()).header);
  const auto alone = nlohmann::json::parse(run_live(live_request("1f1b", 4, 8).dump()).header);
  EXPECT_EQ(header["run"], alone["run"]);
  const std::string headline = header["headline"];
  EXPECT_THAT(headline, HasSubstr("1f1b, 4 ranks"));
  EXPECT_THAT(headline, HasSubstr("zb-v, 4 ranks"));
  EXPECT_THAT(alone["headline"].get<std::string>(), testing::Not(HasSubstr("zb-v")));
}

// A model and a cluster of the catalogue are a scenario.
TEST(Live, HasTheModelsAndClustersOfTheCatalogue) {
  const auto choices = nlohmann::json::parse(run_live(R"({"families": true})").header);
  for (const auto& [list, name] : {std::pair("models", "llama3-8b"), {"clusters", "dgx-h100"}}) {
    EXPECT_THAT(choices[list].get<std::vector<std::string>>(), testing::Contains(name));
  }
  const LiveResult result = run_live(R"({"scenario": {"model": "llama3-8b", "cluster": "dgx-h100",
    "parallelism": {"pp": 4, "tp": 2}, "batch": {"microbatches": 8, "sequence_length": 4096}}})");
  ASSERT_EQ(result.status, tools::kDone) << result.header;
  const auto sizes = nlohmann::json::parse(result.header)["sizes"];
  EXPECT_EQ(sizes["pp"], 4);
  EXPECT_EQ(sizes["seq"], 4096);
}

TEST(Live, ReturnsTheRunAndItsTables) {
  nlohmann::json request = live_request("1f1b", 4, 8);
  request["cap"] = "3mb";
  request["csv"] = true;
  const LiveResult result = run_live(request.dump());
  ASSERT_EQ(result.status, tools::kDone) << result.header;
  const nlohmann::json header = nlohmann::json::parse(result.header);
  EXPECT_EQ(header["run"]["makespan"], 33'000'000'000);  // (m + p - 1)(f + x)
  EXPECT_EQ(header["name"], "1f1b, 4 ranks, 8 microbatches");
  // Rank r holds 4 - r microbatches.
  EXPECT_THAT(header["headline"].get<std::string>(),
              HasSubstr("<dt>In flight</dt><dd><strong>4</strong> <span class=\"bad\">1 rank above the cap</span>"));
  EXPECT_THAT(header["idle"].get<std::string>(), HasSubstr("<table class=\"idle\">"));
  EXPECT_THAT(header["ranks"].get<std::string>(), HasSubstr("<table class=\"ranks\">"));
  EXPECT_THAT(header["csv"].get<std::string>(), StartsWith("0F0,0F1,0F2,0F3,0B0,"));
  EXPECT_EQ(result.columns.size() % 4, 0U);
}

TEST(Live, RunsAScheduleOfTheReaderOrShowsItsCycle) {
  nlohmann::json request = {{"scenario", {{"schedule", {{"name", "my.csv"}}}}},
                            {"schedule", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"}};
  EXPECT_EQ(run_live(request.dump()).status, tools::kDone);
  request["schedule"] = "0F0,0F1,0B0,0B1\n1F0,1B1,1B0,1F1\n";
  const LiveResult blocked = run_live(request.dump());
  EXPECT_EQ(blocked.status, tools::kInvalidSchedule);
  EXPECT_EQ(blocked.header,
            "my.csv: deadlock, each waits for the next: B(stage 1, mb 1) at row 2, cell 2 -> "
            "F(stage 1, mb 1) at row 2, cell 4 -> B(stage 1, mb 1) at row 2, cell 2");
  request["schedule"] = "0F0,what\n";
  const LiveResult wrong = run_live(request.dump());
  EXPECT_EQ(wrong.status, tools::kWrongInput);
  EXPECT_THAT(wrong.header, HasSubstr("my.csv: row 1, cell 2"));
}

TEST(Live, RefusesWrongRequests) {
  const auto refused = [](const nlohmann::json& request, const std::string& message) {
    const LiveResult result = run_live(request.dump());
    EXPECT_EQ(result.status, tools::kWrongInput);
    EXPECT_THAT(result.header, HasSubstr(message));
    EXPECT_EQ(result.columns, "");
  };
  refused(live_request("hanayo", 4, 8), "hanayo: microbatches: expected 4");
  // Compute ops: 2 x 64 x 3126.
  refused(live_request("1f1b", 64, 3126), "400 128 ops: a live page simulates up to 400 000");
  nlohmann::json request = live_request("1f1b", 4, 8);
  request["cap"] = "much";
  refused(request, "memory cap: ");
  EXPECT_EQ(run_live("{").status, tools::kWrongInput);
  EXPECT_EQ(run_live("{}").status, tools::kInternalError);
}

// The request of the page for a scenario file.
nlohmann::json request_of(const std::string& file, const std::string& folder) {
  const nlohmann::json document = nlohmann::json::parse(read_file(file));
  const Setup setup(scenario_from_json(document, file, folder));
  return nlohmann::json::parse(tools::live_page(setup, sim::predict(setup), document, folder).request);
}

TEST(Live, AScenarioCarriesItsFiles) {
  const std::string folder = SLUICE_SOURCE_DIR "/examples";
  const nlohmann::json request = request_of(folder + "/llama3-8b-zbv-h100.json", folder);
  EXPECT_EQ(request["scenario"]["model"]["num_hidden_layers"], 32);  // of Hugging Face's file
  EXPECT_EQ(request["scenario"]["model"]["name"], "llama3-8b");
  EXPECT_EQ(request["sizes"]["vpp"], 2);
  EXPECT_EQ(run_live(request.dump()).status, tools::kDone);

  const TemporaryFolder temporary;
  write_file_whole(temporary.path("two.csv"), "0F0,0B0\n1F0,1B0\n");
  write_file_whole(temporary.path("s.json"), R"({"schedule": {"name": "./two.csv"}})");
  const nlohmann::json own = request_of(temporary.path("s.json"), temporary.path());
  EXPECT_EQ(own["schedule"], "0F0,0B0\n1F0,1B0\n");
  EXPECT_EQ(own["scenario"]["schedule"]["name"], "two.csv");
}

TEST(Live, TheCommandReportsWhatIsMissing) {
  const TemporaryFolder folder;
  const auto simulate = [&](const std::string& more) {
    return run_sluice(words("simulate --schedule 1f1b --pp 2 --microbatches 2 " + more));
  };
  EXPECT_THAT(simulate("--live").err, HasSubstr("simulate: --live needs --report"));
  const std::string path = folder.path("r.html");
  EXPECT_THAT(simulate("--live --compare-with gpipe --report " + path).err,
              HasSubstr("--live and --compare-with exclude each other"));
  const CommandResult live = simulate("--live --report " + path);
  if (tools::live_engine().empty()) {
    EXPECT_EQ(live.exit_code, tools::kWrongInput);
    EXPECT_THAT(live.err, HasSubstr("no engine for live pages. Install Emscripten"));
    EXPECT_EQ(folder.num_files(), 0);
    return;
  }
  ASSERT_EQ(live.exit_code, 0) << live.err;
  const std::string page = read_file(path);
  EXPECT_EQ(inflated(from_base64(between(page, "id=\"engine\">", "<"))), tools::live_engine());
  const std::string policy = between(page, "Content-Security-Policy\" content=\"", "\"");
  EXPECT_THAT(policy, StartsWith("default-src 'none'; "));
  EXPECT_THAT(policy, HasSubstr(" 'wasm-unsafe-eval';"));
  EXPECT_EQ(policy.find("'unsafe-"), std::string::npos);
}

TEST(Gallery, HasAllFamilies) {
  const TemporaryFolder folder;
  const std::string path = folder.path("families.html");
  const std::string result = test::output_of({"schedules", "--gallery", path});
  EXPECT_EQ(result, "");
  const std::string page = read_file(path);
  const auto names = nlohmann::json::parse(between(page, "id=\"run-names\">", "<"));
  ASSERT_EQ(names.size(), all_families().size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_THAT(names[i].get<std::string>(), StartsWith(std::string(all_families()[i].name) + ", 4 ranks"));
  }
  // 1F1B, the second: (m + p - 1)(f + x) = 33 s, with 4 microbatches in flight on rank 0.
  EXPECT_EQ(columns_of(page, 1).header.at("makespan"), 33'000'000'000);
  EXPECT_THAT(page, HasSubstr("B 1f1b, 4 ranks, 8 microbatches</th><td data-v=\"33\">33 s</td>"
                              "<td data-v=\"0.272727272727\">27.3 %</td><td data-v=\"4\">4</td>"));
  EXPECT_THAT(run_sluice({"schedules", "--json", "--gallery", path}).err, HasSubstr("exclude each other"));
}

}  // namespace
}  // namespace sluice::test
