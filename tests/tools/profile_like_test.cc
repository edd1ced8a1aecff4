// `sluice profile --like`, the script that it writes, and its times in `calibrate` and `simulate`.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kRestOfLlama = "--model llama3-8b --pp 1 --gbs 8 --seq-length 8192";
const std::string kTimedLlama = kRestOfLlama + " --cluster dgx-h100 --tp 8";

class ProfileLike : public testing::Test {
 protected:
  static CommandResult sluice(const std::string& line) { return run_sluice(words(line)); }
  static json json_of(const std::string& line) {
    const CommandResult result = sluice(line);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  static std::string error_of(const std::string& line) {
    const CommandResult result = sluice(line);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  }

  std::string write(const std::string& name, const std::string& text) const {
    write_file_whole(folder_.path(name), text);
    return folder_.path(name);
  }

  // Times of the listed kernels from the `first` one, each `ratio` times the prediction.
  std::string write_times(const std::string& name, const json& shapes, double ratio, std::size_t first = 0) const {
    json out = {{"schema", "sluice.kernel_times/1"},
                {"gpu", shapes.at("gpu")},
                {"device", "NVIDIA H100 80GB HBM3"},
                {"library", "PyTorch 2.8.0"}};
    for (std::size_t i = first; i < shapes.at("kernels").size(); ++i) {
      json row = shapes.at("kernels")[i];
      row["seconds"] = ratio * row.at("predicted_s").get<double>();
      out["kernels"].push_back(row);
    }
    return write(name, out.dump());
  }

  TemporaryFolder folder_;
};

TEST_F(ProfileLike, ListsTheKernelsOfAFileAndOfFlags) {
  const json flags = json_of("profile --like --json " + kTimedLlama);
  EXPECT_EQ(flags.at("schema"), "sluice.kernel_shapes/1");
  EXPECT_EQ(flags.at("gpu"), "H100-80GB");
  EXPECT_EQ(flags.at("kernels").size(), 17);
  const std::string file = write("llama.json", json({{"model", "llama3-8b"},
                                                     {"cluster", "dgx-h100"},
                                                     {"parallelism", {{"tp", 8}, {"pp", 1}}},
                                                     {"batch", {{"global_batch", 8}, {"sequence_length", 8192}}}})
                                                   .dump());
  for (const std::string& line : {"--like " + file, "--like=" + file, file + " --like"}) {
    EXPECT_EQ(json_of("profile --json " + line), flags) << line;
  }
  EXPECT_EQ(json_of("profile --json --like " + file + " --tp 4").at("kernels").size(), 17);
  const std::string megatron =
      "--use-flash-attn --tensor-model-parallel-size 8 --num-layers 2 --hidden-size 1024 --num-attention-heads 16 "
      "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000";
  std::vector<std::string> imported = words("profile --like --json --cluster dgx-h100 --nodes 1 --megatron-args");
  imported.push_back(megatron);
  EXPECT_EQ(run_sluice(imported).exit_code, 0) << run_sluice(imported).err;
  double seconds = 0;
  for (const json& row : flags.at("kernels"))
    seconds += row.at("count").get<double>() * row.at("predicted_s").get<double>();
  double compute = 0;  // of 8 microbatches, without collectives and the host's time
  const json simulated = json_of("simulate --json --explain " + kTimedLlama);
  for (const json& op : simulated.at("explain")) {
    for (const json& row : op.at("kernels")) {
      if (row.at("limit") != "link" && row.at("limit") != "host") compute += 8 * row.at("seconds").get<double>();
    }
  }
  EXPECT_THAT(
      sluice("profile --like " + kTimedLlama).out,
      HasSubstr(fmt::format("17 kernels with {:.1f} % of the predicted compute time", 100 * seconds / compute)));
}

TEST_F(ProfileLike, RefusesScenariosWithoutKernels) {
  EXPECT_THAT(error_of("profile --like --pp 2 --microbatches 4"),
              HasSubstr("--like: expected a scenario with a model, a cluster and the analytic cost"));
  EXPECT_THAT(error_of("profile --like=a.json b.json"), HasSubstr("--like: expected one scenario"));
  EXPECT_THAT(error_of("profile --like --model llama3-8b --cluster dgx-h100 --tp 3 --pp 1 --gbs 3 --seq-length 8192"),
              HasSubstr("must be a multiple of the tensor-parallel size (3)"));
  const CommandResult ring = sluice("profile --like " + kRestOfLlama + " --cluster dgx-h100 --cp 2");
  EXPECT_EQ(ring.exit_code, 0) << ring.err;
  EXPECT_THAT(ring.err, HasSubstr("attention is not listed"));
  EXPECT_THAT(ring.out, Not(HasSubstr("attention")));
}

TEST_F(ProfileLike, PredictionsUseTheTimes) {
  const json shapes = json_of("profile --like --json " + kTimedLlama);
  const std::string all = folder_.path("all.json");
  const CommandResult joined = sluice("calibrate " + write_times("times.json", shapes, 1.25) + " -o " + all);
  ASSERT_EQ(joined.exit_code, 0) << joined.err;
  // 1 / 1.25 - 1 = -20 %.
  EXPECT_THAT(joined.out, HasSubstr("GEMM forward bf16                        5                         20.0 %"));
  EXPECT_THAT(joined.out, HasSubstr("H100-80GB, PyTorch 2.8.0 (NVIDIA H100 80GB HBM3)"));
  const json before = json_of("simulate --json --explain " + kTimedLlama);
  const json after = json_of("simulate --json --explain " + kTimedLlama + " --kernel-times " + all);
  EXPECT_FALSE(before.contains("measured_kernels"));
  const json& measured = after.at("measured_kernels");
  EXPECT_EQ(measured.at("measured_shapes"), 17);
  EXPECT_EQ(measured.at("shapes"), 17);
  EXPECT_EQ(measured.at("library"), "PyTorch 2.8.0");
  EXPECT_TRUE(measured.at("not_measured").empty());
  // 8 microbatches of 32 layers with 14 kernels each, and of the head with 3; and the row sums of the backward.
  EXPECT_EQ(measured.at("measured_kernels"), 8 * (32 * 15 + 3));
  double more = 0;  // seconds per microbatch
  for (const json& row : shapes.at("kernels")) {
    more += 0.25 * row.at("predicted_s").get<double>() * row.at("count").get<double>() / 8;
  }
  double difference = 0;
  for (std::size_t op = 0; op < before.at("explain").size(); ++op) {
    for (std::size_t i = 0; i < before.at("explain")[op].at("kernels").size(); ++i) {
      const json& old = before.at("explain")[op].at("kernels")[i];
      const json& now = after.at("explain")[op].at("kernels")[i];
      if (old.at("name") == "d attention, row sums") continue;
      difference += now.at("seconds").get<double>() - old.at("seconds").get<double>();
      EXPECT_EQ(now.at("measured").get<bool>(), old.at("flops").get<double>() > 0) << now;
    }
  }
  EXPECT_NEAR(difference / more, 1, 1e-9);
}

TEST_F(ProfileLike, KernelsWithoutAMeasurementAreReportedAndListedAgain) {
  const json shapes = json_of("profile --like --json " + kTimedLlama);
  const std::string some = write_times("some.json", shapes, 1, 2);
  const CommandResult text = sluice("simulate --explain " + kTimedLlama + " --kernel-times " + some);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("measured kernels  15 of 17 GEMM and attention shapes"));
  EXPECT_THAT(text.out, HasSubstr("not measured: attention backward bf16 1 x 8192 tokens, 4 heads of 128, "));
  EXPECT_THAT(text.out, HasSubstr("tensor cores, measured"));
  const json again = json_of("profile --like --json " + kTimedLlama + " --kernel-times " + some);
  ASSERT_EQ(again.at("kernels").size(), 2);
  EXPECT_EQ(again.at("kernels")[0], shapes.at("kernels")[0]);
  // Both files together have all.
  const std::string all = folder_.path("all.json");
  ASSERT_EQ(sluice("calibrate " + some + " " + write_times("rest.json", again, 1) + " -o " + all).exit_code, 0);
  EXPECT_EQ(
      json_of("simulate --json " + kTimedLlama + " --kernel-times " + all).at("measured_kernels").at("measured_shapes"),
      17);
  EXPECT_THAT(error_of("profile --like " + kTimedLlama + " --kernel-times " + all),
              HasSubstr("all GEMM and attention"));
}

TEST_F(ProfileLike, TimesOfAnotherGpuAndOtherLibrariesAreRefused) {
  const json shapes = json_of("profile --like --json " + kTimedLlama);
  const std::string times = write_times("times.json", shapes, 1, 2);
  EXPECT_THAT(error_of("simulate " + kRestOfLlama + " --cluster dgx-a100-80gb --tp 8 --kernel-times " + times),
              HasSubstr("--kernel-times: measured on the GPU H100-80GB, but the cluster has A100-80GB"));
  EXPECT_THAT(error_of("simulate --pp 2 --microbatches 4 --uniform f=1 --kernel-times " + times),
              HasSubstr("--kernel-times: only valid with a cluster and the analytic cost"));
  json other = json::parse(read_file(times));
  other["library"] = "PyTorch 2.9.0";
  EXPECT_THAT(error_of("calibrate " + times + " " + write("other.json", other.dump())),
              HasSubstr("other.json: /library: expected PyTorch 2.8.0, as in"));
  EXPECT_THAT(error_of("calibrate " + times + " " + times), HasSubstr("an earlier file has the kernel GEMM"));
  EXPECT_THAT(error_of("calibrate " + times + " --constants gpu/kernel_s"), HasSubstr("--constants"));
  EXPECT_THAT(error_of("calibrate " + times + " --pp 2"), HasSubstr("no effect on kernel times"));
  EXPECT_THAT(error_of("calibrate " + write("cut.json", read_file(times).substr(0, 200))),
              HasSubstr("cut.json: line 1"));
  EXPECT_THAT(error_of("calibrate " + write("list.json", "[]")), HasSubstr("list.json"));
}

// Returns a command that runs Python with PyTorch, or nothing.
std::vector<std::string> python_with_torch() {
  const char* named = std::getenv("SLUICE_TEST_PYTHON");
  std::vector<std::string> command = {named != nullptr ? named : "python3"};
  const CommandResult result = run_program("/usr/bin/env", {command[0], "-c", "import torch"});
  if (result.exit_code != 0) command.clear();
  return command;
}

// The script on the CPU, for a cluster whose GPU has another name than those of the catalogue.
TEST_F(ProfileLike, TheScriptTimesTheListedKernels) {
  const std::vector<std::string> python = python_with_torch();
  if (python.empty()) {
    GTEST_SKIP() << "SKIPPED: no Python with PyTorch: set SLUICE_TEST_PYTHON to an interpreter that has it";
  }
  json gpu = json::parse(read_file(SLUICE_SOURCE_DIR "/model/cluster/catalogue/gpus/h100-80gb.json"));
  gpu["name"] = "cpu";
  json node = json::parse(read_file(SLUICE_SOURCE_DIR "/model/cluster/catalogue/nodes/dgx-h100.json"));
  node["gpu"] = gpu;
  const std::string scenario =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --num-query-groups 2 --vocab-size 256 "
      "--max-position-embeddings 32 --seq-length 32 "
      "--pp 1 --gbs 2 --cluster " +
      write("node.json", node.dump());
  const std::string script = folder_.path("kernels.py");
  const CommandResult written = sluice("profile --like " + scenario + " -o " + script);
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const auto timed = [&](const std::string& arguments) {
    std::vector<std::string> command = python;
    for (const std::string& word : words(script + " --repetitions 2 --warm-up 1 " + arguments)) command.push_back(word);
    return run_program("/usr/bin/env", command);
  };
  const std::string times = folder_.path("times.json");
  const CommandResult result = timed("--device cpu -o " + times);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const json simulated = json_of("simulate --json " + scenario + " --kernel-times " + times);
  EXPECT_EQ(simulated.at("measured_kernels").at("measured_shapes"), simulated.at("measured_kernels").at("shapes"));
  EXPECT_EQ(simulated.at("measured_kernels").at("device"), "cpu");
  EXPECT_EQ(sluice("calibrate " + times).exit_code, 0);

  // FP8 needs a GPU: skipped with the reason, and reported as not measured. The rest is used.
  ASSERT_EQ(sluice("profile --like " + scenario + " --precision fp8 -o " + script).exit_code, 0);
  const CommandResult narrow = timed("--device cpu -o " + times);
  ASSERT_EQ(narrow.exit_code, 0) << narrow.out << narrow.err;
  EXPECT_THAT(narrow.out, HasSubstr("skipped: FP8 needs a GPU"));
  const json part = json_of("simulate --json " + scenario + " --precision fp8 --kernel-times " + times);
  EXPECT_EQ(part.at("measured_kernels").at("measured_shapes"), 5);  // head and attention
  EXPECT_EQ(part.at("measured_kernels").at("shapes"), 17);

  const int files = folder_.num_files();
  EXPECT_NE(timed("--device cuda:99 -o " + folder_.path("none.json")).exit_code, 0);
  EXPECT_NE(timed("--device cpu -o " + folder_.path("absent/none.json")).exit_code, 0);
  EXPECT_EQ(folder_.num_files(), files);  // nothing is left behind
  EXPECT_EQ(timed("--device cpu --dtype float32 -o " + times).exit_code, 0);
  EXPECT_THAT(error_of("calibrate " + times), HasSubstr("format"));
}

}  // namespace
}  // namespace sluice::test
