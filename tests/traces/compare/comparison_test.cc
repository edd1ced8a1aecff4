#include "traces/compare/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/errors.h"
#include "model/timeline/metrics.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/simulated.h"
#include "tests/support/trace_check.h"
#include "tests/support/trace_text.h"
#include "traces/chrome/side_by_side.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kSecond = 1'000'000'000;
Duration seconds(double s) { return from_seconds(s, "test"); }

VertexId find(const OpGraph& graph, const std::string& name) {
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph.name(v) == name) return v;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

const KindComparison& kind_of(const Comparison& comparison, RowKind kind) {
  const auto found = std::find_if(comparison.kinds.begin(), comparison.kinds.end(),
                                  [kind](const KindComparison& k) { return k.kind == kind; });
  EXPECT_NE(found, comparison.kinds.end());
  return *found;
}

// Simulates with one op longer by `by`.
Timeline with_longer(const Simulated& run, std::string_view uniform, VertexId op, Duration by) {
  Prices prices = price(run.graph, UniformCost(parse_uniform(uniform), *run.schedule));
  prices.duration[op] += by;
  return simulate(run.graph, prices);
}

TEST(Comparison, TimelineEqualsItself) {
  const Simulated run = simulated("1f1b", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1,comm=0.1");
  const TimelineSide side{.timeline = &run.timeline};
  const Comparison same = compare(run.graph, side, side);
  EXPECT_EQ(same.makespan_difference(), 0.0);
  EXPECT_THAT(same.differing, IsEmpty());
  EXPECT_FALSE(same.falls_behind);
  EXPECT_EQ(same.unpaired.first.count + same.unpaired.second.count, 0);
  EXPECT_EQ(same.pairs, run.graph.size());
  for (const KindComparison& kind : same.kinds) {
    EXPECT_EQ(kind.mean_error, 0.0);
    EXPECT_EQ(kind.median_error, 0.0);
    EXPECT_EQ(kind.total_error, 0.0);
    EXPECT_EQ(kind.pairs, kind.count.first);
  }
}

// Fields with a name of Metrics equal those of Metrics.
TEST(Comparison, SummariesMatchMetrics) {
  const SmallFootprint footprint;
  const LoweringOptions options{
      .footprint = &footprint, .data_parallel = 2, .tied_embedding = true, .global_norm = true, .recompute = true};
  const Simulated run =
      simulated("zb-v", {.ranks = 4, .chunks = 2, .microbatches = 6}, "f=1,b=1.5,w=0.7,comm=0.3", options);
  const Metrics metrics = measure(run.graph, run.timeline);
  const std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, false);
  const TimelineSide side{&run.timeline, memory};
  const RunSummary summary = compare(run.graph, side, side).runs.second;
  EXPECT_EQ(summary.makespan, metrics.makespan);
  EXPECT_EQ(summary.span, metrics.span);
  EXPECT_DOUBLE_EQ(summary.bubble_fraction, metrics.bubble_fraction);
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(summary.ranks[r].busy, metrics.ranks[r].busy);
    EXPECT_EQ(summary.ranks[r].first_start, metrics.ranks[r].first_start);
    EXPECT_EQ(summary.ranks[r].last_end, metrics.ranks[r].last_end);
    EXPECT_EQ(summary.ranks[r].peak_bytes, memory[r].peak_bytes);
    const IdleByCause& idle = *summary.ranks[r].idle;
    EXPECT_EQ(std::accumulate(idle.begin(), idle.end(), summary.ranks[r].busy), summary.makespan);
  }
}

// 1F1B on 2 ranks, 2 microbatches, f = 1, b + w = 2, no latency. Rank 0: F0 0..1, F1 1..2, B0 4..6, B1 7..9; rank 1:
// F0 1..2, B0 2..4, F1 4..5, B1 5..7. With B0 of stage 1 half a second longer, 2..4.5, B0 on rank 0 runs 4.5..6.5, F1
// on rank 1 4.5..5.5, B1 there 5.5..7.5, and B1 on rank 0 7.5..9.5.
TEST(Comparison, LongerOpIsReported) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2});
  const Timeline slower = with_longer(run, "f=1,b=1,w=1", find(run.graph, "B(stage 1, mb 0)"), seconds(0.5));
  const Comparison found = compare(run.graph, {.timeline = &run.timeline}, {.timeline = &slower});
  EXPECT_EQ(found.runs.first.makespan, seconds(9));
  EXPECT_EQ(found.runs.second.makespan, seconds(9.5));
  EXPECT_DOUBLE_EQ(*found.makespan_difference(), 0.5 / 9);
  EXPECT_EQ(found.runs.first.busy, seconds(12));
  EXPECT_EQ(found.runs.second.busy, seconds(12.5));
  EXPECT_DOUBLE_EQ(found.runs.second.bubble_fraction, 1 - 12.5 / 19);
  EXPECT_DOUBLE_EQ(found.runs.second.ranks[1].bubble_fraction, 1 - 6.5 / 9.5);
  // Of four B of 2 s one is 0.5 s longer.
  const KindComparison& b = kind_of(found, RowKind::B);
  EXPECT_EQ(b.count.first, 4);
  EXPECT_EQ(b.count.second, 4);
  EXPECT_EQ(b.total.first, seconds(8));
  EXPECT_EQ(b.total.second, seconds(8.5));
  EXPECT_DOUBLE_EQ(*b.mean_error, 0.25 / 4);
  EXPECT_DOUBLE_EQ(*b.median_error, 0);
  EXPECT_DOUBLE_EQ(*b.total_error, 0.5 / 8);
  EXPECT_EQ(kind_of(found, RowKind::F).mean_error, 0.0);
  ASSERT_EQ(found.differing.size(), 1U);
  EXPECT_EQ(found.differing[0].name, "B(stage 1, mb 0)");
  EXPECT_EQ(found.differing[0].rank, 1);
  EXPECT_EQ(found.differing[0].duration.first, seconds(2));
  EXPECT_EQ(found.differing[0].duration.second, seconds(2.5));
  // 5 % of 9 s is 0.45 s: of the rows that start 0.5 s later, the first one (ties by identity) starts at 4 s.
  ASSERT_TRUE(found.falls_behind);
  EXPECT_EQ(found.falls_behind->name, "F(stage 1, mb 1)");
  EXPECT_EQ(found.falls_behind->start.first, seconds(4));
  EXPECT_EQ(found.falls_behind->start.second, seconds(4.5));
  // 0.5 s is less than 6 %.
  EXPECT_FALSE(
      compare(run.graph, {.timeline = &run.timeline}, {.timeline = &slower}, {.falls_behind_at = 0.06}).falls_behind);
}

// Checks the sign: the second run is faster.
TEST(Comparison, DifferencesAreRelativeToTheFirstRun) {
  const Simulated slow = simulated("gpipe", {.ranks = 1, .microbatches = 1}, "f=2,b=1,w=1");
  const Simulated fast = simulated("gpipe", {.ranks = 1, .microbatches = 1}, "f=1,b=1,w=1");
  const Comparison found = compare(slow.graph, {.timeline = &slow.timeline}, {.timeline = &fast.timeline});
  EXPECT_DOUBLE_EQ(*found.makespan_difference(), -0.25);
  EXPECT_DOUBLE_EQ(*kind_of(found, RowKind::F).total_error, -0.5);
  EXPECT_DOUBLE_EQ(*kind_of(found, RowKind::F).mean_error, 0.5);  // absolute
  EXPECT_FALSE(found.falls_behind);
}

// Errors of an even number of pairs: 0, 10, 30 and 60 % of four F; the median is between the middle ones.
TEST(Comparison, MedianAndMeanErrorsPerKind) {
  RunRows first{.num_ranks = 1};
  RunRows second{.num_ranks = 1};
  for (const auto& [microbatch, length] : {std::pair(0, 100), {1, 110}, {2, 70}, {3, 160}}) {
    OpRow row{.op = {.microbatch = microbatch}};
    row.start = Duration{1000 * microbatch};
    row.end = row.start + Duration{100};
    first.rows.push_back(row);
    row.end = row.start + Duration{length};
    second.rows.insert(second.rows.begin(), row);  // in reverse order
  }
  const Comparison found = compare(first, second);
  EXPECT_DOUBLE_EQ(*found.kinds[0].median_error, 0.2);
  EXPECT_DOUBLE_EQ(*found.kinds[0].mean_error, 0.25);
  EXPECT_DOUBLE_EQ(*found.kinds[0].total_error, 0.1);  // 440 to 400
  ASSERT_EQ(found.differing.size(), 3U);
  EXPECT_EQ(found.differing[0].name, "F(stage 0, mb 3)");
  EXPECT_EQ(found.differing[1].name, "F(stage 0, mb 2)");
  EXPECT_EQ(found.differing[2].name, "F(stage 0, mb 1)");
  const Comparison top = compare(first, second, {.top = 2});
  ASSERT_EQ(top.differing.size(), 2U);
  EXPECT_EQ(top.differing[1].name, "F(stage 0, mb 2)");
}

// Instantaneous transfers last 1 ns in traces, which is no basis for a relative error.
TEST(Comparison, TransfersWithoutLengthHaveNoRelativeError) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2});
  Timeline measured = run.timeline;
  const VertexId send = find(run.graph, "send F(stage 0, mb 1) 0->1");
  measured.end[send] += Duration{5'000};
  const Comparison found = compare(run.graph, {.timeline = &run.timeline}, {.timeline = &measured});
  const KindComparison& transfers = kind_of(found, RowKind::transfer);
  EXPECT_EQ(transfers.pairs, 4);
  EXPECT_EQ(transfers.mean_error, 0.0);  // over the other three
  EXPECT_EQ(transfers.total.second - transfers.total.first, Duration{4'999});
  EXPECT_EQ(found.differing[0].name, "send F(stage 0, mb 1) 0->1");
}

TEST(Comparison, UnpairedRowsAreCountedAndNamed) {
  const Simulated few = simulated("1f1b", {.ranks = 2, .microbatches = 2});
  const Simulated more = simulated("1f1b", {.ranks = 2, .microbatches = 3});
  const RunRows first = rows_of(few.graph, few.timeline);
  const RunRows second = rows_of(more.graph, more.timeline);
  const Comparison found = compare(first, second, {.top = 3});
  EXPECT_EQ(found.unpaired.first.count, 0);
  // F and B of two stages, and a transfer each way, of microbatch 2.
  EXPECT_EQ(found.unpaired.second.count, 6);
  EXPECT_THAT(found.unpaired.second.names, ElementsAre("F(stage 0, mb 2)", "F(stage 1, mb 2)", "B(stage 0, mb 2)"));
  EXPECT_EQ(first_difference(first, second), "second has F(stage 0, mb 2) on rank 0, first does not");
  EXPECT_EQ(first_difference(second, first, {.first = "a.json", .second = "b.json"}),
            "a.json has F(stage 0, mb 2) on rank 0, b.json does not");
}

TEST(Comparison, FirstDifferenceComparesOpsAndTheirRanks) {
  // The order of ops, and transfers, are not compared.
  const Simulated one = simulated("gpipe", {.ranks = 2, .microbatches = 4});
  const Simulated other = simulated("1f1b", {.ranks = 2, .microbatches = 4}, "f=1,b=1,w=1", {.recompute = true});
  EXPECT_EQ(first_difference(rows_of(one.graph, one.timeline), rows_of(other.graph, other.timeline)), "");
  // Stages 0 to 3 on ranks 0 1 0 1 and 0 1 1 0.
  const Simulated looped = simulated("interleaved-1f1b", {.ranks = 2, .chunks = 2, .microbatches = 2});
  const Simulated folded = simulated("hanayo", {.ranks = 2, .chunks = 2, .microbatches = 2});
  EXPECT_EQ(first_difference(rows_of(looped.graph, looped.timeline), rows_of(folded.graph, folded.timeline)),
            "first has F(stage 2, mb 0) on rank 0, second on rank 1");
}

TEST(Comparison, DuplicateOpIsRejected) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2});
  const RunRows once = rows_of(run.graph, run.timeline);
  RunRows twice = once;
  twice.rows.push_back(twice.rows[0]);
  EXPECT_EQ(test::error_from([&] { compare(once, twice, {.second = "b.json"}); }),
            "b.json: F(stage 0, mb 0) occurs twice");
}

// The identity of a joint block does not depend on the order of its ops.
TEST(Comparison, JointBlocksArePairedByTheirForward) {
  const OpRow one{.kind = RowKind::joint, .op = {.microbatch = 3}, .partner = {.microbatch = 1, .kind = OpKind::B}};
  OpRow other = one;
  std::swap(other.op, other.partner);
  EXPECT_EQ(identity_of(one), identity_of(other));
  other.op.microbatch = 2;
  EXPECT_NE(identity_of(one), identity_of(other));
}

std::string side_by_side(const RunRows& first, const RunRows& second) {
  std::string text;
  write_side_by_side([&](std::string_view bytes) { text.append(bytes); },
                     {TraceSide{"predicted", &first}, TraceSide{"measured", &second}});
  return text;
}

TEST(SideBySide, ProcessesOfARankAreAdjacent) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=0.25");
  const RunRows rows = rows_of(run.graph, run.timeline);
  const std::string trace = side_by_side(rows, rows);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  EXPECT_THAT(trace, HasSubstr(R"("sides":[{"name":"predicted","ranks":2},{"name":"measured","ranks":2}])"));
  const char* names[] = {"predicted rank 0", "predicted rank 1", "measured rank 0", "measured rank 1"};
  const int order[] = {0, 2, 1, 3};
  for (int pid = 1; pid <= 4; ++pid) {
    EXPECT_THAT(trace, HasSubstr(R"({"ph":"M","pid":)" + std::to_string(pid) +
                                 R"(,"name":"process_name","args":{"name":")" + names[pid - 1] + "\"}}"));
    EXPECT_THAT(trace, HasSubstr(R"({"ph":"M","pid":)" + std::to_string(pid) +
                                 R"(,"name":"process_sort_index","args":{"sort_index":)" +
                                 std::to_string(order[pid - 1]) + "}}"));
    EXPECT_EQ(test::slice_of(trace, pid, "F0").at("ts"), pid % 2 == 1 ? 0.0 : 1.25e6);
  }
}

// The events of each side equal those of a trace of that run, except for the bytes of an F.
TEST(SideBySide, HasTheEventsOfBothRuns) {
  const SmallFootprint footprint;
  const LoweringOptions options{.footprint = &footprint, .data_parallel = 2, .global_norm = true, .recompute = true};
  const Simulated run = simulated("dualpipe-v", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1,comm=0.3", options);
  const std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, true);
  const RunRows rows = rows_of(run.graph, run.timeline, memory);
  const std::string both = side_by_side(rows, rows);
  EXPECT_THAT(test::check_trace(both), IsEmpty());
  const auto counted = [](const std::string& trace) {
    std::map<std::string, int> events;
    for (const char* phase : {"X", "C", "s", "f", "M"}) {
      for (nlohmann::json event : test::events_of(trace, phase)) {
        if (std::string(phase) == "M" && event.at("name").get<std::string>().starts_with("process")) continue;
        event["pid"] = (event.at("pid").get<int>() - 1) % 4;
        if (event.contains("id")) event.erase("id");
        if (event.contains("cat") && event.at("cat") == "compute") {
          event.at("args").erase("bytes");
          if (event.at("args").contains("with")) event.at("args").at("with").erase("bytes");
        }
        ++events[event.dump()];
      }
    }
    return events;
  };
  std::map<std::string, int> expected = counted(test::trace_of(run, {}, memory));
  for (auto& [event, count] : expected) count *= 2;
  EXPECT_EQ(counted(both), expected);
}

TEST(SideBySide, OverlappingSlicesAreDrawnOneAfterAnother) {
  RunRows run{.num_ranks = 1};
  run.rows = {{.op = {.microbatch = 0}, .start = Duration{0}, .end = Duration{10}},
              {.op = {.microbatch = 1}, .start = Duration{5}, .end = Duration{20}},
              {.op = {.microbatch = 2}, .start = Duration{12}, .end = Duration{14}}};
  const std::string trace = side_by_side(run, run);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  EXPECT_THAT(trace, HasSubstr(R"("ts":0.010,"dur":0.010,"cat":"compute","name":"F1")"));
  EXPECT_THAT(trace, HasSubstr(R"("ts":0.020,"dur":0.000,"cat":"compute","name":"F2")"));
}

TEST(SideBySide, InvalidNamesAreRejected) {
  const RunRows run{.num_ranks = 1};
  const auto write = [&](const std::string& first, const std::string& second) {
    write_side_by_side([](std::string_view) {}, {TraceSide{first, &run}, TraceSide{second, &run}});
  };
  EXPECT_NO_THROW(write("a", "b"));
  EXPECT_THROW(write("a", "a"), InputError);
  EXPECT_THROW(write("", "b"), InputError);
  EXPECT_THROW(write("a\"", "b"), InputError);
}

}  // namespace
}  // namespace sluice::test
