// Causes of idle time, stragglers, noise, sweeps and schedule checks on the command line.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/trace_check.h"

namespace sluice::test {
namespace {

using nlohmann::json;

json answer(const std::string& flags) {
  const CommandResult result = run_sluice(words("simulate --json " + flags));
  EXPECT_EQ(result.exit_code, 0) << flags << "\n" << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json::object();
}

std::string error_of(const std::string& flags) {
  const CommandResult result = run_sluice(words("simulate " + flags));
  EXPECT_EQ(result.exit_code, 2) << flags;
  EXPECT_EQ(result.out, "");
  return result.err;
}

TEST(Causes, AddUpToTheIdleTimeOfEachRank) {
  const json result = answer("--schedule zb-h1 --pp 4 --microbatches 8 --uniform f=1,b=1.5,w=0.5,comm=0.1");
  double all = 0;
  for (const json& rank : result.at("ranks")) {
    double idle = 0;
    for (const auto& [cause, seconds] : rank.at("idle").items()) idle += seconds.get<double>();
    EXPECT_NEAR(idle, result.at("makespan_s").get<double>() - rank.at("busy_s").get<double>(), 1e-9);
    all += idle;
  }
  double total = 0;
  for (const auto& [cause, seconds] : result.at("idle").items()) total += seconds.get<double>();
  EXPECT_NEAR(total, all, 1e-9);
  const json& path = result.at("critical_path");
  EXPECT_NEAR(path.at("compute_s").get<double>() + path.at("transfer_s").get<double>() +
                  path.at("latency_s").get<double>() + path.at("collective_s").get<double>() +
                  path.at("optimizer_s").get<double>(),
              result.at("makespan_s").get<double>(), 1e-9);
  EXPECT_EQ(path.at("ops").front().at("op"), "F(stage 0, mb 0)");
}

TEST(Causes, AppearInTheTraceAndTheOpTable) {
  const TemporaryFolder folder;
  const CommandResult result =
      run_sluice({"simulate", "--pp", "2", "--microbatches", "2", "--uniform", "f=1,b=1,w=1,comm=0.5", "--trace",
                  folder.path("t.json"), "--trace-idle", "--ops", folder.path("ops.csv")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string trace = read_file(folder.path("t.json"));
  EXPECT_EQ(test::check_trace(trace), std::vector<std::string>{});
  EXPECT_NE(trace.find("idle warm_up"), std::string::npos);
  EXPECT_NE(trace.find("idle link"), std::string::npos);
  const std::string ops = read_file(folder.path("ops.csv"));
  // 2 ranks x 2 microbatches x (F, B), a transfer for each but the ends (4), 2 optimizer steps; and the head.
  EXPECT_EQ(std::count(ops.begin(), ops.end(), '\n'), 8 + 4 + 2 + 1);
  // The first F of rank 1 waits 0.5 s for the output of rank 0, which took 1 s; no op on this path has slack.
  EXPECT_NE(ops.find("1,,F,1,0,0,0,1.500000000,2.500000000,0.000000000,1,,\"send F(stage 0, mb 0) 0->1\"\n"),
            std::string::npos)
      << ops;
}

TEST(Stragglers, SlowTheWholePipeline) {
  // 1f1b p = 2, m = 4: rank 1 at half speed works without idle time for 4 (2 + 4) between an F and a B of rank 0: 27.
  EXPECT_EQ(answer("--pp 2 --microbatches 4 --uniform f=1,b=1,w=1 --slow-rank 1=2").at("makespan_s"), 27.0);
  // gpipe p = 2, m = 1 with three times the hop of 0.5: 1 + 1.5 + 1 + 2 + 1.5 + 2.
  EXPECT_EQ(answer("--schedule gpipe --pp 2 --microbatches 1 --uniform f=1,b=1,w=1,comm=0.5 --slow-link 0-1=3")
                .at("makespan_s"),
            9.0);
  // A schedule without a flush: the slow rank sets the period, 8 (2 + 4) for 8 microbatches.
  EXPECT_EQ(
      answer("--schedule pipedream-2bw --pp 2 --microbatches 8 --uniform f=1,b=1,w=1 --slow-rank 1=2").at("period_s"),
      48.0);
  EXPECT_NE(error_of("--pp 2 --microbatches 4 --slow-rank 1").find("--slow-rank: expected a rank and a factor"),
            std::string::npos);
  EXPECT_NE(
      error_of("--pp 2 --microbatches 4 --slow-link 0-1-2=2").find("--slow-link: expected two ranks and a factor"),
      std::string::npos);
  EXPECT_NE(error_of("--pp 2 --microbatches 4 --slow-rank 1=0").find("--slow-rank: expected a factor from"),
            std::string::npos);
  EXPECT_NE(error_of("--pp 2 --microbatches 4 --slow-rank 2=2").find("slow rank 2: expected ranks 0 to 1"),
            std::string::npos);
}

TEST(Noise, GivesADistribution) {
  const std::string flags = "--pp 4 --microbatches 8 --jitter lognormal:0.05 --trials 300 --seed ";
  const json result = answer(flags + "2");
  EXPECT_EQ(result.at("makespan_s"), 33.0);  // without noise
  const json& jitter = result.at("jitter");
  EXPECT_EQ(jitter.at("jitter"), "lognormal:0.05");
  EXPECT_EQ(jitter.at("trials"), 300);
  double last = 0;
  for (const json& quantile : jitter.at("quantiles")) {
    EXPECT_GE(quantile.at("makespan_s").get<double>(), last);
    last = quantile.at("makespan_s").get<double>();
  }
  EXPECT_GT(jitter.at("mean_s").get<double>(), 33.0);
  EXPECT_EQ(answer(flags + "2"), result);
  EXPECT_NE(answer(flags + "3").at("jitter"), jitter);
}

TEST(Sweep, MatchesSeparateRuns) {
  const json sweep = answer("--microbatches 8 --uniform f=1,b=1,w=1 --sweep schedule=1f1b,zb-h1 --sweep pp=2,4,8");
  EXPECT_EQ(sweep.at("schema"), "sluice.sweep/1");
  EXPECT_EQ(sweep.at("keys"), (json{"schedule", "pp"}));
  ASSERT_EQ(sweep.at("points").size(), 6U);
  for (const json& point : sweep.at("points")) {
    const std::string schedule = point.at("values").at(0);
    const int pp = point.at("values").at(1);
    const json alone =
        answer("--microbatches 8 --uniform f=1,b=1,w=1 --schedule " + schedule + " --pp " + std::to_string(pp));
    EXPECT_EQ(point.at("makespan_s"), alone.at("makespan_s"));
    EXPECT_EQ(point.at("bubble_fraction"), alone.at("bubble_fraction"));
  }
}

TEST(Sweep, ReportsInvalidCombinations) {
  const TemporaryFolder folder;
  const CommandResult result =
      run_sluice({"simulate", "--pp", "4", "--microbatches", "8", "--sweep", "schedule=interleaved-1f1b", "--sweep",
                  "batch/microbatches=2,8", "--sweep", "vpp=2", "--csv", folder.path("s.csv")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("interleaved-1f1b: "), std::string::npos) << result.out;  // the error is in its row
  const std::string csv = read_file(folder.path("s.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_NE(csv.find("interleaved-1f1b,8,2,28.5,28.5,"), std::string::npos) << csv;  // (16 + 3) x 1.5
}

TEST(Sweep, AcceptsListsAndTheirElements) {
  const json sweep = answer(
      "--schedule seq1f1b --pp 2 --microbatches 2 --slow-rank 0=1 --sweep slice-lengths=[1,1],[3,1] --sweep "
      "perturbation/slow_ranks/0/factor=1,2");
  ASSERT_EQ(sweep.at("points").size(), 4U);
  EXPECT_EQ(sweep.at("points").at(2).at("values"), (json{{3, 1}, 1}));
  EXPECT_LT(sweep.at("points").at(0).at("makespan_s").get<double>(),
            sweep.at("points").at(1).at("makespan_s").get<double>());
}

TEST(Sweep, InvalidFlagsAreRejected) {
  const std::string base = "--pp 4 --microbatches 8 ";
  EXPECT_NE(error_of(base + "--sweep ppp=1,2").find("did you mean 'pp'?"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp").find("--sweep: expected key=a,b,c, got 'pp'"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp=1,,2").find("expected values between the commas"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp=0,-1").find("no combination can be simulated; the first error: --pp:"),
            std::string::npos);
  EXPECT_NE(error_of(base + "--sweep parallelism/ppp=1").find("did you mean 'pp'?"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp=2,4 --gantt").find("--sweep excludes --gantt"), std::string::npos);
  EXPECT_NE(error_of(base + "--csv x.csv").find("--csv needs --sweep"), std::string::npos);
  EXPECT_NE(error_of(base + "--trace-idle").find("--trace-idle needs --trace"), std::string::npos);
  EXPECT_NE(error_of(base + "--trials 3").find("--trials: requires jitter"), std::string::npos);
}

TEST(ScheduleCheck, PrintsEveryVerdict) {
  const TemporaryFolder folder;
  const auto check = [&](const std::string& text, const std::string& more = "") {
    write_file_whole(folder.path("s.csv"), text);
    return run_sluice(words("schedule " + folder.path("s.csv") + " --check " + more));
  };
  const CommandResult good = check("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(std::count(good.out.begin(), good.out.end(), '\n'), 5);
  EXPECT_EQ(good.out.find("error"), std::string::npos);

  // Both ranks send first, with an op between send and receive: they hang without buffers.
  const CommandResult hangs = check(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1RECV_F2,1F2,1B1,1SEND_B1,1B2,1SEND_B2\n");
  EXPECT_EQ(hangs.exit_code, 4);
  EXPECT_NE(hangs.out.find("ok    deadlock"), std::string::npos);
  EXPECT_EQ(hangs.err,
            "sluice: hangs: 0SEND_F1 at row 1, cell 4 -> 1SEND_B0 at row 2, cell 4 -> 0SEND_F1 at row 1, cell 4\n");

  const CommandResult twice = check("0F0,0F0,0B0\n", "--json");
  EXPECT_EQ(twice.exit_code, 4);
  const json document = json::parse(twice.out);
  EXPECT_EQ(document.at("schema"), "sluice.schedule_check/1");
  EXPECT_EQ(document.at("valid"), false);
  EXPECT_EQ(document.at("checks").back().at("verdict"), "error");
  EXPECT_NE(twice.err.find("row 1, cell 2: F(stage 0, mb 0): occurs twice, first at row 1, cell 1"), std::string::npos);

  // Text that does not parse is wrong input, not an invalid schedule.
  EXPECT_EQ(check("0F0,0Q0\n").exit_code, 2);
}

TEST(ScheduleCheck, CommunicationRoundTripsThroughFiles) {
  const TemporaryFolder folder;
  ASSERT_EQ(
      run_sluice(words("schedule zb-h1 --pp 4 --microbatches 8 --communication -o " + folder.path("z.csv"))).exit_code,
      0);
  ASSERT_EQ(run_sluice(words("schedule " + folder.path("z.csv") + " -o " + folder.path("z.json"))).exit_code, 0);
  for (const char* file : {"z.csv", "z.json"}) {
    EXPECT_EQ(run_sluice(words("schedule " + folder.path(file) + " --check")).exit_code, 0);
    // Sends directly after their ops: the same times as the family's, 24 + 3 (closed form of zb-h1, all costs 1).
    EXPECT_EQ(answer("--schedule " + folder.path(file) + " --uniform f=1,b=1,w=1").at("makespan_s"), 27.0) << file;
  }
}

// Regression: a list took the scenario operand after it as one of its values.
TEST(Flags, ListsDoNotTakeTheFollowingScenario) {
  const std::string scenario = SLUICE_SOURCE_DIR "/examples/gpt-2.7b-seq1f1b-a100.json";
  const json before = answer(scenario + " --slice-lengths 16384,16384");
  const json behind = answer("--slice-lengths 16384,16384 " + scenario);
  EXPECT_EQ(before, behind);
  EXPECT_EQ(behind.at("schedule").at("slice_lengths"), (json{16384, 16384}));
}

}  // namespace
}  // namespace sluice::test
