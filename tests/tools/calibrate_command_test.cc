// `sluice calibrate` on the command line, and its files in `simulate`.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kRest =
    " --num-layers 16 --num-attention-heads 16 --vocab-size 51200 --max-position-embeddings 1024 --pp 2 --tp 2 "
    "--seq-length 1024";
const std::string kScenario = std::string("--hidden-size 2048 --cluster dgx-a100-80gb") + kRest;

double predicted_with(const std::string& flags) {
  const CommandResult result = run_sluice(words("simulate --json " + flags));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out).at("makespan_s");
}

double predicted_s(const std::string& flags) { return predicted_with(kScenario + " " + flags); }

class Calibrate : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    write_file_whole(folder_.path(name), text);
    return folder_.path(name);
  }
  CommandResult run(const std::string& arguments) const { return run_sluice(words("calibrate " + arguments)); }
  std::string error_of(const std::string& arguments) const {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }

  TemporaryFolder folder_;
};

TEST_F(Calibrate, MeasuredIterationsCorrectPredictions) {
  std::string table = "gbs,mbs,iteration_s\n";
  for (const int batch : {8, 32, 128}) {
    const double seconds = 1.2 * predicted_s("--gbs " + std::to_string(batch)) + 0.3;
    table += std::to_string(batch) + ",1," + std::to_string(seconds) + "\n";
  }
  const std::string csv = write("ours.csv", table);
  const std::string file = folder_.path("ours.calibration.json");
  const CommandResult made = run(csv + " -o " + file + " " + kScenario);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("iteration = 1.2000 x predicted + 300 ms"));

  const CommandResult result = run_sluice(words("simulate --json " + kScenario + " --gbs 64 --calibration " + file));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  const json& calibration = document.at("calibration");
  const double expected = 1.2 * document.at("makespan_s").get<double>() + 0.3;
  EXPECT_NEAR(calibration.at("iteration_s").get<double>(), expected, 1e-4);
  EXPECT_LT(calibration.at("low_s").get<double>(), expected);
  EXPECT_GT(calibration.at("high_s").get<double>(), expected);
  EXPECT_NEAR(document.at("throughput").at("tokens_per_s").get<double>(), 64 * 1024 / expected, 1);
  const CommandResult text = run_sluice(words("simulate " + kScenario + " --gbs 64 --calibration " + file));
  EXPECT_THAT(text.out, HasSubstr("90 % interval"));
}

TEST_F(Calibrate, ReadsLogsWithTheirScenarios) {
  const std::string log = write("run.log",
                                " iteration 1/9 | elapsed time per iteration (ms): 9000.0 |\n"
                                " iteration 2/9 | elapsed time per iteration (ms): 8000.0 |\n"
                                " iteration 3/9 | elapsed time per iteration (ms): 700.0 |\n");
  const CommandResult result = run(log + " --json --gbs 8 " + kScenario);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schema"), "sluice.calibration/1");
  EXPECT_NEAR(document.at("scale").get<double>(), 0.7 / predicted_s("--gbs 8"), 1e-6);
  EXPECT_THAT(error_of(log + " --skip 3 --gbs 8 " + kScenario),
              HasSubstr("expected more than --skip 3 iterations, got 3"));
}

TEST_F(Calibrate, FittedConstantsAreWrittenForSimulate) {
  std::string table = "hidden,micro_batch,microbatches,iter_ms\n";
  for (const int hidden : {1024, 4096}) {
    for (const int micro_batch : {1, 4}) {
      for (const int count : {2, 8}) {
        const double seconds =
            1.5 * predicted_with(fmt::format("--hidden-size {} --mbs {} --microbatches {} --cluster dgx-a100-80gb{}",
                                             hidden, micro_batch, count, kRest));
        table += fmt::format("{},{},{},{}\n", hidden, micro_batch, count, 1e3 * seconds);
      }
    }
  }
  const std::string csv = write("rows.csv", table);
  const CommandResult result =
      run(csv + " --constants gpu/gemm/peak_fraction,gpu/memory_efficiency,software/issue_s=9e-5 --folds 4 -o " +
          folder_.path("found") + " " + kScenario);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("gpu/gemm/peak_fraction"));
  const double slower =
      predicted_with("--hidden-size 2048 --microbatches 8 --mbs 4 --cluster " + folder_.path("found.node.json") +
                     " --software " + folder_.path("found.software.json") + kRest);
  EXPECT_GT(slower, 1.1 * predicted_s("--microbatches 8 --mbs 4"));
}

TEST_F(Calibrate, FitsLinksToTimedCollectives) {
  std::string table = "gpu,gpus,bytes,time_us,source\n";
  for (const int gpus : {2, 4, 8}) {
    for (double bytes = 1 << 20; bytes <= 1 << 30; bytes *= 4) {
      table += fmt::format("a100,{},{},{},made\n", gpus, bytes, 30 + 2.0 * (gpus - 1) / gpus * bytes / 2e5);
    }
  }
  const CommandResult result = run(write("nccl.csv", table) + " -o " + folder_.path("catalogue") + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(json::parse(result.out).at("fits").at(0).at("in_sample").at("mean").get<double>(), 0.03);
  const json link = json::parse(read_file(folder_.path("catalogue/nvlink3.json")));
  EXPECT_NEAR(link.at("collective_efficiency").at("value").get<double>(), 2e11 / 3e11, 0.03);
}

TEST_F(Calibrate, ErrorsAreOneLineWithTheLocation) {
  const std::string csv = write("t.csv", "gbs,iteration_s\n8,1\n16,2\n");
  EXPECT_THAT(error_of(folder_.path("none.csv")), HasSubstr("none.csv"));
  EXPECT_THAT(error_of(write("empty.csv", "")), HasSubstr("empty.csv: expected a header"));
  EXPECT_THAT(error_of(write("rows.csv", "gbs,iteration_s\n") + " " + kScenario),
              HasSubstr("expected at least one measured iteration"));
  EXPECT_THAT(error_of(csv + " --constants gpu/memory_eficiency " + kScenario),
              HasSubstr("did you mean 'gpu/memory_efficiency'?"));
  EXPECT_THAT(error_of(csv + " --constants software/issue_s@2 " + kScenario),
              HasSubstr("expected a table number from 1 to 1"));
  EXPECT_THAT(error_of(csv + " --constants software/issue_s=7 " + kScenario), HasSubstr("expected a prior value from"));
  EXPECT_THAT(error_of(csv + " --constants software/issue_s " + kScenario),
              HasSubstr("expected at least as many measured iterations as folds (10)"));
  EXPECT_THAT(error_of(write("bad.csv", "gbs,iteration_s\n8,nan\n") + " " + kScenario),
              HasSubstr("bad.csv: row 1, column iteration_s: expected a number, got 'nan'"));
  EXPECT_THAT(error_of(csv + "=" + folder_.path("none.json")), HasSubstr("none.json"));
  EXPECT_THAT(error_of(csv + " -o " + folder_.path("no/such/folder.json") + " " + kScenario), HasSubstr("folder.json"));
  EXPECT_THAT(error_of(write("other.csv", "a,b\n1,2\n") + " " + kScenario),
              HasSubstr("other.csv: header: expected a column of measured times"));
  EXPECT_THAT(error_of(csv), HasSubstr("/parallelism/pp"));
}

}  // namespace
}  // namespace sluice::test
