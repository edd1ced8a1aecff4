// Tests of the accuracy program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

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
                                                "1,1,1,1,1,8,1,128,,FP8,none,,9\n");
  const CommandResult result = run_program(SLUICE_ACCURACY, {folder.path(), "--plans"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 configurations: slower by "));
  EXPECT_THAT(result.out, Not(HasSubstr("\n  -")));
  EXPECT_THAT(result.out, HasSubstr("1 rows skipped, the first: " + folder.path("dgxc.csv") + ": row 3: not on H100"));
}

TEST(AccuracyProgram, RejectsFoldersWithoutAKnownTable) {
  const TemporaryFolder folder;
  write_file_whole(folder.path("other.csv"), "a,b\n1,2\n");
  const CommandResult result = run_program(SLUICE_ACCURACY, {folder.path()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("expected at least one table with the columns of a known kind"));
}

}  // namespace
}  // namespace sluice::test
