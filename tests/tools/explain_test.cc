// `simulate --explain` compared with the run that it explains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "model/input/csv.h"
#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kExample = SLUICE_SOURCE_DIR "/examples/gpt3-175b-a100.json";

TEST(ExplainCommand, OpTimesMatchTheTimeline) {
  TemporaryFolder folder;
  const std::string ops = folder.path("ops.csv");
  const CommandResult result =
      run_sluice(words("simulate " + kExample + " --schedule 1f1b --vpp 1 --explain --json --ops " + ops));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json explained = json::parse(result.out)["explain"];
  std::set<std::string> seen;
  const CsvTable table = read_csv(ops);
  for (const json& op : explained) {
    double sum = 0;
    for (const json& kernel : op["kernels"]) sum += kernel["seconds"].get<double>();
    EXPECT_NEAR(sum, op["seconds"].get<double>(), 1e-12);
    for (int row = 0; row < table.num_rows(); ++row) {
      if (table.text(row, "what") != op["op"] || table.integer(row, "stage", -1, 1000) != op["stage"]) continue;
      seen.insert(op["op"].get<std::string>() + table.text(row, "stage"));
      // The timeline is in integer nanoseconds.
      EXPECT_NEAR(table.number(row, "end_s", 0, 1e9) - table.number(row, "start_s", 0, 1e9), sum, 1.01e-9);
    }
  }
  // The first stage, one of those between, the last; forward and backward.
  EXPECT_THAT(seen, testing::IsSupersetOf({"F0", "B0", "F1", "B1", "F15", "B15"}));
  EXPECT_EQ(json::parse(run_sluice(words("simulate " + kExample + " --json")).out).count("explain"), 0u);
}

// With fused attention, which stores no scores, other modules are repeated too.
TEST(ExplainCommand, RecomputedModulesTakeTime) {
  const std::string run =
      "simulate --model llama3-8b --cluster dgx-h100 --seq-length 8192 --pp 4 --tp 2 --gbs 16 --json";
  const auto of = [&](const std::string& more) { return json::parse(run_sluice(words(run + more)).out); };
  const double none = of("").at("makespan_s");
  EXPECT_EQ(of(" --recompute selective").at("makespan_s"), none);
  const json mlp = of(" --recompute selective --recompute-modules mlp");
  EXPECT_GT(mlp.at("makespan_s").get<double>(), 1.1 * none);
  EXPECT_LT(mlp.at("ranks")[0].at("peak_memory_bytes"), of("").at("ranks")[0].at("peak_memory_bytes"));
  EXPECT_EQ(of(" --recompute-modules mlp").at("makespan_s"), none);
  // No more microbatches are deferred than there are.
  EXPECT_EQ(of(" --wgrad-deferral-limit 1000").at("ranks")[3].at("peak_memory_bytes"),
            of(" --wgrad-deferral-limit 16").at("ranks")[3].at("peak_memory_bytes"));
  EXPECT_THAT(run_sluice(words(run + " --cross-entropy-loss-fusion --cross-entropy-fusion-impl plain")).err,
              HasSubstr("--cross-entropy-fusion-impl: excludes fused_cross_entropy"));
}

TEST(ExplainCommand, TensorsAddUpToThePeak) {
  for (const char* more : {"", " --schedule zb-h1 --vpp 1", " --recompute full", " --explain-memory=3"}) {
    SCOPED_TRACE(more);
    const json document =
        json::parse(run_sluice(words("simulate " + kExample + " --explain-memory --json" + more)).out);
    const json& explained = document.at("explain_memory");
    const json& rank = document.at("ranks").at(explained.at("rank").get<std::size_t>());
    std::int64_t sum = 0;
    for (const json& tensor : explained.at("tensors")) {
      EXPECT_GT(tensor.at("bytes"), 0);
      sum += tensor.at("bytes").get<std::int64_t>();
    }
    EXPECT_EQ(sum, rank.at("peak_memory_bytes"));
    EXPECT_EQ(sum, explained.at("bytes"));
    if (std::string(more).find('=') != std::string::npos) {
      EXPECT_EQ(explained.at("rank"), 3);
      continue;
    }
    for (const json& other : document.at("ranks")) EXPECT_LE(other.at("peak_memory_bytes"), sum);
  }
  const std::string text = run_sluice(words("simulate " + kExample + " --explain-memory")).out;
  EXPECT_THAT(text, HasSubstr("memory of rank 0 at its peak"));
  EXPECT_THAT(text, HasSubstr("layer input"));
  EXPECT_THAT(text, testing::ContainsRegex("optimizer states +[0-9]+ .*12 P\n"));
  const std::string sharded = run_sluice(words("simulate " + kExample + " --zero-stage 1 --explain-memory")).out;
  EXPECT_THAT(sharded, testing::ContainsRegex("optimizer states +[0-9]+ .*12 P / D\n"));
  EXPECT_THAT(text, HasSubstr("n tokens of the slice"));
  EXPECT_THAT(run_sluice(words("simulate " + kExample + " --explain-memory=99")).err,
              HasSubstr("--explain-memory: expected a rank from 0 to 15, got '99'"));
  EXPECT_THAT(run_sluice(words("simulate --schedule gpipe --pp 2 --microbatches 4 --explain-memory")).err,
              HasSubstr("--explain-memory: expected a model"));
}

TEST(ExplainCommand, PrintsTheLastSliceOfEachDistinctStage) {
  const std::string sliced = SLUICE_SOURCE_DIR "/examples/gpt-2.7b-seq1f1b-a100.json";
  const std::string all = run_sluice(words("simulate " + sliced + " --explain")).out;
  EXPECT_THAT(
      all, HasSubstr("stage 0: embedding, 4 layers; 1 x 5632 tokens per device after a prefix of 27136, slice 4 of 4"));
  EXPECT_THAT(all, HasSubstr("stage 1: 4 layers;"));
  EXPECT_THAT(all, Not(HasSubstr("stage 2:")));
  EXPECT_THAT(all, HasSubstr("stage 7: 4 layers, head;"));
  EXPECT_THAT(all, HasSubstr("limited by"));
  const std::string one = run_sluice(words("simulate " + sliced + " --explain=2")).out;
  EXPECT_THAT(one, HasSubstr("stage 2: 4 layers;"));
  EXPECT_THAT(one, Not(HasSubstr("stage 0:")));
  // JSON has all four slices.
  const json explained = json::parse(run_sluice(words("simulate " + sliced + " --explain=2 --json")).out)["explain"];
  std::set<int> slices;
  for (const json& op : explained) slices.insert(op["slice"].get<int>());
  EXPECT_EQ(slices, (std::set<int>{0, 1, 2, 3}));
}

TEST(ExplainCommand, RejectsUnknownStagesAndOtherCosts) {
  const auto error = [](const std::string& flags) {
    const CommandResult result = run_sluice(words("simulate " + flags));
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_EQ(result.out, "") << flags;
    return result.err;
  };
  EXPECT_EQ(error("--schedule 1f1b --pp 4 --microbatches 8 --explain"),
            "sluice: --explain: expected the analytic cost model: measured and uniform costs have no kernels\n");
  EXPECT_EQ(error(kExample + " --explain=48"), "sluice: --explain: expected a stage from 0 to 47, got '48'\n");
  EXPECT_EQ(error(kExample + " --explain=head"), "sluice: --explain: expected a stage from 0 to 47, got 'head'\n");
  EXPECT_THAT(error(kExample + " --explain --sweep mbs=1,2"), HasSubstr("--explain"));
}

}  // namespace
}  // namespace sluice::test
