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

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- ranges of PyTorch --------------------------------------------------------------------------------------------

// Names as PyTorch's _Action writes them (torch/distributed/pipelining/schedules.py).
TEST(PipelineRange, NamesOfPyTorchAreParsed) {
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
  // The rows of a run that Kineto ranges represent: ops and, with `transfers`, transfers.
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

// With uniform costs a transfer of 0.25 s is all latency: it occupies its lane for 0 s and its track for some ns.
Simulated pipeline(const std::string& family = "1f1b", int ranks = 4, int microbatches = 6) {
  return simulated(family, {.ranks = ranks, .microbatches = microbatches}, "f=1,b=1,w=1,comm=0.25");
}

TEST_F(Kineto, RangesAreReadExactly) {
  for (const char* family : {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "dualpipe-v", "zb-v"}) {
    SCOPED_TRACE(family);
    const Simulated run = pipeline(family, 4, 8);
    const RunRows rows = rows_of(run.graph, run.timeline);
    const TraceRun read = read_style(rows, {});
    std::vector<std::string> expected = facts_of(ops_of(rows, true));
    std::vector<std::string> found = facts_of(read.run);
    // These files contain no bytes.
    EXPECT_EQ(found, expected);
    EXPECT_EQ(first_difference(rows, read.run), "");
    EXPECT_EQ(read.run.idle, rows.idle);
    EXPECT_EQ(read.notes[0], "4 ranks, numbered by distributedInfo; GPU ranges (gpu_user_annotation)");
    EXPECT_EQ(read.notes[1], "ProfilerStep 2, 1 complete on all ranks");
  }
}

// PyTorch 2.11 on an H100: the GPU ranges of backwards have the kernels that scale the loss, or none at all.
TEST_F(Kineto, KernelsOfOtherThreadsBelongToTheRangeThatWaitsForThem) {
  for (const char* family : {"1f1b", "zb-h1", "interleaved-1f1b"}) {
    SCOPED_TRACE(family);
    const Simulated run = pipeline(family, 4, 8);
    const RunRows rows = rows_of(run.graph, run.timeline);
    for (const bool steps : {true, false}) {
      const TraceRun read = read_style(rows, {.iterations = 2, .steps = steps, .launches = true});
      EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, true)));
      EXPECT_EQ(read.notes[0],
                "4 ranks, numbered by distributedInfo; kernels launched in CPU ranges (user_annotation)");
    }
  }
}

// A profiler's clock may let an empty range end before it begins.
TEST_F(Kineto, NegativeDurationsOfAClocksResolutionAreCounted) {
  const Simulated run = pipeline();
  const std::vector<std::string> paths = write_kineto_files(folder_.path(), rows_of(run.graph, run.timeline), {});
  const auto read_with = [&](const char* duration) {
    std::string text = read_file(paths[0]);
    const std::size_t key = text.find("\"dur\":", text.find("PP:"));
    const std::size_t begin = key + 6;
    write_file_whole(paths[0], text.replace(begin, text.find_first_of(",}", begin) - begin, duration));
    return read_trace_run(paths);
  };
  EXPECT_THAT(read_with("-0.3").notes, ::testing::Contains(HasSubstr("1 durations below 0")));
  EXPECT_THROW(read_with("-201"), InputError);
}

TEST_F(Kineto, CpuRangesAreReadWithoutGpuRanges) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const TraceRun read = read_style(rows, {.gpu = false});
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, false)));
  EXPECT_THAT(read.notes[0], HasSubstr("CPU ranges (user_annotation); with a GPU these are kernel launches"));
  // Idle times do not need transfers: here ops start as soon as their dependencies arrive.
  EXPECT_EQ(read.run.idle, rows.idle);
}

// World ranks 0, 8, 16, 24 with files in reverse order; without ranks, file order.
TEST_F(Kineto, RanksAreNumberedByWorldRankOrFileOrder) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  std::vector<std::string> paths = write_kineto_files(folder_.path(), rows, {.world_rank_step = 8});
  std::reverse(paths.begin(), paths.end());
  EXPECT_EQ(facts_of(read_trace_run(paths).run), facts_of(ops_of(rows, true)));
  paths = write_kineto_files(folder_.path(), rows, {.distributed_info = false});
  const TraceRun in_order = read_trace_run(paths);
  EXPECT_EQ(facts_of(in_order.run), facts_of(ops_of(rows, true)));
  EXPECT_THAT(in_order.notes[0], HasSubstr("in file order"));
}

TEST_F(Kineto, ReadsOneOfSeveralSteps) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const std::vector<std::string> ops = facts_of(ops_of(rows, true));
  KinetoStyle style{.iterations = 3, .first_step = 10};
  const TraceRun last = read_style(rows, style);
  EXPECT_EQ(facts_of(last.run), ops);
  EXPECT_EQ(last.notes[1], "ProfilerStep 12, 3 complete on all ranks");
  EXPECT_EQ(read_style(rows, style, {.step = 10}).notes[1], "ProfilerStep 10, 3 complete on all ranks");
  EXPECT_EQ(error_from([&] { read_style(rows, style, {.step = 9}); }),
            folder_.path() + "/rank0.json and 3 more: --step: expected one of 10, 11, 12, got 9");
  // The recording starts within the first iteration and ends within the last.
  style.cut_front = 3;
  style.cut_back = 1;
  const TraceRun middle = read_style(rows, style);
  EXPECT_EQ(middle.notes[1], "ProfilerStep 11, 1 complete on all ranks");
  EXPECT_EQ(facts_of(middle.run), ops);
}

// Without ProfilerStep ranges, iterations are found by repetition, wherever the recording starts.
TEST_F(Kineto, IterationsAreFoundWithoutProfilerStep) {
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
      EXPECT_EQ(read.notes[1],
                "iteration " + std::to_string(whole - 1) + ", " + std::to_string(whole) + " complete on all ranks");
    }
  }
}

// --- clocks ------------------------------------------------------------------------------------------------------

// Every clock has a different offset. Activations and gradients both take 0.25 s, so that the fastest messages of the
// two directions determine the offsets exactly.
TEST_F(Kineto, ClocksAreAlignedByMessages) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const KinetoStyle style{.clocks = {Duration{0}, Duration{3'000'000'123}, Duration{-45'000'000}, Duration{9}}};
  const TraceRun read = read_style(rows, style);
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, true)));
  // 6 activations and 6 gradients between 3 pairs of ranks.
  EXPECT_EQ(read.notes[2],
            "clocks aligned by 36 matched sends and receives: rank 1 -3 s, rank 2 +45 ms, rank 3 -0.009 µs");
}

// By dependencies of ops: the F of the next stage starts 0.25 s after the end of this stage's, and the B of the
// previous stage 0.25 s after this stage's, so that a clock can move by 0.25 s in both directions, and the middle is
// correct.
TEST_F(Kineto, ClocksAreAlignedByCausality) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  KinetoStyle style{.transfers = false};
  style.clocks = {Duration{0}, Duration{0}, Duration{2'000'000'000}, Duration{0}};
  const TraceRun read = read_style(rows, style);
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, false)));
  EXPECT_EQ(read.notes[2], "clocks aligned by dependencies of ops: rank 2 -2 s");
  // An offset of 0.2 s violates no dependency: nothing is adjusted.
  style.clocks[2] = Duration{200'000'000};
  const TraceRun unadjusted = read_style(rows, style);
  EXPECT_EQ(unadjusted.notes[2], "clocks not adjusted: no op starts before its dependencies end");
  EXPECT_EQ(compare(rows, unadjusted.run).runs.second.makespan, compare(rows, rows).runs.first.makespan);
}

OpRow op(OpKind kind, int stage, std::int64_t start, std::int64_t end) {
  return {.kind = row_kind(kind),
          .rank = static_cast<std::int16_t>(stage),
          .op = {.stage = static_cast<std::int16_t>(stage), .kind = kind},
          .start = Duration{start},
          .end = Duration{end}};
}

// Two ranks: F of stage 0 ends at 10 and F of stage 1 starts at 10 - x; B of stage 1 ends at 30 + y and B of stage 0
// starts at 30. Clock 1 may be moved by d with 10 <= 10 - x + d and 30 + y + d <= 30: x <= d <= -y.
TEST(Clocks, OffsetsAreFeasible) {
  const auto aligned = [](std::int64_t x, std::int64_t y) {
    const OpRow rows[] = {op(OpKind::F, 0, 0, 10), op(OpKind::F, 1, 10 - x, 20), op(OpKind::B, 1, 20, 30 + y),
                          op(OpKind::B, 0, 30, 40)};
    return align_clocks(2, rows, {});
  };
  EXPECT_EQ(aligned(0, 0).by, ClockAlignment::By::none);
  EXPECT_EQ(aligned(-4, -4).by, ClockAlignment::By::none);
  const ClockAlignment later = aligned(2, -6);  // 2 <= d <= 6; rank 0 keeps its clock, being the first
  EXPECT_EQ(later.by, ClockAlignment::By::causality);
  EXPECT_THAT(later.offsets, ElementsAre(Duration{0}, Duration{4}));
  EXPECT_EQ(later.remaining, Duration{0});
  // 3 <= d <= -5 is infeasible; with a slack of 4 at both ends, 3 - 4 <= d <= -5 + 4.
  const ClockAlignment infeasible = aligned(3, 5);
  EXPECT_EQ(infeasible.remaining, Duration{4});
  EXPECT_THAT(infeasible.offsets, ElementsAre(Duration{0}, Duration{-1}));
  EXPECT_EQ(infeasible.describe(),
            "clocks aligned by dependencies of ops: rank 1 -0.001 µs; ops still start up to 0.004 µs before their "
            "dependencies end, for any offsets");
}

// A message to rank 1 appears to take 12, one back -4: 4 in each direction, with clock 1 ahead by 8.
TEST(Clocks, MessagesInBothDirectionsMustConnectAllRanks) {
  const MatchedMessage there{0, 1, Duration{100}, Duration{112}};
  const MatchedMessage slower{0, 1, Duration{200}, Duration{230}};
  const MatchedMessage back{1, 0, Duration{50}, Duration{46}};
  const MatchedMessage both[] = {there, slower, back};
  const ClockAlignment aligned = align_clocks(2, {}, both);
  EXPECT_EQ(aligned.by, ClockAlignment::By::messages);
  EXPECT_THAT(aligned.offsets, ElementsAre(Duration{0}, Duration{-8}));
  EXPECT_EQ(align_clocks(2, {}, std::span(both, 2)).by, ClockAlignment::By::none);
  EXPECT_EQ(align_clocks(3, {}, both).by, ClockAlignment::By::none);
}

// Iterations are matched in order if all ranks have the same number of them, otherwise by time.
TEST_F(Kineto, IterationsOfRanksThatStartedApartAreMatched) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  KinetoStyle style{.iterations = 3, .steps = false};
  std::vector<std::string> paths = write_kineto_files(folder_.path(), rows, style);
  style.cut_front = 1;
  write_file_whole(paths[2], test::kineto_text(rows, 2, style));
  const TraceRun read = read_trace_run(paths);
  EXPECT_EQ(read.notes[1], "iteration 2, 2 complete on all ranks");
  EXPECT_EQ(facts_of(read.run), facts_of(ops_of(rows, true)));
}

TEST_F(Kineto, ErrorsNameFileAndCause) {
  const Simulated run = pipeline();
  const RunRows rows = rows_of(run.graph, run.timeline);
  const std::vector<std::string> paths = write_kineto_files(folder_.path(), rows, {});
  const std::string good = read_file(paths[1]);
  const auto error = [&](const std::vector<std::string>& files) { return error_from([&] { read_trace_run(files); }); };
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
            paths[0] + " and 2 more: no file contains stage 2: is the file of a rank missing?");
  EXPECT_EQ(error({paths[0], paths[1], paths[1]}),
            paths[1] + ": /distributedInfo/rank: expected the distinct ranks of one pipeline, got 1 as in " + paths[1]);
  EXPECT_EQ(with("\"rank\": 1", "\"rank\": 0"),
            file + ": /distributedInfo/rank: expected the distinct ranks of one pipeline, got 0 as in " + paths[0]);
  EXPECT_EQ(with("PP:", "PX:", true),
            file +
                ": /traceEvents: expected pipeline op ranges (such as PP:0F0, category gpu_user_annotation or "
                "user_annotation), got none; sluice analyze --names reads other names");
  // After process_name, the step on CPU and GPU, and the receive on the CPU, as a kernel and on the GPU.
  EXPECT_EQ(with("\"PP:1F0\"", "\"PP:1F\""),
            file +
                ": event 6: PP:1F: expected an action of torch.distributed.pipelining such as PP:2F0 or "
                "PP:(0F1;3B0)OVERLAP_F_B");
  EXPECT_EQ(with("\"PP:1F0\"", "\"PP:0F0\"", true),
            file + ": stage 0 is also in " + paths[0] + ": expected the files of one pipeline, one per rank");
  EXPECT_EQ(with("gpu_user", "xpu_user", true), file + ": has only CPU ranges, but " + paths[0] + " has GPU ranges");
  EXPECT_EQ(with("ProfilerStep", "Step", true), file + ": has no ProfilerStep ranges, but " + paths[0] + " has some");
  EXPECT_EQ(with("ProfilerStep#2", "ProfilerStep#3", true),
            paths[0] + " and 3 more: expected an iteration that is complete on all ranks, got none");
  EXPECT_EQ(with("ProfilerStep#2", "ProfilerStep#two"),
            file + ": event 1: ProfilerStep#two: expected a number after ProfilerStep#");
  EXPECT_EQ(with("\"baseTimeNanoseconds\": 1", "\"baseTimeNanoseconds\": -1"),
            file + ": /baseTimeNanoseconds: expected 0 to 4000000000000000000, got -1700000000123456789");
  EXPECT_THAT(with("\"traceEvents\": [", "\"traceEvents\": {"), HasSubstr(file + ": line "));
  EXPECT_EQ(with("\"traceEvents\"", "\"events\""),
            file + ": expected a trace: an object with an array traceEvents, or an array");
  // Iterations in which the backward of one op precedes its forward.
  KinetoStyle style{.steps = false};
  style.cut_front = 1;
  write_file_whole(paths[1], test::kineto_text(rows, 1, style));
  EXPECT_EQ(
      error({paths[1]}),
      file +
          ": /traceEvents: expected complete iterations with each op once and after its dependencies; record with "
          "ProfilerStep ranges (torch.profiler's step())");
}

}  // namespace
}  // namespace sluice::test
