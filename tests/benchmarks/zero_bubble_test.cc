#include "benchmarks/accuracy/zero_bubble.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "benchmarks/accuracy/replay.h"
#include "model/input/files.h"
#include "tests/support/all_schedules.h"
#include "tests/support/command.h"
#include "tests/support/oracle.h"

namespace sluice::bench::accuracy {
namespace {

constexpr const char* kProfile =
    "model,pp,num_microbatches,micro_batch,t_f_ms,t_b_ms,t_w_ms,t_comm_ms,bubble_1f1b,bubble_1f1b_i,bubble_zbh1,"
    "bubble_zbh2,bubble_zb1p,bubble_zb2p\n";
constexpr const char* kRuns =
    "model,layers,heads,hidden,seq,pp,micro_batch,num_microbatches,schedule,samples_per_gpu_s,derived_iter_ms\n";

// A folder with both tables.
class Tables {
 public:
  Tables(const std::string& profile, const std::string& runs) {
    if (!profile.empty()) write_file_whole(folder_.path("a.csv"), kProfile + profile);
    if (!runs.empty()) write_file_whole(folder_.path("b.csv"), kRuns + runs);
  }
  CsvTable profile() const { return read_csv(folder_.path("a.csv")); }
  CsvTable runs() const { return read_csv(folder_.path("b.csv")); }

 private:
  test::TemporaryFolder folder_;
};

std::vector<Comparison> of_group(const TableScore& score, const std::string& group) {
  std::vector<Comparison> out;
  for (const Comparison& comparison : score.comparisons) {
    if (comparison.group == group) out.push_back(comparison);
  }
  return out;
}

double mean_error(const std::vector<Comparison>& comparisons) {
  double sum = 0;
  for (const Comparison& comparison : comparisons) sum += std::abs(comparison.error());
  return sum / static_cast<double>(comparisons.size());
}

TEST(Replay, WithoutBlockingEqualsTheOracle) {
  const auto costs = test::uniform(5, 6, 4, 3);
  const ReplayCosts mine{.op = [&](const Op& op) { return static_cast<double>(costs.op(op)); },
                         .hop = [](int from, int to) { return from == to ? 0.0 : 3.0; }};
  const int found = test::for_each_schedule({.slices = 1}, [&](const Schedule& schedule) {
    if (schedule.has_joint_blocks() || schedule.num_routes() > 1) return;
    SCOPED_TRACE(test::describe(schedule));
    const test::OracleTimes oracle = test::longest_path(schedule, costs);
    const ReplayResult result = replay(schedule, mine);
    EXPECT_EQ(result.makespan, static_cast<double>(oracle.makespan()));
    EXPECT_EQ(result.span, static_cast<double>(oracle.largest_span()));
  });
  EXPECT_GT(found, 100);
}

// Two ranks, 1f1b, two microbatches, f = 1, b = 2 (of a B), latency 10. Rank 0: F0 0-1, then it sends until 11, F1
// 11-12. Rank 1: F0 11-12, B0 12-14, F1 from 22 (12 + 10; sending B0 blocks until 24): 24-25, B1 25-27. Rank 0: B0 at
// 24-26, B1 at 37-39.
TEST(Replay, ABlockedRankWaitsForItsTransfers) {
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 2});
  const ReplayResult result = replay(schedule, {.op = [](const Op& op) { return op.kind == OpKind::F ? 1.0 : 2.0; },
                                                .hop = [](int, int) { return 10.0; },
                                                .blocked = 1});
  EXPECT_EQ(result.makespan, 39);
}

// Without latency, 1F1B and, for f = b = w, ZB-H1 and ZB-H2 have the bubbles (p-1)(f+b+w), (p-1)(f+b-w) and none over
// the work (Qi et al. 2023, table 3), of m(f+b+w) = 24: 9, 3 and 0. ZB-1p is then ZB-H1, ZB-2p has none. Interleaved
// with v = 2 has (p-1)(f+b+w)/v = 4.5.
TEST(ZeroBubbleBubbles, AreTheClosedFormsWithoutLatency) {
  const Tables tables("M,4,8,1,1000,1000,1000,0,0.2727,0.1579,0.1111,0,0.1111,0\n",
                      "M,6,32,4096,1024,4,1,8,1F1B,1,1000\n");
  const TableScore score = score_zero_bubble_bubbles(tables.profile());
  EXPECT_TRUE(score.skipped.empty());
  EXPECT_EQ(score.comparisons.size(), 7u);
  const std::pair<const char*, double> rates[] = {{"1F1B", 9.0 / 33}, {"1F1B-I", 4.5 / 28.5}, {"ZB-H1", 3.0 / 27},
                                                  {"ZB-H2", 0},       {"ZB-1p", 3.0 / 27},    {"ZB-2p", 0}};
  for (const auto& [schedule, rate] : rates) {
    const auto comparisons = of_group(score, std::string("bubble rate ") + schedule);
    ASSERT_EQ(comparisons.size(), 1u) << schedule;
    EXPECT_NEAR(comparisons[0].predicted, rate, 0.00005 + 1e-12) << schedule;
  }
}

TEST(ZeroBubbleBubbles, ReportsMissingSizes) {
  const Tables tables("M,4,8,1,1000,1000,1000,0,0.2727,0.1579,,,0.1111,0\n", "");
  const TableScore score = score_zero_bubble_bubbles(tables.profile());
  EXPECT_EQ(score.comparisons.size(), 1u);
  ASSERT_EQ(score.skipped.size(), 4u);  // interleaved twice, ZB-1p, ZB-2p; empty cells are not scored
  EXPECT_THAT(score.skipped[0].reason, testing::HasSubstr("expected a table with the layers"));
}

// With two rows, each is predicted from the other; the result depends only on the ratio of the predicted times.
TEST(ZeroBubbleThroughput, FitsOneFactorToTheOtherRows) {
  const std::string profile = "M,4,8,1,1000,1000,500,0,,,,,,\n";
  const TableScore first = score_zero_bubble_throughput(Tables(profile,
                                                               "M,6,32,64,64,4,1,8,1F1B,1,27500\n"
                                                               "M,6,32,64,64,4,1,16,1F1B,1,47500\n")
                                                            .runs());
  const auto comparisons = of_group(first, "throughput, left one out");
  ASSERT_EQ(comparisons.size(), 2u);
  // 1F1B takes (m+3)·2.5 s and 7 % of m·2.5 s: 28.9 s and 50.3 s. Each is predicted from the other's 27.5 or 47.5 s;
  // the optimizer step takes microseconds.
  EXPECT_NEAR(comparisons[0].predicted, 2 / (28.9 * 47.5 / 50.3), 1e-5);
  EXPECT_NEAR(comparisons[1].predicted, 4 / (50.3 * 27.5 / 28.9), 1e-5);
  EXPECT_NEAR(comparisons[0].measured, 2 / 27.5, 1e-12);
}

TEST(ZeroBubbleThroughput, SkipsUnknownSchedulesAndSingleRows) {
  const Tables tables("M,4,8,1,1000,1000,500,0,,,,,,\n",
                      "M,6,32,64,64,4,1,8,1F1B,1,27500\n"
                      "M,6,32,64,64,4,1,8,GPipe,1,27500\n");
  const TableScore score = score_zero_bubble_throughput(tables.runs());
  EXPECT_TRUE(score.comparisons.empty());
  ASSERT_EQ(score.skipped.size(), 2u);
  EXPECT_THAT(score.skipped[0].reason, testing::HasSubstr("got 'GPipe'"));
  EXPECT_THAT(score.skipped[1].reason, testing::HasSubstr("the only row of M"));
  EXPECT_EQ(score_zero_bubble_throughput(Tables("", "M,6,32,64,64,4,1,8,1F1B,1,27500\n").runs()).skipped.size(), 1u);
}

// S and L have w = 64 ms (h / 1024)^2 and f = b = w (1 + x / h), x = h: 1024 and 4096. M, h = 2048, lies at two thirds
// between them in 1/h: x = 3072, w = 0.256 s, f = b = 0.64 s, together 1.536 s. 1F1B then takes (8+3)·1.536 s, ZB-1p
// 8·1.536 + (4-1)(f+b-w) s, each plus 7 % of 8·1.536 s; transfers and the optimizer step take about a millisecond.
TEST(ZeroBubbleThroughput, InterpolatesTimesOfAModelWithoutProfile) {
  const Tables tables("S,4,8,1,128,128,64,0.2,,,,,,\nL,4,8,1,2048,2048,1024,0.2,,,,,,\n",
                      "S,2,8,1024,64,4,1,8,1F1B,1,3520\nL,2,8,4096,64,4,1,8,1F1B,1,56320\n"
                      "M,2,8,2048,64,4,1,8,1F1B,1,20000\nM,2,8,2048,64,4,1,8,ZB-1p,1,20000\n");
  const auto comparisons = of_group(score_zero_bubble_throughput(tables.runs()), "other models, left one out");
  ASSERT_EQ(comparisons.size(), 2u);
  const double one_f_one_b = 11 * 1.536 + 0.07 * 8 * 1.536;
  const double zb_1p = 8 * 1.536 + 3 * (0.64 + 0.64 - 0.256) + 0.07 * 8 * 1.536;
  EXPECT_NEAR(comparisons[0].predicted, 2 / (20 * one_f_one_b / zb_1p), 1e-4);
  EXPECT_NEAR(comparisons[1].predicted, 2 / (20 * zb_1p / one_f_one_b), 1e-4);
}

class PublishedTables : public testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("SLUICE_DATA");
    if (data == nullptr) GTEST_SKIP() << "SKIPPED: set SLUICE_DATA to the folder of published measurements";
    folder_ = data;
  }
  CsvTable table(const std::string& name) const { return read_csv(folder_ + "/" + name); }

  std::string folder_;
};

TEST_F(PublishedTables, BubbleRatesAreExact) {
  const TableScore score = score_zero_bubble_bubbles(table("zerobubble_table5_6_profile_bubble.csv"));
  EXPECT_TRUE(score.skipped.empty());
  for (const Comparison& comparison : score.comparisons) {
    if (comparison.group == "bubble rate 1F1B-I") continue;
    EXPECT_EQ(comparison.predicted, comparison.measured) << comparison.group << " " << comparison.place;
  }
}

// The requirements of the project: 0.6 % over all rows, 0.3 % for profiled models.
TEST_F(PublishedTables, ThroughputLeftOneOut) {
  const TableScore score = score_zero_bubble_throughput(table("zerobubble_table4_throughput_memory.csv"));
  EXPECT_TRUE(score.skipped.empty());
  EXPECT_LT(mean_error(of_group(score, "throughput, left one out")), 0.006);
  EXPECT_LT(mean_error(of_group(score, "profiled models, left one out")), 0.003);
}

}  // namespace
}  // namespace sluice::bench::accuracy
