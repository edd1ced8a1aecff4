// `sluice calibrate` on the command line, and its files in `simulate`.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "traces/chrome/gzip.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kRest =
    " --num-layers 16 --num-attention-heads 16 --vocab-size 51200 --max-position-embeddings 1024 --pp 2 --tp 2 "
    "--seq-length 1024";
const std::string kScenario = std::string("--hidden-size 2048 --cluster dgx-a100-80gb") + kRest;

double predicted_with(const std::string& flags) {
  return test::json_of(words("simulate --json " + flags)).at("makespan_s");
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
    const double seconds = 1.2 * predicted_s("--gbs " + std::to_string(batch));
    table += std::to_string(batch) + ",1," + std::to_string(seconds) + "\n";
  }
  const std::string csv = write("ours.csv", table);
  const std::string file = folder_.path("ours.calibration.json");
  const CommandResult made = run(csv + " --fit scale -o " + file + " " + kScenario);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("iteration = 1.2000 x predicted + 0"));

  const json document = test::json_of(words("simulate --json " + kScenario + " --gbs 64 --calibration " + file));
  const json& calibration = document.at("calibration");
  const double expected = 1.2 * document.at("makespan_s").get<double>();
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
  const CommandResult result = run(log + " --fit scale --json --gbs 8 " + kScenario);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schema"), "sluice.calibration/1");
  EXPECT_NEAR(document.at("scale").get<double>(), 0.7 / predicted_s("--gbs 8"), 1e-6);
  EXPECT_THAT(error_of(log + " --skip 3 --gbs 8 " + kScenario),
              HasSubstr("expected more than --skip 3 iterations, got 3"));
}

TEST_F(Calibrate, ANegativeFixedTimeIsFittedAndExplained) {
  std::string table = "gbs,mbs,iteration_s\n";
  double shortest = 0;
  for (const int batch : {128, 32}) {
    shortest = predicted_s("--gbs " + std::to_string(batch));
    table += fmt::format("{},1,{}\n", batch, shortest - 0.01);
  }
  const std::string file = folder_.path("ours.calibration.json");
  const CommandResult made = run(write("ours.csv", table) + " --fit fixed -o " + file + " " + kScenario);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("iteration = 1.0000 x predicted - 10 ms"));
  EXPECT_THAT(made.out, HasSubstr("The fixed time is negative"));
  EXPECT_THAT(made.out, HasSubstr("+0.00 %"));
  // Below the shortest measurement the correction is in proportion to it.
  const json document = test::json_of(words("simulate --json --gbs 2 --calibration " + file + " " + kScenario));
  const double expected = document.at("makespan_s").get<double>() * (1 - 0.01 / shortest);
  EXPECT_NEAR(document.at("calibration").at("iteration_s").get<double>(), expected, 1e-6 * expected);
}

// Two rows, of which scaling one predicts the other with an error.
TEST_F(Calibrate, QuotesTheHeldOutErrorAndTheGain) {
  const double few = predicted_s("--gbs 8");
  const double many = predicted_s("--gbs 128");
  const std::string table = fmt::format("gbs,iteration_s\n8,{}\n128,{}\n", few + 0.1 * few, many + 0.1 * few);
  const CommandResult result = run(write("ours.csv", table) + " --fit scale " + kScenario);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double first = (1 + 0.1 * few / many) / 1.1 - 1;
  const double second = 1.1 / (1 + 0.1 * few / many) - 1;
  const double held_out = 100 * std::sqrt((first * first + second * second) / 2);
  const double before = 100 * std::hypot(1 - 1 / 1.1, 1 - 1 / (1 + 0.1 * few / many)) / std::sqrt(2);
  EXPECT_THAT(result.out, HasSubstr("kept: a scale, as --fit specifies\n"));
  EXPECT_THAT(result.out, HasSubstr(fmt::format(
                              "held-out error: {:.2f} % (root mean square), {:.2f} % worst; without a correction "
                              "{:.2f} %: gain {:+.2f} points; each of the 2 measurements predicted from the other",
                              held_out, 100 * second, before, before - held_out)));
  EXPECT_THAT(run(write("one.csv", "gbs,iteration_s\n8,1\n") + " " + kScenario).out,
              HasSubstr("held-out error: not measurable with one measurement"));
}

TEST_F(Calibrate, PrintsWhatItKeepsAndItsWeight) {
  const auto table = [&](double first, double second) {
    return write("ours.csv", fmt::format("gbs,iteration_s\n32,{}\n128,{}\n", first * predicted_s("--gbs 32"),
                                         second * predicted_s("--gbs 128")));
  };
  const std::string agree = table(1.3, 1.3);
  EXPECT_THAT(run(agree + " " + kScenario).out,
              testing::ContainsRegex("kept: a scale, with weight 0\\.[1-9][0-9] \\("));
  const json kept = json::parse(run(agree + " --json " + kScenario).out);
  EXPECT_EQ(kept.at("kept"), "scale");
  EXPECT_NEAR(std::log(kept.at("scale").get<double>()) / std::log(1.3), kept.at("weight").get<double>(), 1e-4);
  EXPECT_NEAR(kept.at("held_out_error_before").get<double>(), 1 - 1 / 1.3, 1e-4);
  const std::string disagree = table(1.3, 1.0);
  EXPECT_THAT(run(disagree + " " + kScenario).out, HasSubstr("kept: nothing: the measurements do not show"));
  const json nothing = json::parse(run(disagree + " --json " + kScenario).out);
  EXPECT_EQ(nothing.at("kept"), "nothing");
  EXPECT_EQ(nothing.at("weight"), 0);
  EXPECT_EQ(nothing.at("scale"), 1);
}

TEST_F(Calibrate, WarnsOfAnotherModelFrameworkPrecisionAndGpu) {
  const std::string file = folder_.path("ours.calibration.json");
  const std::string csv = write("ours.csv", fmt::format("gbs,iteration_s\n8,{}\n", predicted_s("--gbs 8")));
  ASSERT_EQ(run(csv + " -o " + file + " " + kScenario).exit_code, 0);
  const auto warning = [&](const std::string& command, const std::string& flags) {
    const CommandResult result =
        run_sluice(words(command + " --calibration " + file + " --gbs 8" + kRest + " " + flags));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  const std::string same = "--hidden-size 2048 --cluster dgx-a100-80gb";
  EXPECT_EQ(warning("simulate", same), "");
  EXPECT_EQ(warning("simulate", "--hidden-size 2048 --cluster dgx-h100"),
            "sluice: warning: the calibration may not hold for GPU H100-80GB (it was made from GPU A100-80GB)\n");
  EXPECT_EQ(warning("simulate", same + " --software nemo"),
            "sluice: warning: the calibration may not hold for framework NeMo (it was made from framework "
            "Megatron-LM)\n");
  EXPECT_THAT(warning("simulate", "--hidden-size 2048 --cluster dgx-h100 --precision fp8"),
              HasSubstr("precision fp8, GPU H100-80GB (it was made from precision 16-bit, GPU A100-80GB)"));
  EXPECT_THAT(warning("simulate --json", "--hidden-size 1024 --cluster dgx-a100-80gb"),
              HasSubstr("the calibration may not hold for model 16 layers of 1024 (0."));
  EXPECT_THAT(warning("simulate", same + " --sweep cluster=dgx-a100-80gb,dgx-h100"), HasSubstr("GPU H100-80GB"));
  const CommandResult plan = run_sluice(
      words("plan --gpus 4 --gbs 8 --num-layers 16 --num-attention-heads 16 --vocab-size 51200 "
            "--max-position-embeddings 1024 "
            "--seq-length 1024 --hidden-size 2048 --cluster dgx-h100 --tp 2 --pp 2 --schedule 1f1b --calibration " +
            file));
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("GPU H100-80GB"));
}

TEST_F(Calibrate, LogsMustMatchTheirScenario) {
  const std::string log =
      write("run.log",
            "  global_batch_size ............................... 16\n"
            " iteration 1/9 | elapsed time per iteration (ms): 900.0 | global batch size:    16 |\n");
  EXPECT_THAT(error_of(log + " --skip 0 --gbs 8 " + kScenario),
              HasSubstr("run.log: line 1: global_batch_size is 16, but the scenario (command line) has 8"));
  EXPECT_EQ(run(log + " --skip 0 --gbs 16 " + kScenario).exit_code, 0);
}

// Which docs/formats.md describes; the accuracy program compares it.
TEST_F(Calibrate, PeaksOfMemoryAreIgnored) {
  const std::string rows = write("peaks.csv", "microbatches,iteration_s,peak_memory_gib\n8,1,50\n16,2,\n");
  EXPECT_EQ(run(rows + " --microbatches 4 " + kScenario).exit_code, 0);
}

TEST_F(Calibrate, UnknownAndContradictoryColumnsAreErrors) {
  const std::string typo = write("typo.csv", "microbaches,iteration_s\n8,1\n");
  EXPECT_THAT(error_of(typo + " --microbatches 4 " + kScenario),
              HasSubstr("typo.csv: header: unknown column 'microbaches'; did you mean 'microbatches'?"));
  EXPECT_THAT(error_of(typo + " --constants software/issue_s --microbatches 4 " + kScenario),
              HasSubstr("unknown column 'microbaches'"));
  EXPECT_EQ(run(typo + " --ignore-columns microbaches --microbatches 4 " + kScenario).exit_code, 0);
  EXPECT_THAT(error_of(typo + " --ignore-columns microbaches,mfu --microbatches 4 " + kScenario),
              HasSubstr("--ignore-columns: no table has a column 'mfu'"));
  EXPECT_THAT(error_of(write("times.csv", "gbs,iteration_s,iteration_ms\n8,1,1000\n") + " " + kScenario),
              HasSubstr("columns 'iteration_s' and 'iteration_ms' have the same meaning: keep one"));
  EXPECT_THAT(error_of(write("both.csv", "gbs,microbatches,iteration_s\n8,4,1\n") + " " + kScenario),
              HasSubstr("both.csv: row 1: /batch/global_batch: expected micro_batch x dp x microbatches = 1 x 1 x 4"));
  EXPECT_THAT(error_of(write("units.csv", "gbs,iteration_s\n8,90000\n") + " " + kScenario),
              HasSubstr("units.csv: row 1: the measured time is "));
  EXPECT_THAT(error_of(write("kernels.csv", "gpu,m_tokens,k,n,median_ms\na100,1,1,1,1\n")),
              HasSubstr("kernels.csv: nothing to fit: expected at least 6 rows of a GPU or link of the catalogue"));
}

TEST_F(Calibrate, ConstantsPerFormatAreFittedToGzippedKernels) {
  const std::string table = folder_.path("gemms.csv.gz");
  std::string text = "gpu,dtype,m,n,k,best_us\n";
  for (const int m : {1024, 2048, 4096, 8192}) {
    for (const int n : {2048, 8192}) {
      const double us = 2.0 * m * n * 4096 / 1e9;
      text += fmt::format("H100,bf16,{0},{1},4096,{2}\nH100,fp8,{0},{1},4096,{3}\n", m, n, us + 5, us / 2 + 9);
    }
  }
  traces::write_maybe_zipped(table, [&](const traces::ByteSink& sink) { sink(text); });
  const CommandResult result = run(table + " -o " + folder_.path("catalogue"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("GEMMs, 8 bits"));
  const json gpu = json::parse(read_file(folder_.path("catalogue/h100-80gb.json")));
  EXPECT_NE(gpu.at("gemm_8bit").at("launch_s"), gpu.at("gemm").at("launch_s"));
  EXPECT_GT(gpu.at("gemm_8bit").at("peak_flops_per_s"), gpu.at("peak_flops_per_s").at("value"));
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

TEST_F(Calibrate, OneMeasurementGivesTheTermThatIsAskedFor) {
  const double measured = predicted_s("--gbs 32") + 0.25;
  const std::string csv = write("one.csv", fmt::format("gbs,mbs,iteration_s\n32,1,{:.9f}\n", measured));
  const std::string file = folder_.path("one.calibration.json");
  for (const auto& [flag, expected] : {std::pair(std::string(" --fit fixed"), predicted_s("--gbs 64") + 0.25),
                                       {" --fit scale", predicted_s("--gbs 64") * measured / (measured - 0.25)}}) {
    ASSERT_EQ(run(csv + " -o " + file + flag + " " + kScenario).exit_code, 0);
    const CommandResult result =
        run_sluice(words("simulate --json --gbs 64 --mbs 1 --calibration " + file + " " + kScenario));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NEAR(json::parse(result.out).at("calibration").at("iteration_s").get<double>(), expected, 1e-6) << flag;
  }
}

TEST_F(Calibrate, ErrorsAreOneLineWithTheLocation) {
  const std::string csv = write("t.csv", "gbs,iteration_s\n8,1\n16,2\n");
  EXPECT_THAT(error_of(csv + " --fit line " + kScenario), HasSubstr("--fit"));
  EXPECT_THAT(error_of(csv + " --constants software/issue_s --fit fixed " + kScenario),
              HasSubstr("--fit has no effect on --constants"));
  EXPECT_THAT(error_of(folder_.path("none.csv")), HasSubstr("none.csv"));
  EXPECT_THAT(error_of(write("empty.csv", "")), HasSubstr("empty.csv: expected a header"));
  EXPECT_THAT(error_of(write("rows.csv", "gbs,iteration_s\n") + " " + kScenario),
              HasSubstr("rows.csv: expected at least one measured iteration"));
  for (const char* constants : {"", " --constants gpu/memory_efficiency"}) {
    EXPECT_THAT(error_of(write("oom.csv", "gbs,iteration_s\n8,OOM\n") + " " + kScenario + constants),
                HasSubstr("oom.csv: expected at least one measured iteration (rows with OOM have no time)"));
  }
  EXPECT_THAT(error_of(write("family.csv", "gbs,iteration_s,schedule\n8,1,1f1b\n8,1,foo\n") + " " + kScenario),
              HasSubstr("family.csv: row 2, column schedule: there is no schedule family 'foo'"));
  EXPECT_THAT(error_of(csv + " --folds 1 " + kScenario), HasSubstr("--folds: expected a whole number from 2 to 1000"));
  EXPECT_THAT(error_of(csv + " --constants gpu/memory_eficiency " + kScenario),
              HasSubstr("--constants: unknown constant 'gpu/memory_eficiency'; did you mean 'gpu/memory_efficiency'?"));
  EXPECT_THAT(error_of(csv + " --constants software/issue_s@2 " + kScenario),
              HasSubstr("expected a table number from 1 to 1"));
  EXPECT_THAT(error_of(csv + " --constants software/issue_s=7 " + kScenario), HasSubstr("expected a prior value from"));
  EXPECT_THAT(error_of(csv + " --constants software/issue_s " + kScenario),
              HasSubstr("--folds: expected at least as many measured iterations as folds (10), got 2"));
  EXPECT_THAT(error_of(write("bad.csv", "gbs,iteration_s\n8,nan\n") + " " + kScenario),
              HasSubstr("bad.csv: row 1, column iteration_s: expected a number, got 'nan'"));
  EXPECT_THAT(error_of(csv + "=" + folder_.path("none.json")), HasSubstr("none.json"));
  EXPECT_THAT(error_of(csv + "=" + write("own.json", "{}") + " --gbs 8"),
              HasSubstr("--scenario and the flags of a scenario have no effect"));
  EXPECT_THAT(error_of(csv + " -o " + folder_.path("no/such/folder.json") + " " + kScenario), HasSubstr("folder.json"));
  EXPECT_THAT(error_of(write("other.csv", "a,b\n1,2\n") + " " + kScenario),
              HasSubstr("other.csv: header: expected a column of measured times"));
  EXPECT_THAT(error_of(csv), HasSubstr("/parallelism/pp"));
}

}  // namespace
}  // namespace sluice::test
