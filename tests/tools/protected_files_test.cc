// No command replaces a file that it reads, by whatever name or through whatever other file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "model/input/files.h"
#include "model/scenario/settings.h"
#include "tests/support/command.h"
#include "tools/command/outputs.h"
#include "tools/commands.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using namespace model;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

constexpr const char* kContent = "{\"an input\": 1}";

// How a command reads scenarios (SCENARIO) and other files (INPUT), and what its outputs need besides.
struct FileReader {
  const char* command;
  Commands settings = 0;  // whose files it reads from a scenario
  const char* with_scenario = "";
  std::vector<const char*> with_input = {};
  std::map<std::string, const char*> output_needs = {};
};

const std::vector<FileReader>& file_readers() {
  static const std::vector<FileReader> readers = {
      {"simulate",
       kSimulate,
       "SCENARIO",
       {"SCENARIO --compare-with INPUT --svg FOLDER/r.svg", "INPUT"},
       {{"--csv", "--sweep pp=1,2"}}},
      {"plan", kPlan, "SCENARIO --pp 2 --tp 1 --mbs 1", {"INPUT"}},
      {"schedule", kSchedule, "", {"INPUT --pp 2"}},
      {"slice", kSlice, "SCENARIO --granularity 32", {"--times INPUT --pp 2", "INPUT"}},
      {"profile", kRun, "SCENARIO", {"INPUT", "SCENARIO --data INPUT", "--like INPUT"}},
      {"validate", kRun, "SCENARIO", {"INPUT", "SCENARIO --cost INPUT", "SCENARIO --profile INPUT"}},
      {"run", kRun, "SCENARIO --steps 1", {"INPUT", "SCENARIO --steps 1 --data INPUT", "SCENARIO --resume INPUT"}},
      {"compare", 0, "", {"INPUT TRACE", "FOLDER/in FOLDER/in", "TRACE INPUT"}},
      {"analyze", 0, "", {"FOLDER/in", "FOLDER/in/y.json,INPUT", "FOLDER/in --names INPUT"}},
      {"goodput", kSimulate, "SCENARIO --trials 2", {"INPUT", "--gpus 8 --trials 2 --failures INPUT"}},
      {"fit", 0, "", {"INPUT"}},
      {"calibrate", kSimulate, "MORE=SCENARIO", {"INPUT", "MORE=INPUT", "MORE --scenario INPUT"}},
      {"import", 0, "", {"INPUT"}},
  };
  return readers;
}

// Returns the flags of the files that a command writes.
std::vector<std::string> outputs_of(const std::string& name) {
  CLI::App app;
  const auto commands = tools::add_commands(app, {"sluice", "--help-man"});
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_subcommand(name)->get_options()) {
    if (option->get_type_name() == tools::kWrittenFile) flags.push_back(option->get_name());
  }
  return flags;
}

class Files {
 public:
  Files() {
    std::filesystem::create_directories(folder_.path("in"));
    write_file_whole(folder_.path("in/y.json"), R"({"traceEvents": [{"ph": "X", "name": "x", "ts": 0, "dur": 1}]})");
    run_sluice({"simulate", "--pp", "2", "--microbatches", "2", "--trace", folder_.path("trace.json")});
    // Columns of measured iterations, of which none can be simulated.
    write_file_whole(more(), "pp,tp,dp,mbs,gbs,iteration_ms\n2,1,1,1,8,100\n");
  }
  std::string input() const { return folder_.path("in/x.json"); }
  std::string more() const { return folder_.path("more.csv"); }

  // Returns the arguments of a line, with SCENARIO, INPUT, MORE and FOLDER replaced.
  std::vector<std::string> arguments(std::string line, const json& scenario) const {
    write_file_whole(folder_.path("via.json"), scenario.dump());
    for (const auto& [word, text] : {std::pair(std::string("SCENARIO"), folder_.path("via.json")),
                                     {"INPUT", input()},
                                     {"MORE", more()},
                                     {"TRACE", folder_.path("trace.json")},
                                     {"FOLDER", folder_.path("")}}) {
      for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word)) {
        line.replace(at, word.size(), text);
      }
    }
    return words(line);
  }

  // Expects that a command refuses to write `output`, an input of it.
  void expect_refused(std::vector<std::string> arguments, const std::string& flag, const std::string& output) const {
    write_file_whole(input(), kContent);
    arguments.insert(arguments.end(), {flag, output});
    const CommandResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_THAT(result.err, HasSubstr("is also the input")) << testing::PrintToString(arguments);
    EXPECT_EQ(read_file(input()), kContent) << testing::PrintToString(arguments);
  }

 private:
  TemporaryFolder folder_;
};

json base_scenario(Commands command) {
  json out = json::parse(R"({
    "model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256,
              "max_position_embeddings": 32},
    "parallelism": {"pp": 2}, "batch": {"micro_batch": 1, "global_batch": 8, "sequence_length": 32}})");
  if (command != kRun) out["cluster"] = {{"name", "dgx-h100"}};
  return out;
}

// Returns the settings that may name a file and that a command reads.
std::vector<std::string> file_settings(Commands command) {
  std::vector<std::string> out;
  for (const Setting& row : settings()) {
    const bool cost = row.pointer == "/cost";
    if (row.kind != SettingKind::path && row.kind != SettingKind::name && !cost) continue;
    if ((row.reads & command) != 0) out.emplace_back(row.pointer);
  }
  return out;
}

class ProtectedFiles : public testing::TestWithParam<FileReader> {};

// The generated cases: each output of the command with each setting that names a file, and with each other input.
TEST_P(ProtectedFiles, AreNotReplaced) {
  const FileReader& reader = GetParam();
  const Files files;
  for (const std::string& flag : outputs_of(reader.command)) {
    const auto needs = reader.output_needs.find(flag);
    const std::string command = std::string(reader.command) + " ";
    const std::string more = needs == reader.output_needs.end() ? "" : std::string(" ") + needs->second;
    for (const std::string& pointer : file_settings(reader.settings)) {
      if (*reader.with_scenario == '\0') break;
      json scenario = base_scenario(reader.settings);
      scenario[json::json_pointer(pointer)] = files.input();
      if (pointer == "/cost") scenario["cost"] = {{"kind", "fitted"}, {"file", files.input()}};
      files.expect_refused(files.arguments(command + reader.with_scenario + more, scenario), flag, files.input());
    }
    for (const std::string line : reader.with_input) {
      const auto has = [&line](const char* word) { return line.find(word) != std::string::npos; };
      if (flag == "--checkpoint" && has("--resume")) continue;  // continues it
      if (has("--compare-with") && (flag == "--svg" || flag == "--csv")) continue;
      files.expect_refused(files.arguments(command + line + more, base_scenario(reader.settings)), flag, files.input());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachCommand, ProtectedFiles, testing::ValuesIn(file_readers()),
                         [](const auto& reader) { return std::string(reader.param.command); });

TEST(ProtectedFiles, DerivedNamesAreNotOtherFiles) {
  const TemporaryFolder folder;
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& message) {
    const CommandResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  const std::string derived = folder.path("ch.0.et");
  const std::string scenario = folder.path("ch.1.et");
  write_file_whole(scenario, R"({"parallelism": {"pp": 2}, "batch": {"microbatches": 2}})");
  const std::vector<std::string> chakra = {"simulate", "--chakra", folder.path("ch")};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), chakra.begin(), chakra.end());
    return more;
  };
  refused(with({"--pp", "2", "--microbatches", "2", "--trace", derived}),
          derived + " is also --trace '" + derived + "'");
  refused(with({scenario}), scenario + " is also the input '" + scenario + "'");
  // Constants of a cluster file, whose new name is that of the file.
  const std::string node = folder.path("ours.node.json");
  write_file_whole(node, R"({"node": "dgx-h100", "nodes": 1})");
  const std::string via = folder.path("via.json");
  json document = base_scenario(kPlan);
  document["cluster"] = node;
  write_file_whole(via, document.dump());
  const std::string rows = folder.path("rows.csv");
  write_file_whole(rows, "gbs,iteration_ms\n8,100\n16,190\n24,290\n32,380\n");
  refused({"calibrate", rows, "--scenario", via, "--constants", "gpu/memory_efficiency", "--folds", "2", "-o",
           folder.path("ours")},
          node + " is also the input '" + node + "'");
}

TEST(ProtectedFiles, EveryCommandThatWritesIsTested) {
  CLI::App app;
  const auto commands = tools::add_commands(app, {"sluice", "--help-man"});
  std::set<std::string> tested = {"schedules"};  // reads no file
  for (const FileReader& reader : file_readers()) tested.insert(reader.command);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = command->get_name();
    EXPECT_TRUE(outputs_of(name).empty() || tested.contains(name)) << name;
  }
}

}  // namespace
}  // namespace sluice::test
