// `--schedule auto` on the command line.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "model/input/files.h"
#include "model/schedule/family.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

json answer(const std::string& flags) {
  const CommandResult result = run_sluice(words("simulate --json " + flags));
  EXPECT_EQ(result.exit_code, 0) << flags << "\n" << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json::object();
}

const std::string kSmall = "--pp 4 --microbatches 8 --uniform f=10,b=12,w=8,comm=1 --time-budget 0.3 ";
const std::string kModel =
    "--num-layers 16 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 "
    "--max-position-embeddings 4096 "
    "--pp 4 --gbs 16 "
    "--cluster dgx-a100-80gb ";

TEST(AutoCommand, ReportsLowerBoundAndGap) {
  const json result = answer("--schedule auto " + kSmall);
  const json& found = result.at("auto");
  EXPECT_LE(found.at("lower_bound_s").get<double>(), result.at("makespan_s").get<double>());
  EXPECT_NEAR(found.at("gap").get<double>(),
              result.at("makespan_s").get<double>() / found.at("lower_bound_s").get<double>() - 1, 1e-9);
  EXPECT_FALSE(found.at("found_by").get<std::string>().empty());
  EXPECT_GE(found.at("seconds").get<double>(), found.at("first_seconds").get<double>());
  const CommandResult table = run_sluice(words("simulate --schedule auto " + kSmall));
  EXPECT_THAT(table.out, HasSubstr("  auto: "));
  EXPECT_THAT(table.out, StartsWith("auto: 4 ranks"));
  EXPECT_THAT(table.out, HasSubstr("lower bound"));
  EXPECT_EQ(table.err, "");
}

// With a budget in evaluations, time has no part in the result.
TEST(AutoCommand, EqualSeedsAndEvaluationsGiveEqualSchedules) {
  const std::string hard = "--pp 8 --microbatches 12 --uniform f=10,b=12,w=8,comm=1 --memory-cap 3mb ";
  std::set<std::string> found;
  for (const int evaluations : {1, 30, 500, 4000}) {
    const std::string flags = fmt::format("schedule auto --json --evaluations {} {}", evaluations, hard);
    const CommandResult one = run_sluice(words(flags));
    EXPECT_EQ(one.out, run_sluice(words(flags)).out);
    found.insert(one.out);
    const json result = answer(fmt::format("--schedule auto --evaluations {} {}", evaluations, hard)).at("auto");
    EXPECT_LE(result.at("evaluations"), evaluations);
    EXPECT_EQ(result.at("ended_by"), "evaluations");
  }
  EXPECT_GT(found.size(), 1U);
  const std::string bit = "stopped by --time-budget";
  EXPECT_THAT(run_sluice(words("simulate --schedule auto --time-budget 0 " + hard)).out, HasSubstr(bit));
  EXPECT_THAT(run_sluice(words("simulate --schedule auto --evaluations 50 " + hard)).out, Not(HasSubstr(bit)));
}

TEST(AutoCommand, PrintsTheBestSoFarWhenInterrupted) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    for (const char* command : {"simulate --schedule auto", "schedule auto"}) {
      const CommandResult result = run_program_and_signal(
          SLUICE_COMMAND, words(std::string(command) + " --pp 8 --microbatches 64 --uniform f=10,b=12,w=8,comm=1"),
          signal);
      EXPECT_EQ(result.exit_code, code);
      EXPECT_THAT(result.out, HasSubstr("interrupted: best so far"));
    }
  }
}

TEST(AutoCommand, IsAtLeastAsFastAsAnyFamilyWithinTheMemoryCap) {
  for (const char* cap : {"", " --memory-cap 4mb", " --memory-cap 2.5mb", " --memory-cap 1mb"}) {
    SCOPED_TRACE(cap);
    const json result = answer("--schedule auto " + kSmall + cap);
    const double most = *cap == '\0' ? 1e9 : std::stod(std::string(cap).substr(14));
    for (const json& rank : result.at("ranks")) EXPECT_LE(rank.at("peak_in_flight").get<double>(), most + 1e-9);
    for (const Family& family : all_families()) {
      if (family.asynchronous || family.replicas > 1 || family.vocabulary_barriers > 0) continue;
      const CommandResult other =
          run_sluice(words("simulate --json --pp 4 --microbatches 8 --uniform f=10,b=12,w=8,comm=1 --schedule " +
                           std::string(family.name)));
      if (other.exit_code != 0) continue;  // hanayo needs m = p
      const json of = json::parse(other.out);
      double peak = 0;
      for (const json& rank : of.at("ranks")) peak = std::max(peak, rank.at("peak_in_flight").get<double>());
      if (peak > most + 1e-9 || of.at("schedule").at("chunks").get<int>() > 2) continue;
      EXPECT_LE(result.at("makespan_s").get<double>(), of.at("makespan_s").get<double>()) << family.name;
    }
  }
}

TEST(AutoCommand, SavedSchedulesSimulateTheSame) {
  const TemporaryFolder folder;
  const CommandResult made =
      run_sluice(words("schedule auto " + kSmall + "--memory-cap 3mb -o " + folder.path("s.json")));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("auto: "));
  EXPECT_EQ(run_sluice({"schedule", folder.path("s.json"), "--check"}).exit_code, 0);
  const json again = answer("--schedule " + folder.path("s.json") + " --uniform f=10,b=12,w=8,comm=1");
  for (const json& rank : again.at("ranks")) EXPECT_LE(rank.at("peak_in_flight").get<double>(), 3);
  // The same as PyTorch's CSV file.
  const CommandResult csv = run_sluice(words("schedule auto " + kSmall + "--placement v -o " + folder.path("s.csv")));
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  EXPECT_EQ(run_sluice({"schedule", folder.path("s.csv"), "--check"}).exit_code, 0);
}

TEST(AutoCommand, UsesTheRequestedPlacement) {
  EXPECT_EQ(answer("--schedule auto --placement linear " + kSmall).at("schedule").at("stages"), 4);
  EXPECT_EQ(answer("--schedule auto --placement v " + kSmall).at("auto").at("placement"), "v");
  EXPECT_EQ(answer("--schedule auto --placement looped --vpp 3 " + kSmall).at("auto").at("placement"), "looped 3");
  EXPECT_EQ(answer("--schedule auto --vpp 1 " + kSmall).at("schedule").at("chunks"), 1);
  const CommandResult none = run_sluice(words("simulate --schedule auto --placement v --vpp 3 " + kSmall));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("v does not have 3 chunks per rank"));
}

TEST(AutoCommand, SupportsSlicesAndUnevenStages) {
  const json sliced = answer("--schedule auto --slices 3 " + kSmall);
  EXPECT_EQ(sliced.at("schedule").at("slices"), 3);
  const json seq = answer("--schedule seq1f1b-zb1p --slices 3 --pp 4 --microbatches 8 --uniform f=10,b=12,w=8,comm=1");
  EXPECT_LE(sliced.at("makespan_s").get<double>(), seq.at("makespan_s").get<double>());
  // Four weights: one chunk per rank. Rank 3 computes 1.4 times 8 x 30, after three forwards and transfers.
  const json heavy = answer("--schedule auto --stage-weights 1.2,1,1,1.4 " + kSmall);
  EXPECT_EQ(heavy.at("schedule").at("stages"), 4);
  EXPECT_GE(heavy.at("auto").at("lower_bound_s").get<double>(), 1.4 * 240 + 12 + 10 + 10 + 3 - 1e-9);
}

TEST(AutoCommand, RespectsTheDeviceMemory) {
  const json free = answer("--schedule auto --time-budget 0.3 " + kModel);
  EXPECT_TRUE(free.at("fits").get<bool>());
  EXPECT_LE(free.at("auto").at("lower_bound_s").get<double>(), free.at("makespan_s").get<double>());
  const json capped = answer("--schedule auto --time-budget 0.3 --memory-cap 30GiB " + kModel);
  EXPECT_LE(capped.at("memory").at("needed_bytes").get<double>(), 30 * 0x1p30);
  EXPECT_LE(capped.at("auto").at("lower_bound_s").get<double>(), capped.at("makespan_s").get<double>());
  EXPECT_GE(capped.at("makespan_s").get<double>(), free.at("makespan_s").get<double>() * 0.98);
  const CommandResult none = run_sluice(words("simulate --schedule auto --memory-cap 10GiB " + kModel));
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.err, HasSubstr("no schedule fits: rank"));
}

TEST(AutoCommand, WorksInSweepsAndSecondRuns) {
  const CommandResult sweep =
      run_sluice(words("simulate --json --sweep schedule=auto,1f1b --pp 4 --microbatches 4 --uniform f=1,b=1,w=1"));
  ASSERT_EQ(sweep.exit_code, 0) << sweep.err;
  const json points = json::parse(sweep.out).at("points");
  EXPECT_LT(points[0].at("makespan_s").get<double>(), points[1].at("makespan_s").get<double>());
  const TemporaryFolder folder;
  const CommandResult pair = run_sluice({"simulate", "--schedule", "1f1b", "--pp", "4", "--microbatches", "4",
                                         "--compare-with", "auto", "--svg", folder.path("pair.svg")});
  EXPECT_EQ(pair.exit_code, 0) << pair.err;
  EXPECT_THAT(read_file(folder.path("pair.svg")), HasSubstr("<svg"));
}

TEST(AutoCommand, RejectsUnsupportedFlags) {
  const auto refused = [](const std::string& flags, int code, const std::string& what) {
    const CommandResult result = run_sluice(words("simulate " + flags));
    EXPECT_EQ(result.exit_code, code) << flags;
    EXPECT_THAT(result.err, HasSubstr(what)) << flags;
    EXPECT_EQ(result.out, "");
  };
  refused("--schedule auto --microbatches 4", 2, "--pp");
  refused("--schedule auto --pp 4", 2, "--microbatches");
  refused("--schedule auto --memory-cap 0.5mb " + kSmall, 3, "at least one microbatch, the cap is 0.5mb");
  refused("--schedule auto --memory-cap 5XB " + kSmall, 2, "--memory-cap: expected bytes with a unit");
  refused("--schedule auto --memory-cap 5GiB " + kSmall, 2, "a cap in bytes requires a model");
  refused("--schedule 1f1b --memory-cap 5mb " + kSmall, 2, "only valid for the automatic schedule");
  refused("--schedule auto --placement ring " + kSmall, 2, "--placement: expected");
  refused("--schedule auto --group 4 " + kSmall, 2, "not supported by an automatic schedule");
  refused("--schedule auto --stage-weights 1,2,3 " + kSmall, 2, "/cost/stage_weights: expected 4");
}

}  // namespace
}  // namespace sluice::test
