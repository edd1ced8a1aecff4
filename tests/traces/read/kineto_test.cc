#include "traces/read/kineto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/kineto_files.h"
#include "tests/support/run_facts.h"
#include "tests/support/simulated.h"
#include "traces/compare/comparison.h"
#include "traces/read/clocks.h"
#include "traces/read/trace_read.h"

namespace sluice::test {
namespace {

using test::error_of;
using test::facts_of;
using test::KinetoStyle;
using test::Simulated;
using test::simulated;
using test::TemporaryFolder;
using test::write_kineto_files;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- PyTorch's ranges --------------------------------------------------------------------------------------------

// Names as PyTorch's _Action writes them (torch/distributed/pipelining/schedules.py).
TEST(PipelineRange, Names) {
  using Kind = PipelineAction::Kind;
  const auto op = [](const std::string& name) { return parse_pipeline_range(name)->op; };
  EXPECT_EQ(op("PP:2F0"), (RowOp{0, 2, 0, OpKind::F}));
  EXPECT_EQ(op("PP:1I3"), (RowOp{3, 1, 0, OpKind::I}));
  EXPECT_EQ(op("PP:0W12"), (RowOp{12, 0, 0, OpKind::W}));
  EXPECT_EQ(op("PP:3B1"), (RowOp{1, 3, 0, OpKind::B}));
  const auto joint = parse_pipeline_range("PP:(0F1;3B0)OVERLAP_F_B");
  EXPECT_EQ(joint->kind, Kind::joint);
  EXPECT_EQ(joint->op, (RowOp{1, 0, 0, OpKind::F}));
  EXPECT_EQ(joint->partner, (RowOp{0, 3, 0, OpKind::B}));
  EXPECT_EQ(parse_pipeline_range("PP:1SEND_F0")->kind, Kind::send);
  EXPECT_EQ(op("PP:1RECV_B4"), (RowOp{4, 1, 0, OpKind::B}));
  EXPECT_EQ(parse_pipeline_range("PP:1RECV_B4")->kind, Kind::receive);
  EXPECT_EQ(parse_pipeline_range("PP:0REDUCE_GRAD")->kind, Kind::reduce);
  EXPECT_EQ(parse_pipeline_range("PP:0UNSHARD")->kind, Kind::other);
  for (const char* wrong :
       {"PP:", "PP:F0", "PP:2X0", "2F0", "PP:(0F1;3B0", "PP:(0F1)OVERLAP_F_B", "PP:2F", "PP:-1F0"}) {
    EXPECT_FALSE(parse_pipeline_range(wrong)) << wrong;
  }
}

class Kineto : public ::testing::Test {
 protected:
  // The ops of a run, and its transfers: what its ranges hold.
  static RunRows ops_of(const RunRows& run, bool transfers) {
    RunRows out{.num_ranks = run.num_ranks};
    for (OpRow row : run.rows) {
      if (row.kind == RowKind::collective || row.kind == RowKind::optimizer || row.kind == RowKind::recompute) continue;
      if (row.kind == RowKind::transfer && !transfers) continue;
      out.rows.push_back(row);
    }
    return out;
  }
  TraceRun read_style(const RunRows& run, const KinetoStyle& style, const TraceReadOptions& options = {}) {
    return read_trace_run(write_kineto_files(folder_.path(), run, style), options);
  }

  TemporaryFolder folder_;
};

// A transfer of 0.25 s as the wire sees it takes no lane in uniform costs, but some ns on its track.
Simulated pipeline(const std::string& family = "1f1b", int ranks = 4, int microbatches = 6) {
  return simulated(family, {.ranks = ranks, .microbatches = microbatches}, "f=1,b=1,w=1,comm=0.25");
}

TEST_F(Kineto, EveryRangeComesBackExactly) {
  for (const char* family : {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "dualpipe-v", "zb-v"}) {
    SCOPED_TRACE(family);
    const Simulated run = pipeline(family, 4, 8);
    const RunRows rows = rows_of(run.graph, run.timeline);
    const TraceRun read = read_style(rows, {});
    std::vector<std::string> expected = facts_of(ops_of(rows, true));
    std::vector<std::string> found = facts_of(read.run);
    // Bytes are not in these files.
    EXPECT_EQ(found, expected);
    EXPECT_EQ(first_difference(rows, read.run), "");
    EXPECT_EQ(read.run.idle, rows.idle);
    EXPECT_EQ(read.notes[0], "4 ranks, numbered by distributedInfo; ranges of the GPU (gpu_user_annotation)");
    EXPECT_EQ(read.notes[1], "ProfilerStep 2 of 1 that are whole on all ranks");
  }
}

TEST_F(Kineto, WithoutAGpuTheRangesOfTheCpuCount) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const TraceRun read = read_style(rows, {.gpu = false});
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, false)));
  EXPECT_THAT(read.notes[0], HasSubstr("ranges of the CPU (user_annotation): with a GPU these are the launches"));
  // Without transfers too: here ops start as soon as what they need has come.
  EXPECT_EQ(read.run.idle, rows.idle);
}

// World ranks 0, 8, 16, 24; files in the wrong order, or without ranks in their own.
TEST_F(Kineto, RanksAreNumbered) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  std::vector<std::string> paths = write_kineto_files(folder_.path(), rows, {.world_rank_step = 8});
  std::reverse(paths.begin(), paths.end());
  EXPECT_EQ(facts_of(read_trace_run(paths).run), facts_of(ops_of(rows, true)));
  paths = write_kineto_files(folder_.path(), rows, {.distributed_info = false});
  const TraceRun in_order = read_trace_run(paths);
  EXPECT_EQ(facts_of(in_order.run), facts_of(ops_of(rows, true)));
  EXPECT_THAT(in_order.notes[0], HasSubstr("in the order of files"));
}

TEST_F(Kineto, OneOfSeveralSteps) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const std::vector<std::string> ops = facts_of(ops_of(rows, true));
  KinetoStyle style{.iterations = 3, .first_step = 10};
  const TraceRun last = read_style(rows, style);
  EXPECT_EQ(facts_of(last.run), ops);
  EXPECT_EQ(last.notes[1], "ProfilerStep 12 of 3 that are whole on all ranks");
  EXPECT_EQ(read_style(rows, style, {.step = 10}).notes[1], "ProfilerStep 10 of 3 that are whole on all ranks");
  EXPECT_EQ(error_of([&] { read_style(rows, style, {.step = 9}); }),
            folder_.path() + "/rank0.json and 3 more: --step: expected one of 10, 11, 12, got 9");
  // Recording began within the first and ended within the last.
  style.cut_front = 3;
  style.cut_back = 1;
  const TraceRun middle = read_style(rows, style);
  EXPECT_EQ(middle.notes[1], "ProfilerStep 11 of 1 that are whole on all ranks");
  EXPECT_EQ(facts_of(middle.run), ops);
}

// Without ProfilerStep iterations are told by what repeats itself, whereever the recording began.
TEST_F(Kineto, IterationsWithoutProfilerStep) {
  for (const char* family : {"1f1b", "gpipe", "zb-h1", "dualpipe-v"}) {
    SCOPED_TRACE(family);
    const Simulated run = pipeline(family, 4, 8);
    const RunRows rows = rows_of(run.graph, run.timeline);
    const std::vector<std::string> ops = facts_of(ops_of(rows, false));
    for (const int cut : {0, 1, 5, 11}) {
      KinetoStyle style{.iterations = 4, .steps = false, .transfers = false};
      style.cut_front = cut;
      style.cut_back = cut / 2;
      const TraceRun read = read_style(rows, style);
      EXPECT_EQ(facts_of(read.run), ops) << cut;
      const int whole = 4 - (cut > 0 ? 1 : 0) - (cut / 2 > 0 ? 1 : 0);
      EXPECT_EQ(read.notes[1], "iteration " + std::to_string(whole - 1) + " of " + std::to_string(whole) +
                                   " that are whole on all ranks");
    }
  }
}

// --- clocks ------------------------------------------------------------------------------------------------------

// Each clock is off by something else. Activations and gradients take 0.25 s alike, so that the fastest message each
// way tells the clocks apart exactly.
TEST_F(Kineto, ClocksAreAlignedByMessages) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const KinetoStyle style{.clocks = {Duration{0}, Duration{3'000'000'123}, Duration{-45'000'000}, Duration{9}}};
  const TraceRun read = read_style(rows, style);
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, true)));
  // 6 activations and 6 gradients over 3 hops.
  EXPECT_EQ(read.notes[2],
            "clocks aligned by 36 sends and their receives: rank 1 -3 s, rank 2 +45 ms, rank 3 -0.009 µs");
}

// The same by the order of ops: F of the next stage begins 0.25 s behind the end of this one's, B of the stage before
// as late behind the next one's, so that a clock can be moved by 0.25 s either way, and the middle is right.
TEST_F(Kineto, ClocksAreAlignedByCausality) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  KinetoStyle style{.transfers = false};
  style.clocks = {Duration{0}, Duration{0}, Duration{2'000'000'000}, Duration{0}};
  const TraceRun read = read_style(rows, style);
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, false)));
  EXPECT_EQ(read.notes[2], "clocks aligned by the order of ops: rank 2 -2 s");
  // 0.2 s are no contradiction: nothing is moved.
  style.clocks[2] = Duration{200'000'000};
  const TraceRun as_it_is = read_style(rows, style);
  EXPECT_EQ(as_it_is.notes[2], "clocks of the ranks as they are: no op starts before what it needs has ended");
  EXPECT_EQ(compare(rows, as_it_is.run).runs.second.makespan, compare(rows, rows).runs.first.makespan);
}

OpRow op(OpKind kind, int stage, std::int64_t start, std::int64_t end) {
  return {.kind = row_kind(kind),
          .rank = static_cast<std::int16_t>(stage),
          .op = {.stage = static_cast<std::int16_t>(stage), .kind = kind},
          .start = Duration{start},
          .end = Duration{end}};
}

// Two ranks: F of stage 1 from 10 - x on after that of stage 0 until 10; B of stage 1 until 30 + y before that of stage
// 0 from 30 on. Clock 1 may be moved by d with 10 <= 10 - x + d and 30 + y + d <= 30: x <= d <= -y.
TEST(Clocks, StayWithinWhatIsPossible) {
  const auto aligned = [](std::int64_t x, std::int64_t y) {
    const OpRow rows[] = {op(OpKind::F, 0, 0, 10), op(OpKind::F, 1, 10 - x, 20), op(OpKind::B, 1, 20, 30 + y),
                          op(OpKind::B, 0, 30, 40)};
    return align_clocks(2, rows, {});
  };
  EXPECT_EQ(aligned(0, 0).by, ClockAlignment::By::none);
  EXPECT_EQ(aligned(-4, -4).by, ClockAlignment::By::none);
  const ClockAlignment later = aligned(2, -6);  // 2 <= d <= 6; rank 0 is held, being the first
  EXPECT_EQ(later.by, ClockAlignment::By::causality);
  EXPECT_THAT(later.offsets, ElementsAre(Duration{0}, Duration{4}));
  EXPECT_EQ(later.remaining, Duration{0});
  // 3 <= d <= -5: with 4 of slack at both ends 3 - 4 <= d <= -5 + 4.
  const ClockAlignment contradiction = aligned(3, 5);
  EXPECT_EQ(contradiction.remaining, Duration{4});
  EXPECT_THAT(contradiction.offsets, ElementsAre(Duration{0}, Duration{-1}));
  EXPECT_EQ(contradiction.describe(),
            "clocks aligned by the order of ops: rank 1 -0.001 µs; ops still start up to 0.004 µs too early, which no "
            "offsets mend");
}

// A message to rank 1 seems to take 12, one back -4: in truth 4 each way, with clock 1 ahead by 8.
TEST(Clocks, MessagesBothWaysMustJoinAllRanks) {
  const Message there{0, 1, Duration{100}, Duration{112}};
  const Message slower{0, 1, Duration{200}, Duration{230}};
  const Message back{1, 0, Duration{50}, Duration{46}};
  const Message both[] = {there, slower, back};
  const ClockAlignment aligned = align_clocks(2, {}, both);
  EXPECT_EQ(aligned.by, ClockAlignment::By::messages);
  EXPECT_THAT(aligned.offsets, ElementsAre(Duration{0}, Duration{-8}));
  EXPECT_EQ(align_clocks(2, {}, std::span(both, 2)).by, ClockAlignment::By::none);
  EXPECT_EQ(align_clocks(3, {}, both).by, ClockAlignment::By::none);
}

// Iterations whose clocks are seconds apart are matched by their number where ranks have as many, else by time.
TEST_F(Kineto, IterationsOfRanksThatBeganApart) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  KinetoStyle style{.iterations = 3, .steps = false};
  std::vector<std::string> paths = write_kineto_files(folder_.path(), rows, style);
  style.cut_front = 1;
  write_file_whole(paths[2], test::kineto_text(rows, 2, style));
  const TraceRun read = read_trace_run(paths);
  EXPECT_EQ(read.notes[1], "iteration 2 of 2 that are whole on all ranks");
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, true)));
}

TEST_F(Kineto, WhatIsWrongIsNamed) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const std::vector<std::string> paths = write_kineto_files(folder_.path(), rows, {});
  const std::string good = read_file(paths[1]);
  const auto error = [&](const std::vector<std::string>& files) { return error_of([&] { read_trace_run(files); }); };
  const auto with = [&](const std::string& from, const std::string& to, bool everywhere = false) {
    std::string bad = good;
    std::size_t at = bad.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    for (; at != std::string::npos; at = everywhere ? bad.find(from, at + to.size()) : std::string::npos) {
      bad.replace(at, from.size(), to);
    }
    write_file_whole(paths[1], bad);
    return error(paths);
  };
  const std::string& file = paths[1];
  EXPECT_EQ(error({paths[0], paths[1], paths[3]}),
            paths[0] + " and 2 more: no file has stage 2: is that of a rank missing?");
  EXPECT_EQ(error({paths[0], paths[1], paths[1]}),
            paths[1] + ": /distributedInfo/rank: expected the ranks of one pipeline, got 1 as in " + paths[1]);
  EXPECT_EQ(with("\"rank\": 1", "\"rank\": 0"),
            file + ": /distributedInfo/rank: expected the ranks of one pipeline, got 0 as in " + paths[0]);
  EXPECT_EQ(with("PP:", "PX:", true),
            file +
                ": /traceEvents: expected ranges of pipeline ops (PP:0F0, of category gpu_user_annotation or "
                "user_annotation), got none");
  // Behind process_name, the step on CPU and GPU, and the receive on the CPU, as a kernel and on the GPU.
  EXPECT_EQ(with("\"PP:1F0\"", "\"PP:1F\""),
            file +
                ": event 6: PP:1F: expected an action of torch.distributed.pipelining, such as PP:2F0 or "
                "PP:(0F1;3B0)OVERLAP_F_B");
  EXPECT_EQ(with("\"PP:1F0\"", "\"PP:0F0\"", true),
            file + ": stage 0 is in " + paths[0] + " too: expected the files of one pipeline, one for each rank");
  EXPECT_EQ(with("gpu_user", "xpu_user", true),
            file + ": ranges of the CPU alone, where " + paths[0] + " has those of the GPU");
  EXPECT_EQ(with("ProfilerStep", "Step", true), file + ": has no ProfilerStep ranges, where " + paths[0] + " has some");
  EXPECT_EQ(with("ProfilerStep#2", "ProfilerStep#3", true),
            paths[0] + " and 3 more: expected an iteration that is whole on all ranks, got none");
  EXPECT_EQ(with("ProfilerStep#2", "ProfilerStep#two"),
            file + ": event 1: ProfilerStep#two: expected a number behind it");
  EXPECT_EQ(with("\"baseTimeNanoseconds\": 1", "\"baseTimeNanoseconds\": -1"),
            file + ": /baseTimeNanoseconds: expected 0 to 4000000000000000000, got -1700000000123456789");
  EXPECT_THAT(with("\"traceEvents\": [", "\"traceEvents\": {"), HasSubstr(file + ": line "));
  EXPECT_EQ(with("\"traceEvents\"", "\"events\""), file + ": expected a trace: an object with an array traceEvents");
  // Ops of which none is ever behind its forward.
  KinetoStyle style{.steps = false};
  style.cut_front = 1;
  write_file_whole(paths[1], test::kineto_text(rows, 1, style));
  EXPECT_EQ(error({paths[1]}),
            file +
                ": /traceEvents: expected whole iterations, each op once and behind what it needs; record them with "
                "ProfilerStep (torch.profiler's step())");
}

}  // namespace
}  // namespace sluice::test
