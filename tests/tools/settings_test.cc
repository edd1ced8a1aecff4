// Walks the table of settings: each row has an effect on every command that reads it, the others refuse it or name it.

#include "model/scenario/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/scenario/scenario.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"
#include "tools/command/scenario_flags.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using namespace model;  // NOLINT(google-build-using-namespace)

// A dense model on 16 GPUs, in which nearly every setting matters.
json dense_scenario() {
  return json::parse(R"({
    "model": {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
              "num_query_groups": 8, "vocab_size": 128256, "swiglu": true, "normalization": "RMSNorm",
              "position_embedding_type": "rope", "max_position_embeddings": 4096, "disable_bias_linear": true,
              "untie_embeddings_and_output_weights": true, "hidden_dropout": 0, "attention_dropout": 0},
    "cluster": {"name": "dgx-h100"},
    "parallelism": {"pp": 4, "tp": 2, "dp": 2},
    "batch": {"micro_batch": 1, "global_batch": 32, "sequence_length": 4096},
    "schedule": {"name": "1f1b"}})");
}

// The same for runs: a model with steps of milliseconds on four workers. Workers of tensor parallelism wait for each
// other in every layer, which takes three quarters of a run on a busy machine.
json tiny_scenario() {
  json out = dense_scenario();
  out.erase("cluster");
  out["model"].update(json::parse(R"({"num_layers": 16, "hidden_size": 64, "ffn_hidden_size": 96, "vocab_size": 64,
      "num_attention_heads": 4, "num_query_groups": 4, "max_position_embeddings": 32})"));
  out["parallelism"].update({{"tp", 1}, {"dp", 1}});
  out["batch"] = {{"micro_batch", 1}, {"global_batch", 8}, {"sequence_length", 32}};
  return out;
}

// Returns the flags that set the keys of a document, in place of a file.
std::vector<std::string> flags_of(const json& document, Commands command) {
  std::vector<std::string> out;
  for (const Setting& row : settings()) {
    const json::json_pointer place{std::string(row.pointer)};
    if (row.kind == SettingKind::other) continue;  // of a syntax of its own
    if ((row.offers & command) == 0 || !document.contains(place) || document.at(place).is_null()) continue;
    const json& value = document.at(place);
    if (value.is_object()) continue;
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"' || c == ' '; });
    out.push_back(std::string(row.flag()) + "=" + text);
  }
  return out;
}

// A command, and how it is run on a scenario.
struct Reader {
  Commands command;
  std::vector<std::string> arguments;  // FILE is the scenario's, FLAGS its flags
  json base;
  std::vector<std::string> varies = {};  // keys of its output that differ between equal runs, or name what is given
};

std::vector<Reader> readers() {
  json experts = dense_scenario();
  experts["model"].update(json::parse(R"({"num_experts": 16, "moe_ffn_hidden_size": 8192,
      "moe_layer_freq": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]})"));
  experts["parallelism"].update({{"ep", 4}, {"sequence_parallel", true}});
  json uniform =
      json::parse(R"({"parallelism": {"pp": 4}, "batch": {"microbatches": 8}, "schedule": {"name": "1f1b"}})");
  return {
      {kSimulate,
       {"simulate", "FILE", "--json"},
       dense_scenario(),
       {"scenario", "seconds", "first_seconds", "assumptions"}},
      {kSlice, {"slice", "FILE", "--granularity", "1024", "--backward", "--json"}, dense_scenario(), {"assumptions"}},
      {kWeave, {"weave", "FILE", "--stage", "3", "--json"}, experts, {"assumptions"}},
      {kKernels, {"profile", "--like", "FILE", "--json"}, dense_scenario()},
      {kPlan,
       {"plan",          "FILE",
        "--schedule",    "1f1b,interleaved-1f1b,dualpipe",
        "--tp",          "1,2",
        "--pp",          "2,4",
        "--cp",          "1,2",
        "--ep",          "1,2,4",
        "--vpp",         "2",
        "--mbs",         "1",
        "--recompute",   "none,selective",
        "--even-stages", "--all",
        "--top",         "30",
        "--json"},
       dense_scenario(),
       {"seconds"}},
      {kSchedule, {"schedule", "FLAGS", "--uniform", "f=10,b=12,w=8,comm=3", "--json"}, uniform, {"seconds"}},
      {kRun,
       {"run", "FILE", "--steps", "2", "--json"},
       tiny_scenario(),
       {"step_s", "wall_step_s", "tokens_per_s", "seconds", "wall_seconds", "kernels_s", "waiting_s", "overhead_s"}}};
}

// Where a command needs another example than the row's, or the same with something else.
struct Instead {
  Commands command;
  std::string_view pointer;
  std::string_view example;  // "": the effect is on times alone
  std::string_view with = "";
};
constexpr std::string_view kTinyExperts =
    R"({"model": {"num_experts": 8, "moe_ffn_hidden_size": 32, "moe_shared_expert_intermediate_size": 32},)"
    R"( "parallelism": {"tp": 2, "dp": 2, "ep": 4}})";
constexpr std::string_view kTinyDocuments = R"({"batch": {"global_batch": null, "lengths": "lognormal:16,1,32,8"}})";
constexpr std::string_view kTinyJointExperts =
    R"({"model": {"num_experts": 8, "moe_ffn_hidden_size": 32}, "parallelism": {"tp": 2, "dp": 2, "ep": 4},)"
    R"( "batch": {"global_batch": 16}, "schedule": {"name": "dualpipe"}})";
constexpr std::string_view kFewExperts =
    R"({"model": {"num_layers": 8, "num_experts": 16, "moe_ffn_hidden_size": 8192}})";
constexpr std::string_view kAllExperts = R"({"model": {"moe_layer_freq": null}})";
constexpr std::string_view kAllExpertsInterleaved =
    R"({"model": {"moe_layer_freq": null}, "schedule": {"name": "interleaved-1f1b"}})";
// Limited by its evaluations, so that the result is the same on every machine.
constexpr std::string_view kHardProblem = R"({"schedule": {"name": "auto", "memory_cap": "3mb", "evaluations": 3000}})";
constexpr std::string_view kExpertsWithoutSequences =
    R"({"model": {"num_experts": 16}, "parallelism": {"ep": 4, "sequence_parallel": null}})";
constexpr Instead kInstead[] = {
    // Flags of an automatic schedule, which has --uniform in all these runs.
    {kSchedule, "/cost/f", ""},
    // Kernels do not depend on these, but other settings require them.
    {kWeave, "/parallelism/sequence_parallel", "true", kExpertsWithoutSequences},
    {kKernels, "/parallelism/sequence_parallel", "true", kExpertsWithoutSequences},
    // The host must take longer than dispatch and combine.
    {kWeave, "/parallelism/cuda_graph_modules", R"(["attn"])",
     R"({"model": {"num_experts": 512, "moe_ffn_hidden_size": 128},)"
     R"( "parallelism": {"tp": 1, "dp": 4, "ep": 2, "cuda_graph_impl": "local"}})"},
    {kKernels, "/model/position_embedding_type", R"("rope")",
     R"({"model": {"position_embedding_type": "learned", "max_position_embeddings": null}})"},
    {kKernels, "/model/disable_bias_linear", "true",
     R"({"model": {"disable_bias_linear": false, "num_experts": 16, "moe_shared_expert_intermediate_size": 64},)"
     R"( "parallelism": {"sequence_parallel": true}})"},
    // Of configurations of other frameworks, it is the number of GPUs.
    {kSlice, "/cluster/nodes", ""},
    {kWeave, "/cluster/nodes", ""},
    {kKernels, "/cluster/nodes", ""},
    {kKernels, "/parallelism/pp", "2", R"({"parallelism": {"pp": null}})"},
    {kKernels, "/schedule/name", ""},  // only known ones are accepted
    {kSchedule, "/batch/sequence_length", "64"},
    {kSchedule, "/batch/micro_batch", "2"},
    {kRun, "/parallelism/layers_per_virtual_stage", "1", R"({"schedule": {"name": "interleaved-1f1b"}})"},
    {kRun, "/schedule/slice_lengths", "[24, 8]", R"({"schedule": {"name": "seq1f1b"}})"},
    {kRun, "/schedule/slicing", R"("balanced")",
     R"({"model": {"hidden_size": 16, "ffn_hidden_size": 16, "max_position_embeddings": 256},)"
     R"( "batch": {"sequence_length": 256}, "schedule": {"name": "seq1f1b", "slices": 4}})"},
    {kRun, "/schedule/batches", "1", R"({"schedule": {"name": "pipedream-2bw"}})"},
    {kRun, "/parallelism/stage_layers", "[3, 5, 5, 3]"},
    {kRun, "/parallelism/pipeline_layout", R"("Et*3|t*5|t*5|t*3L")"},
    {kRun, "/parallelism/dp", "2"},
    {kRun, "/parallelism/ep", "2", kTinyExperts},
    {kRun, "/parallelism/joint_overlap", R"("none")", kTinyJointExperts},
    {kRun, "/parallelism/weave", R"("whole-backward")", kTinyJointExperts},
    // Messages have other sizes and times, but the same contents: tests/exec has them.
    {kRun, "/parallelism/overlap_grad_reduce", ""},
    {kRun, "/parallelism/scatter_gather", ""},
    {kRun, "/batch/sequence_length", "16"},
    {kRun, "/batch/lengths", R"("lognormal:16,1,32,8")", R"({"batch": {"global_batch": null}})"},
    {kRun, "/batch/pack", R"("greedy")", kTinyDocuments},
    {kRun, "/batch/order", R"("ascending")", kTinyDocuments},
    {kRun, "/model",
     R"({"num_layers": 8, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 32})"},
    {kRun, "/model/num_attention_heads", "8"},
    {kRun, "/model/num_layers", "8"},
    {kRun, "/model/hidden_size", "32"},
    {kRun, "/model/ffn_hidden_size", "64"},
    {kRun, "/model/vocab_size", "128"},
    {kRun, "/model/kv_channels", "32"},
    {kRun, "/model/num_query_groups", "2"},
    {kRun, "/model/max_position_embeddings", "64", R"({"model": {"position_embedding_type": "learned"}})"},
    {kRun, "/model/num_experts", "16", kTinyExperts},
    {kRun, "/model/moe_router_topk", "1", kTinyExperts},
    {kRun, "/model/moe_ffn_hidden_size", "64", kTinyExperts},
    {kRun, "/model/moe_shared_expert_intermediate_size", "64", kTinyExperts},
    {kRun, "/model/moe_shared_expert_gate", "true", kTinyExperts},
    {kRun, "/model/moe_layer_freq", "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]", kTinyExperts},
    {kRun, "/model/activation_func_clamp_value", "1", kTinyExperts},
    {kRun, "/parallelism/tp", "2"},
    {kWeave, "/parallelism/pp", "8", kAllExperts},
    {kWeave, "/parallelism/vpp", "4", kAllExpertsInterleaved},
    {kWeave, "/parallelism/layers_per_virtual_stage", "2", kAllExpertsInterleaved},
    {kWeave, "/model/num_layers", "24", kAllExperts},
    {kPlan, "/parallelism/joint_overlap", R"("none")", kFewExperts},
    {kPlan, "/parallelism/weave", R"("whole-backward")", kFewExperts},
    {kPlan, "/parallelism/moe_communication_sms", "64", kFewExperts},
    // Read with --no-sequence-parallel alone.
    {kPlan, "/parallelism/scatter_gather", ""},
    {kSchedule, "/perturbation/seed", "2", kHardProblem},
    {kSchedule, "/schedule/evaluations", "1", kHardProblem},
    {kSchedule, "/schedule/time_budget_s", "0", kHardProblem},
};

void erase_keys(json& document, const std::vector<std::string>& keys) {
  if (document.is_object()) {
    for (const std::string& key : keys) document.erase(key);
  }
  if (document.is_structured()) {
    for (json& element : document) erase_keys(element, keys);
  }
}

// Runs a command on a scenario. Returns its output without what varies, or the error.
std::string output_of(const Reader& reader, const json& scenario, const std::string& file) {
  write_file_whole(file, scenario.dump());
  std::vector<std::string> arguments;
  for (const std::string& word : reader.arguments) {
    if (word == "FLAGS") {
      if (reader.command == kSchedule) arguments.push_back(scenario["schedule"]["name"].get<std::string>());
      for (const std::string& flag : flags_of(scenario, reader.command)) arguments.push_back(flag);
    } else {
      arguments.push_back(word == "FILE" ? file : word);
    }
  }
  const CommandResult result = run_sluice(arguments);
  if (result.exit_code != 0 && result.exit_code != 3) return "error: " + result.err;
  if (reader.varies.empty()) return result.out + result.err;
  json document = json::parse(result.out, nullptr, false);
  if (document.is_discarded()) return result.out;
  erase_keys(document, reader.varies);
  return document.dump() + (reader.command == kWeave ? result.err : "");  // has no joint blocks
}

json with_example(const json& base, const Setting& row, std::string_view example) {
  json out = base;
  out[json::json_pointer(std::string(row.pointer))] = json::parse(example);
  return out;
}

// Returns the row's other example for a command, or null.
const Instead* instead_of(const Setting& row, Commands command) {
  const auto* const found = std::find_if(std::begin(kInstead), std::end(kInstead), [&](const Instead& each) {
    return each.command == command && each.pointer == row.pointer;
  });
  return found == std::end(kInstead) ? nullptr : found;
}

std::string_view example_for(const Setting& row, Commands command) {
  const Instead* const instead = instead_of(row, command);
  return instead != nullptr ? instead->example : row.example;
}

// Returns the rows that a command reads and that have an example.
std::vector<const Setting*> rows_read_by(Commands command) {
  std::vector<const Setting*> out;
  for (const Setting& row : settings()) {
    if ((row.reads & command) != 0 && !example_for(row, command).empty()) out.push_back(&row);
  }
  return out;
}

std::vector<const Setting*> all_rows() {
  std::vector<const Setting*> out;
  for (const Setting& row : settings()) out.push_back(&row);
  return out;
}

// Calls `work` for rows, on two threads.
void for_each_setting(const std::vector<const Setting*>& rows, const auto& work) {
  std::atomic<std::size_t> next = 0;
  const auto loop = [&] {
    for (std::size_t i = next++; i < rows.size(); i = next++) work(*rows[i], i);
  };
  std::thread other(loop);
  loop();
  other.join();
}

class EverySetting : public testing::TestWithParam<int> {};

// Outputs of a command on base scenarios, each run once. Runs that overlap may both take place.
class BaseOutputs {
 public:
  explicit BaseOutputs(const Reader& reader) : reader_(reader) {}

  std::string of(const json& base, const std::string& file) {
    const std::string key = base.dump();
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = known_.find(key); found != known_.end()) return found->second;
    }
    std::string output = output_of(reader_, base, file);
    const std::lock_guard lock(mutex_);
    return known_.emplace(key, std::move(output)).first->second;
  }

 private:
  const Reader& reader_;
  std::mutex mutex_;
  std::map<std::string, std::string> known_;
};

TEST_P(EverySetting, HasAnEffectWhereItIsRead) {
  const TemporaryFolder folder;
  const Reader reader = readers()[static_cast<std::size_t>(GetParam())];
  const std::vector<const Setting*> rows = rows_read_by(reader.command);
  EXPECT_GT(rows.size(), 10U);
  BaseOutputs outputs(reader);
  // A plan with sanitizers takes seconds.
  const auto tried = reader.command == kPlan ? in_scope(in_scope(rows)) : in_scope(rows);
  for_each_setting(tried, [&](const Setting& row, std::size_t i) {
    const Instead* const instead = instead_of(row, reader.command);
    json base = reader.base;
    if (const std::string_view with = instead != nullptr ? instead->with : row.with; !with.empty()) {
      base.merge_patch(json::parse(with));
    }
    const std::string file = folder.path(std::to_string(i) + ".json");
    const std::string before = outputs.of(base, file);  // may be an error that asks for the setting
    const std::string after = output_of(reader, with_example(base, row, example_for(row, reader.command)), file);
    EXPECT_FALSE(after.starts_with("error")) << row.pointer << ": " << after;
    EXPECT_FALSE(before == after) << row.pointer << " has no effect";
  });
}

INSTANTIATE_TEST_SUITE_P(Commands, EverySetting, testing::Range(0, 7), [](const auto& command) {
  return readers()[static_cast<std::size_t>(command.param)].arguments[0];
});

// Returns the rows with an example and a key of a section, which a file may have.
std::vector<const Setting*> rows_of_files() {
  std::vector<const Setting*> out;
  for (const Setting& row : settings()) {
    if (!row.example.empty() && !row.pointer.starts_with("/model")) out.push_back(&row);
  }
  return out;
}

TEST(Settings, KeysThatACommandDoesNotReadAreNamed) {
  for (const auto& [command, name] : {std::pair(kSlice, "slice"), {kWeave, "weave"}, {kPlan, "plan"}, {kRun, "run"}}) {
    const TemporaryFolder folder;
    for (const Setting* row : rows_of_files()) {
      json document;
      document[json::json_pointer(std::string(row->pointer))] = json::parse(row->example);
      const std::string file = folder.path("one.json");
      write_file_whole(file, document.dump());
      const std::string note = tools::ScenarioFlags::unused(file, name, command);
      const std::string section(row->pointer.substr(0, row->pointer.find('/', 1)));
      if (((row->reads | row->refuses) & command) != 0) {
        EXPECT_EQ(note, "") << name;
      } else {
        EXPECT_THAT(
            note, testing::AnyOf(testing::EndsWith(" " + std::string(row->pointer)), testing::EndsWith(" " + section)))
            << name;
      }
    }
  }
}

TEST(Settings, RunsRefuseWhatTheyCannotDo) {
  const TemporaryFolder folder;
  const Reader run = readers().back();
  for (const Setting& row : settings()) {
    if ((row.refuses & kRun) == 0) continue;
    json base = run.base;
    if (!row.with.empty() && row.pointer != "/parallelism/recompute_modules") base.merge_patch(json::parse(row.with));
    const std::string out = output_of(run, with_example(base, row, row.example), folder.path("run.json"));
    EXPECT_THAT(out, testing::StartsWith("error: ")) << row.pointer;
  }
}

TEST(Settings, FlagsOfOtherCommandsAreRefusedByName) {
  for (const auto& [command, name] : {std::pair(kSlice, "slice"),
                                      {kWeave, "weave"},
                                      {kSchedule, "schedule"},
                                      {kComplete, "import"},
                                      {kComplete, "calibrate"}}) {
    for (const Setting& row : settings()) {
      if (row.flags.empty() || (row.offers & command) != 0) continue;
      if (command == kSlice && row.flag() == "--time-budget") continue;  // a flag of its own
      if (row.flag() == "--slicing" || row.flag() == "--memory-cap" || row.flag() == "--jitter" ||
          row.flag() == "--fp8-dispatch") {
        const CommandResult result = run_sluice({name, std::string(row.flag()) + "=1"});
        EXPECT_EQ(result.exit_code, 2);
        EXPECT_THAT(result.err, testing::HasSubstr(std::string(name) + ": " + std::string(row.flag()) + " "));
      }
    }
  }
}

// 'schedule' reads no scenario file, which could have a key without a flag.
TEST(Settings, ScheduleHasAFlagForAllThatItReads) {
  for (const Setting& row : settings()) {
    if (!row.flags.empty() && (row.reads & kSchedule) != 0) {
      EXPECT_NE(row.offers & kSchedule, 0) << row.pointer;
    }
  }
}

// The number of flags in the help of a command.
int flags_in_help(const std::string& command) {
  std::istringstream lines(run_sluice({command, "--help-all"}).out);
  int flags = 0;
  for (std::string line; std::getline(lines, line);) flags += line.starts_with("  -") ? 1 : 0;
  return flags;
}

TEST(Settings, CommandsOfferWhatTheyRead) {
  EXPECT_LE(flags_in_help("schedule"), 25);
  EXPECT_LE(flags_in_help("slice"), 45);
  EXPECT_LE(flags_in_help("calibrate"), 40);
  for (const char* command : {"simulate", "plan", "run", "slice"}) {
    const std::string help = run_sluice({command, "--help"}).out;
    EXPECT_LE(std::count(help.begin(), help.end(), '\n'), std::string(command) == "simulate" ? 60 : 68) << command;
  }
}

// A document with one setting, in which the others have their defaults.
Scenario scenario_with(const Setting& row, const json& value) {
  json document = dense_scenario();
  if (!row.with.empty()) document.merge_patch(json::parse(row.with));
  document[json::json_pointer(std::string(row.pointer))] = value;
  return scenario_from_json(document, "test", "");
}

TEST(Settings, RangesAreEnforced) {
  for (const Setting& row : settings()) {
    if (!row.has_range() || row.kind == SettingKind::reals || row.kind == SettingKind::other) continue;
    const bool list = row.kind == SettingKind::wholes;
    const double step = row.kind == SettingKind::real ? 1e-6 + 1e-6 * row.high : 1;
    for (const double number : {row.low - step, row.high + step}) {
      if (row.high > 1e18 && number > 1e18) continue;
      json value = row.kind == SettingKind::real ? json(number) : json(static_cast<std::int64_t>(number));
      if (list) value = json::array({value});
      EXPECT_THROW(static_cast<void>(scenario_with(row, value)), InputError) << row.pointer << " " << value;
    }
  }
}

TEST(Settings, DefaultsOfTheTableAreThoseOfTheMembers) {
  for (const Setting& row : settings()) {
    const json fallback = json::parse(row.fallback, nullptr, false);
    if (row.place == nullptr || fallback.is_discarded()) continue;
    Scenario scenario;
    const SettingPlace place = row.place(scenario);
    if (auto* const* whole = std::get_if<int*>(&place)) {
      EXPECT_EQ(**whole, fallback) << row.pointer;
    }
    if (auto* const* real = std::get_if<double*>(&place)) {
      EXPECT_EQ(**real, fallback) << row.pointer;
    }
    if (auto* const* yes = std::get_if<bool*>(&place)) {
      EXPECT_EQ(**yes, fallback) << row.pointer;
    }
    if (const auto* word = std::get_if<WordPlace>(&place)) {
      const std::vector<std::string> words = split_words(row.words);
      EXPECT_EQ(words.at(*static_cast<std::uint8_t*>(word->member)), fallback) << row.pointer;
    }
  }
}

TEST(Settings, FlagsMeanTheSameAsKeys) {
  const TemporaryFolder folder;
  const Reader file = readers().front();
  const Reader flags{kSimulate, {"simulate", "FLAGS", "--json"}, file.base, {"scenario", "assumptions"}};
  for_each_setting(in_scope(all_rows()), [&](const Setting& row, std::size_t i) {
    if ((row.offers & kSimulate) == 0 || row.example.empty() || row.pointer.starts_with("/cost")) return;
    if (row.kind == SettingKind::other) return;
    json document = file.base;
    if (!row.with.empty()) document.merge_patch(json::parse(row.with));
    document = with_example(document, row, row.example);
    if (document["schedule"]["name"] == "auto") return;  // its search takes time, which the result has
    const std::string path = folder.path(std::to_string(i) + ".json");
    json one = json::parse(output_of(file, document, path), nullptr, false);
    json other = json::parse(output_of(flags, document, path), nullptr, false);
    EXPECT_FALSE(one.is_discarded()) << row.pointer;
    EXPECT_TRUE(one == other) << row.pointer << "\n" << json::diff(one, other).dump().substr(0, 300);
  });
}

// A setting is its row and the code that uses it. Counts the files besides the table that name a key which the table
// reads; a change may lower the number, but a new setting has no reason to raise it.
TEST(Settings, KeysStandInTheTable) {
  namespace fs = std::filesystem;
  std::vector<std::string> sources;
  for (const char* folder : {"model", "sim", "exec", "tools", "traces"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(SLUICE_SOURCE_DIR) / folder)) {
      const fs::path& path = entry.path();
      if ((path.extension() == ".cc" || path.extension() == ".h") &&
          !path.filename().string().starts_with("setting_rows")) {
        sources.push_back(read_file(path.string()));
      }
    }
  }
  ASSERT_GT(sources.size(), 300U);
  int mentions = 0;
  for (const Setting& row : settings()) {
    if (row.place == nullptr) continue;
    const std::string quoted = "\"" + std::string(row.key()) + "\"";
    const std::string path = "/" + std::string(row.key()) + "\"";
    mentions += static_cast<int>(std::count_if(sources.begin(), sources.end(), [&](const std::string& text) {
      return text.find(quoted) != std::string::npos || text.find(path) != std::string::npos;
    }));
  }
  EXPECT_LE(mentions, 121);
}

}  // namespace
}  // namespace sluice::test
