// Tests of the accuracy program.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

constexpr const char* kColumns =
    "gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,iter_ms,recompute,schedule\n";

TEST(AccuracyProgram, ScoresEveryRowAndReportsSkippedOnes) {
  const TemporaryFolder folder;
  write_file_whole(folder.path("rows.csv"), std::string(kColumns) +
                                                "8,32,4,1024,16,24,1024,2,2,2,219.7,full,1f1b\n"
                                                "8,32,4,1024,16,24,1024,2,2,3,219.7,full,1f1b\n"
                                                "4,16,4,2048,16,24,1024,1,2,2,410.5,full,1f1b\n");
  const CommandResult result = run_program(SLUICE_ACCURACY, {folder.path(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json table = json::parse(result.out).at("tables").at(0);
  EXPECT_EQ(table.at("table"), "vtrain-single");
  ASSERT_EQ(table.at("figures").size(), 2U);
  double sum = 0;
  for (const json& figure : table.at("figures")) {
    const double error = figure.at("predicted").get<double>() / figure.at("measured").get<double>() - 1;
    EXPECT_NEAR(figure.at("error").get<double>(), error, 1e-12);
    sum += std::abs(error);
  }
  EXPECT_NEAR(table.at("groups").at(0).at("mean_absolute_error").get<double>(), sum / 2, 1e-12);
  EXPECT_THAT(table.at("skipped").at(0).at("reason").get<std::string>(), HasSubstr("rows.csv: row 2, column gpus"));
  const CommandResult text = run_program(SLUICE_ACCURACY, {folder.path("rows.csv"), "--rows"});
  EXPECT_THAT(text.out, HasSubstr("1 rows skipped"));
}

// Measured times are 1.3 times the predicted ones, but the last 1.04 times as long as that: before calibration the mean
// error is (2 x 0.2308 + (1 - 1 / 1.352)) / 3 = 24.06 %. Each row after calibration on both others, which differ by
// less than a factor of 1.5, so that only a scale is fitted: 0.04 / 1.04 = 3.85 % of the last, and about 2 % of the
// others.
TEST(AccuracyProgram, CalibratesOnEveryPairOfRows) {
  const TemporaryFolder folder;
  const auto write = [&](const std::vector<double>& milliseconds) {
    std::string text = kColumns;
    for (std::size_t i = 0; i < milliseconds.size(); ++i) {
      text += fmt::format("8,{},4,1024,16,24,1024,2,2,2,{},full,1f1b\n", 32 + 8 * i, milliseconds[i]);
    }
    write_file_whole(folder.path("rows.csv"), text);
  };
  write({1, 1, 1});
  const json first = json::parse(run_program(SLUICE_ACCURACY, {folder.path(), "--json"}).out);
  std::vector<double> measured;
  for (const json& figure : first.at("tables").at(0).at("figures")) {
    measured.push_back(1300 * figure.at("predicted").get<double>());
  }
  ASSERT_EQ(measured.size(), 3U);
  write(measured);
  const auto calibrated = [&] { return run_program(SLUICE_ACCURACY, {folder.path(), "--calibrated"}).out; };
  EXPECT_THAT(calibrated(),
              HasSubstr("calibrated on two of 3 rows: 0.0 % (before 23.1 %, worst 0 %): 24 layers of 1024, "
                        "A100-80GB, bf16"));
  measured.back() *= 1.04;
  write(measured);
  EXPECT_THAT(calibrated(), HasSubstr("calibrated on two of 3 rows: 2.6 % (before 24.1 %, worst 4 %)"));
  // At least three rows are needed.
  write({1, 1});
  EXPECT_THAT(calibrated(), Not(HasSubstr("calibrated")));
}

// A table of one's own: columns as for calibrate, keys by pointer, and a measured peak of memory.
class UsersTable : public testing::Test {
 protected:
  UsersTable() {
    write_file_whole(
        folder_.path("own.json"),
        R"({"model": "llama3-8b", "cluster": "dgx-h100", "batch": {"sequence_length": 8192}, "schedule": "1f1b"})");
  }
  CommandResult score(const std::string& rows, const std::vector<std::string>& more = {}) const {
    write_file_whole(folder_.path("own.csv"), rows);
    std::vector<std::string> arguments = {folder_.path("own.csv") + "=" + folder_.path("own.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(SLUICE_ACCURACY, arguments);
  }

  const std::string rows_ =
      "tp,pp,gbs,/parallelism/precision,iteration_s,peak_memory_gib,note\n"
      "2,2,16,bf16,3.5,50,a\n"
      "1,4,16,fp8,OOM,,b\n"
      "2,2,32,fp8,5,,\"<b> & c\"\n"
      "3,1,16,,1,,d\n";
  TemporaryFolder folder_;
};

TEST_F(UsersTable, IsScoredByGpuAndPrecision) {
  const CommandResult result = score(rows_, {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json table = json::parse(result.out).at("tables").at(0);
  EXPECT_EQ(table.at("table"), "own");
  ASSERT_EQ(table.at("groups").size(), 3);
  const json& time = table.at("groups")[0];
  EXPECT_EQ(time.at("group"), "iteration time");
  EXPECT_EQ(time.at("gpu"), "H100-80GB");
  EXPECT_EQ(time.at("precision"), "bf16");
  EXPECT_EQ(time.at("worst_row"), folder_.path("own.csv") + ": row 1");
  EXPECT_EQ(table.at("groups")[1].at("group"), "peak memory");
  EXPECT_EQ(table.at("groups")[2].at("precision"), "fp8");
  const CommandResult alone =
      run_sluice(words("simulate --json --tp 2 --pp 2 --gbs 16 --precision bf16 " + folder_.path("own.json")));
  const json simulated = json::parse(alone.out);
  const json& figures = table.at("figures");
  EXPECT_NEAR(figures.at(0).at("predicted").get<double>(), simulated.at("makespan_s").get<double>(), 1e-9);
  double peak = 0;
  for (const json& rank : simulated.at("ranks")) peak = std::max(peak, rank.at("peak_memory_bytes").get<double>());
  EXPECT_NEAR(figures.at(1).at("predicted").get<double>(), peak / (1 << 30), 1e-6);
  EXPECT_EQ(figures.at(1).at("measured"), 50);
  EXPECT_EQ(table.at("fits").at("fits"), 2);
  EXPECT_EQ(table.at("fits").at("out_of_memory"), 1);
  ASSERT_EQ(table.at("skipped").size(), 1);
  EXPECT_EQ(table.at("skipped")[0].at("row"), folder_.path("own.csv") + ": row 4");
}

TEST_F(UsersTable, IsDrawnOnOnePage) {
  const std::string page = folder_.path("page.html");
  ASSERT_EQ(score(rows_, {"--html", page}).exit_code, 0);
  const std::string text = read_file(page);
  std::size_t points = 0;
  for (std::size_t at = text.find("<circle"); at != std::string::npos; at = text.find("<circle", at + 1)) ++points;
  EXPECT_EQ(points, 3);  // two times and a peak of memory
  EXPECT_THAT(text, HasSubstr(": row 3\n"));
  EXPECT_THAT(text, HasSubstr("fits: "));
  EXPECT_THAT(text, Not(HasSubstr("http")));
  EXPECT_THAT(text, Not(HasSubstr("<script")));
  EXPECT_NE(score(rows_, {"--html", folder_.path("none/page.html")}).exit_code, 0);
}

TEST_F(UsersTable, UnknownColumnsAreRefusedUnlessIgnored) {
  const std::string rows = "tp,pp,gbs,iteration_s,colour\n2,2,16,3.5,red\n";
  const CommandResult refused = score(rows);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("own.csv: header: unknown column 'colour'"));
  EXPECT_EQ(score(rows, {"--ignore-columns", "colour"}).exit_code, 0);
  const CommandResult damaged = score("tp,pp,gbs,iteration_s\n2,2,16,-1\n2,2,16,3\n");
  EXPECT_THAT(damaged.out, HasSubstr("1 rows skipped"));
  const CommandResult invalid = score("tp,pp,gbs,iteration_s\n2,2,16,-1\n");
  EXPECT_EQ(invalid.exit_code, 2);
  EXPECT_THAT(invalid.err, HasSubstr("no row can be predicted; the first: " + folder_.path("own.csv") + ": row 1"));
}

// Of a set of runs, the failed first choice is skipped.
TEST(AccuracyProgram, ReportsTheRegretOfChoices) {
  const TemporaryFolder folder;
  std::string rows =
      "model,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpus,tp,pp,dp,mbs,gbs,zero,status,iter_s,peak_mem_GB\n";
  const auto add = [&](int tp, int pp, int dp, const std::string& end) {
    rows += "llama-1.34B,16,2048,32,32,8192,131072,4096,8," + std::to_string(tp) + "," + std::to_string(pp) + "," +
            std::to_string(dp) + ",1,256,1," + end + "\n";
  };
  add(1, 1, 8, "failed,,");  // the predicted fastest
  add(1, 2, 4, "ok,4.0,20");
  add(8, 1, 1, "ok,3.2,10");  // the predicted slowest
  write_file_whole(folder.path("runs.csv"), rows);
  const CommandResult result = run_program(SLUICE_ACCURACY, {folder.path()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("first choice: slower than the best of 1 sets by 25.0 % (median), 25.0 % (mean); 1 "
                                    "choices had failed"));
  EXPECT_THAT(result.out, HasSubstr("best of five: slower than the best of 1 sets by 0.0 % (median)"));
}

// The published configuration is in the plan's space, so that it is never faster than the plan's first.
TEST(AccuracyProgram, ComparesPublishedConfigurationsWithPlans) {
  const TemporaryFolder folder;
  const std::string header =
      "model,size,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpus,gpu_type,tp,pp,vp,cp,ep,dp,mbs,gbs,recompute,"
      "precision,schedule,scaling,iter_s\n";
  const std::string shape = "Llama-3.1,8b,32,4096,32,8,14336,128256,8192,8,H100,";
  write_file_whole(folder.path("dgxc.csv"), header + shape + "1,1,1,2,1,4,1,128,,BF16,none,,12\n" + shape +
                                                "2,2,1,1,1,2,1,128,,BF16,1f1b,,12\n" + shape +
                                                "1,1,1,1,1,8,1,128,,FP6,none,,9\n");
  const CommandResult result = run_program(SLUICE_ACCURACY, {folder.path(), "--plans"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("H100 bf16: 2 configurations: slower by "));
  EXPECT_THAT(result.out, HasSubstr("%  sizes #"));
  EXPECT_THAT(result.out, Not(HasSubstr("\n  -")));
  EXPECT_THAT(result.out,
              HasSubstr("1 rows skipped, the first: " + folder.path("dgxc.csv") + ": row 3, column precision"));
}

// Rows of NVIDIA's tables, by GPU and precision; what is not modeled is named. `calibrate` reads what is written.
TEST(AccuracyProgram, ScoresNvidiasTables) {
  const TemporaryFolder folder;
  const std::string header =
      "release,task,model,layers,hidden,heads,kv_heads,ffn,vocab,experts,topk,seq,gpus,gpu_type,tp,pp,vp,cp,ep,dp,mbs,"
      "gbs,fsdp,recompute,precision,schedule,iter_s,note\n";
  const auto row = [](const std::string& task, const std::string& gpu, const std::string& fsdp,
                      const std::string& precision, double seconds) {
    return "26.08," + task + ",LLAMA3_8B,32,4096,32,8,14336,128256,,,8192,8," + gpu + ",1,1,1,1,1,8,2,128," + fsdp +
           ",," + precision + ",none," + std::to_string(seconds) + ",\n";
  };
  const std::string task = "Pre-Training Performance";
  write_file_whole(folder.path("bridge.csv"),
                   header + row(task, "DGX-GB300", "", "FP8-CS", 3.5) + row(task, "DGX-GB300", "0", "FP8", 3.6) +
                       row(task, "DGX-B200", "", "NVFP4", 4) + row(task, "DGX-H100", "8", "FP8", 9) +
                       row("LoRA Performance", "DGX-H100", "", "FP8", 9) + row(task, "DGX-X100", "", "FP8", 9));
  const CommandResult result =
      run_program(SLUICE_ACCURACY, {folder.path("bridge.csv"), "--rows", "--write-rows", folder.path("rows")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("GB300 fp8-current                      2 "));
  EXPECT_THAT(result.out, HasSubstr("B200 nvfp4                             1 "));
  for (const char* reason : {"row 4: fully sharded", "row 5: not pre-training", "row 6: no known GPU type"}) {
    EXPECT_THAT(result.out, HasSubstr(reason));
  }
  write_file_whole(folder.path("base.json"), R"({"schema": "sluice.scenario/1"})");
  const CommandResult fit =
      run_sluice({"calibrate", folder.path("rows/GB300-fp8-current.csv") + "=" + folder.path("base.json"),
                  "--constants", "gpu/gemm_8bit/peak_fraction", "--folds", "2"});
  EXPECT_EQ(fit.exit_code, 0) << fit.err;
  EXPECT_THAT(fit.out, HasSubstr("gpu/gemm_8bit/peak_fraction"));
}

// The last rank's peak from a line of arguments, with and without the settings that its container and its mode imply.
TEST(AccuracyProgram, ScoresPeaksOfArgumentLines) {
  const TemporaryFolder folder;
  const std::string header = "test,family,gpus,gpu_type,mem_max_allocated_bytes,all_args,source\n";
  const auto row = [](const std::string& family, const std::string& gpu, const std::string& more,
                      const std::string& file) {
    return "t," + family + ",4," + gpu +
           ",2500000000,--num-layers 12 --hidden-size 512 --num-attention-heads 8 --micro-batch-size 4 "
           "--global-batch-size 32 --seq-length 1024 --max-position-embeddings 1024 --use-distributed-optimizer True "
           "--transformer-impl transformer_engine --no-gradient-accumulation-fusion True --bf16 True" +
           more + "," + file + "\n";
  };
  write_file_whole(folder.path("golden.csv"),
                   header + row("gpt", "h100", "", "values_dev_dgx.json") +
                       row("gpt", "h100", " --deterministic-mode True", "values_dev_dgx.json") +
                       row("gpt", "a100", " --deterministic-mode True", "values_dev_dgx.json") +
                       row("gpt", "a100", " --deterministic-mode True", "values_lts_dgxa100_x.json") +
                       row("t5", "h100", "", "values_dev_dgx.json") +
                       row("gpt", "h100", " --perform-rl-step True", "values_dev_dgx.json") +
                       row("gpt", "v100", "", "values_dev_dgx.json"));
  const CommandResult result = run_program(SLUICE_ACCURACY, {folder.path("golden.csv"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json table = json::parse(result.out).at("tables").at(0);
  EXPECT_EQ(table.at("table"), "megatron-golden-values");
  std::vector<double> peaks;
  for (const json& figure : table.at("figures")) peaks.push_back(figure.at("predicted").get<double>());
  ASSERT_EQ(peaks.size(), 4U);
  EXPECT_DOUBLE_EQ(peaks[0], peaks[1]);
  EXPECT_NEAR(peaks[1] - peaks[2], 28 * 1048576 / 1e9, 1e-3);  // Transformer Engine's workspace
  EXPECT_GT(peaks[3], peaks[2] + 1.5);                         // GB: 12 layers with 5 a s s b = 168 MB of scores
  std::vector<std::string> reasons;
  for (const json& skipped : table.at("skipped")) reasons.push_back(skipped.at("reason").get<std::string>());
  EXPECT_THAT(reasons,
              testing::ElementsAre(HasSubstr("row 5: no GPT model"), HasSubstr("row 6: reinforcement learning"),
                                   HasSubstr("row 7, column gpu_type")));
}

TEST(AccuracyProgram, RejectsFoldersWithoutAKnownTable) {
  const TemporaryFolder folder;
  write_file_whole(folder.path("other.csv"), "a,b\n1,2\n");
  const CommandResult result = run_program(SLUICE_ACCURACY, {folder.path()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("expected at least one table with the columns of a known kind"));
}

// 16 sequences of 4,096 tokens on 8 GPUs at 8,192 tokens/s per GPU take 1 s.
TEST(AccuracyProgram, ScoresTimeAndMemoryOfTorchtitan) {
  const TemporaryFolder folder;
  const std::string row = "tiny,16,2048,16,4,8192,128256,4096,8,H200,8,1,1,1,1,2,16,";
  write_file_whole(
      folder.path("rows.csv"),
      "model,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpus,gpu_type,dp_shard,tp,pp,vp,cp,local_batch,gbs,"
      "recompute,precision,compile,async_tp,tokens_s_gpu,peak_mem_GiB\n" +
          row + "selective,bf16,True,False,8192,40\n" + row + "full,bf16,False,False,8192,\n" + row +
          "full,float4,True,False,8192,40\n");
  const CommandResult result =
      run_program(SLUICE_ACCURACY, {folder.path("rows.csv"), "--json", "--write-rows", folder.path("out")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json table = json::parse(result.out).at("tables").at(0);
  EXPECT_EQ(table.at("table"), "torchtitan");
  ASSERT_EQ(table.at("figures").size(), 3U);
  EXPECT_NEAR(table.at("figures").at(0).at("measured").get<double>(), 1, 1e-9);
  EXPECT_EQ(table.at("figures").at(1).at("measured"), 40);
  // Full recomputation and unfused kernels take longer.
  EXPECT_GT(table.at("figures").at(2).at("predicted"), table.at("figures").at(0).at("predicted"));
  EXPECT_THAT(table.at("skipped").at(0).at("reason").get<std::string>(),
              HasSubstr("row 3, column precision: expected bf16 or float8"));
  const std::string written = read_file(folder.path("out") + "/torchtitan-dgx-h200-bf16.csv");
  EXPECT_THAT(written, HasSubstr("\"\"zero\"\":3"));
  EXPECT_THAT(written, HasSubstr(",1,\""));
}

}  // namespace
}  // namespace sluice::test
