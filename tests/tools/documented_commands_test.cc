// The commands of README and docs: bash splits each block of commands, the parser accepts every command, and what this
// machine can run is run in the order of the text, so that no command goes stale.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tools/commands.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;
using testing::Not;

const fs::path kRoot(SLUICE_SOURCE_DIR);

struct DocumentedCommand {
  std::vector<std::string> arguments;
  int exit_code = 0;  // as the text says: "exit code 3"

  std::string line() const {
    std::string out = "sluice";
    for (const std::string& argument : arguments) out += " " + argument;
    return out;
  }
  bool has(const std::string& argument) const {
    return std::find(arguments.begin(), arguments.end(), argument) != arguments.end();
  }
};

// Returns the indented blocks of a text that have commands. Of a block with a prompt, only the lines that begin with
// it.
std::vector<std::string> command_blocks(const std::string& text) {
  static const std::regex command("(^|[ /\"])sluice\"? [a-z]");
  std::vector<std::string> blocks(1);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    ")) {
      blocks.back() += line.substr(4) + "\n";
    } else if (!line.empty()) {
      blocks.emplace_back();
    }
  }
  std::erase_if(blocks, [](const std::string& block) { return !std::regex_search(block, command); });
  for (std::string& block : blocks) {
    if (!block.starts_with("$ ")) continue;
    std::istringstream all(block);
    block.clear();
    for (std::string line; std::getline(all, line);) {
      if (line.starts_with("$ ")) block += line.substr(2) + "\n";
    }
  }
  return blocks;
}

int documented_exit_code(const std::string& text, const DocumentedCommand& command) {
  const std::size_t at = text.find(command.line() + " ");
  if (at == std::string::npos) return 0;
  const std::string line = text.substr(at, text.find('\n', at) - at);
  std::smatch code;
  return std::regex_search(line, code, std::regex("exit code (\\d+)")) ? std::stoi(code[1]) : 0;
}

// Returns the commands of a text. Bash runs its blocks with a `sluice` that records its arguments, and with launchers
// that run their command once.
std::vector<DocumentedCommand> documented_commands(const std::string& text) {
  const test::TemporaryFolder folder;
  const auto program = [&](const std::string& name, const std::string& script) {
    fs::create_directories(fs::path(folder.path(name)).parent_path());
    model::write_file_whole(folder.path(name), "#!/bin/bash\n" + script);
    fs::permissions(folder.path(name), fs::perms::owner_all);
  };
  const std::string record = "printf '%s\\n' \"$@\" > \"$RECORDS/$(printf %04d $(ls \"$RECORDS\" | wc -l))\"\n";
  program("bin/sluice", record);
  program("build/release/tools/sluice", record);
  for (const char* launcher : {"mpirun", "srun", "torchrun"}) {
    program(std::string("bin/") + launcher, "while [[ ${1##*/} != sluice ]]; do shift; done\n\"$@\"\n");
  }
  for (const char* name : {"bin/pip", "bin/python3", "bin/sluice-args"}) program(name, "exit 0\n");
  fs::create_directories(folder.path("records"));
  for (const std::string& block : command_blocks(text)) {
    const std::string setup = "cd '" + folder.path() + "'\nexport PATH=$PWD/bin:$PATH RECORDS=$PWD/records\n";
    const test::CommandResult result = test::run_program(
        "/bin/bash", {"-euc", setup + block}, {"SLURM_SUBMIT_DIR=" + folder.path(), "SLURM_JOB_ID=1", "HEAD=node1"});
    EXPECT_EQ(result.exit_code, 0) << block << result.err;
  }
  std::vector<fs::path> records(fs::directory_iterator(folder.path("records")), {});
  std::sort(records.begin(), records.end());
  std::vector<DocumentedCommand> commands;
  for (const fs::path& path : records) {
    DocumentedCommand& command = commands.emplace_back();
    std::istringstream lines(model::read_file(path));
    for (std::string line; std::getline(lines, line);) command.arguments.push_back(line);
    command.exit_code = documented_exit_code(text, command);
  }
  return commands;
}

std::string parse_error(const DocumentedCommand& command) {
  CLI::App app;
  const std::vector<Subcommand> commands = add_commands(app, command.arguments);
  std::vector<std::string> reversed(command.arguments.rbegin(), command.arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

// Whether the command ends within seconds on a machine without GPUs and Emscripten. The others are only parsed.
bool can_run(const DocumentedCommand& command) {
  const bool gpu = command.has("cuda");
  const bool long_search = command.has("auto") || (command.has("plan") && !command.has("--schedule"));
  const bool engine = command.has("--live");  // the tests in a browser have one
  return !gpu && !long_search && !engine && !command.has("validate");
}

// Returns the command with less work: fewer steps, trials and microbatches, a shorter measurement.
DocumentedCommand shortened(DocumentedCommand command) {
  constexpr std::array kFewer = {std::pair{"--steps", "3"}, std::pair{"--trials", "10"}};
  for (std::size_t i = 0; i + 1 < command.arguments.size(); ++i) {
    for (const auto& [flag, number] : kFewer) {
      if (command.arguments[i] == flag) command.arguments[i + 1] = number;
    }
  }
  const auto add = [&](const char* flag, const char* value) {
    if (!command.has(flag)) command.arguments.insert(command.arguments.end(), {flag, value});
  };
  if (command.has("run")) add("--steps", "3");
  if (command.has("--chakra")) add("--gbs", "128");
  if (command.has("profile") && !command.has("--like"))
    command.arguments.insert(command.arguments.end(), {"--time-budget", "0.5"});
  // Of a profile that was measured in no time, beside other tests.
  if (command.has("fit")) command.arguments.insert(command.arguments.end(), {"--max-error", "100000%"});
  return command;
}

// Creates what a reader is supposed to have: examples, measured traces, a profile, logs and a schedule.
void create_files_of_a_reader() {
  fs::create_directory_symlink(kRoot / "examples", "examples");
  fs::create_directory_symlink(kRoot / "examples/models", "models");
  const auto create = [](const std::string& line) {
    const test::CommandResult result = test::run_sluice(test::words(line));
    ASSERT_EQ(result.exit_code, 0) << line << "\n" << result.err;
  };
  create("simulate --pp 2 --microbatches 4 --uniform f=1,b=1,w=1 --trace predicted.json");
  create("simulate --pp 2 --microbatches 4 --uniform f=1.1,b=1,w=1 --trace measured.json");
  create("schedule 1f1b --pp 2 --microbatches 4 -o mine.csv");
  create(
      "profile --num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32 "
      "--vocab-size 64 --time-budget 0.5 -o profile.json");
  for (const char* name : {"mbs1", "mbs2", "mbs4"}) {
    fs::copy_file(kRoot / "examples/gpt3-175b-a100.json", std::string(name) + ".json");
  }
  for (const char* name : {"pretrain.sh", "args.txt"}) {
    model::write_file_whole(
        name,
        "torchrun --nproc-per-node 8 pretrain_gpt.py "
        "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
        "--vocab-size 51200 --micro-batch-size 1 --global-batch-size 16 --bf16\n");
  }
  fs::copy_file(kRoot / "tests/fuzz/corpus/import/nemo.yaml", "megatron_gpt_config.yaml");
  const fs::path samples = kRoot / "tests/traces/measured/samples";
  fs::copy(samples / "primus_pp8", "pp_logs");
  fs::copy_file(samples / "bytedance/timeline-ST.json.gz", "timeline.json.gz");
  fs::create_directory("pytorch_traces");
  model::write_file_whole("pytorch_traces/rank0.json",
                          R"({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
                              "ts": 1, "dur": 2}]})");
  model::write_file_whole("kernel_times.json",
                          R"({"schema": "sluice.kernel_times/1", "gpu": "A100-80GB", "device": "NVIDIA A100-SXM4-80GB",
                              "library": "PyTorch 2.8.0", "kernels": [{"kernel": "gemm", "pass": "forward",
                              "format": "bf16", "m": 2048, "n": 4608, "k": 12288, "seconds": 0.001}]})");
  model::write_file_whole("chunks.csv", "tokens,context,seconds\n2048,0,0.1\n2048,8192,0.12\n4096,0,0.2\n");
  model::write_file_whole("lengths.txt", "2048\n1000 900\n700\n1500 90\n9\n800\n1200 700\n400\n");
  const auto log = [](const char* name, double ms, std::string text = "") {
    for (int i = 1; i <= 12; ++i)
      text += fmt::format(" iteration {}/12 | elapsed time per iteration (ms): {} |\n", i, ms);
    model::write_file_whole(name, text);
  };
  log("train.log", 900);
  model::write_file_whole("train.log", model::read_file("train.log") +
                                           "(min, max) time across ranks (ms):\n    optimizer ...: (20.00, 21.00)\n");
  log("mbs1.log", 33000);
  log("mbs2.log", 33500);
  log("run.log", 900,
      "  num_layers ... 24\n  hidden_size ... 1024\n  num_attention_heads ... 16\n  seq_length ... 2048\n"
      "  max_position_embeddings ... 2048\n  vocab_size ... 51200\n  micro_batch_size ... 1\n"
      "  global_batch_size ... 16\n  bf16 ... True\n  world_size ... 8\n");
}

class Documentation : public testing::TestWithParam<const char*> {};

TEST_P(Documentation, CommandsAreTrue) {
  const std::string text = model::read_file(kRoot / GetParam());
  const std::vector<DocumentedCommand> commands = documented_commands(text);
  ASSERT_THAT(commands, Not(IsEmpty()));
  for (const DocumentedCommand& command : commands) EXPECT_EQ(parse_error(command), "") << command.line();
  const test::TemporaryFolder folder;
  fs::current_path(folder.path());
  create_files_of_a_reader();
  std::set<std::string> done;
  for (const DocumentedCommand& command : commands) {
    if (!can_run(command) || !done.insert(command.line()).second) continue;
    const test::CommandResult result = test::run_sluice(shortened(command).arguments);
    EXPECT_EQ(result.exit_code, command.exit_code) << command.line() << "\n" << result.err;
  }
  fs::current_path(kRoot);
}

INSTANTIATE_TEST_SUITE_P(Of, Documentation, testing::Values("README.md", "docs/guide.md", "docs/cluster.md"),
                         [](const auto& test) { return fs::path(test.param).stem().string(); });

}  // namespace
}  // namespace sluice::tools
