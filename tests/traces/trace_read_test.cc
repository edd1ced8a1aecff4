#include "traces/trace_read.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "model/errors.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"
#include "tests/support/kineto_files.h"
#include "tests/support/simulated.h"
#include "tests/support/trace_text.h"
#include "traces/chrome_trace.h"
#include "traces/clocks.h"
#include "traces/comparison.h"
#include "traces/gzip.h"
#include "traces/kineto.h"
#include "traces/side_by_side.h"
#include "traces/trace_events.h"

namespace sluice {
namespace {

using nlohmann::json;
using test::KinetoStyle;
using test::Simulated;
using test::simulated;
using test::SmallFootprint;
using test::TemporaryFolder;
using test::write_kineto_files;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// Rows in the order of identities, as what is known of each: nothing may differ.
std::vector<std::string> facts_of(const RunRows& run) {
  std::vector<std::string> facts;
  for (const OpRow& row : run.rows) {
    std::string text = name_of(row, true) + " on " + std::to_string(row.rank) + " " +
                       std::to_string(row.start.count()) + " to " + std::to_string(row.end.count());
    if (row.kind == RowKind::transfer) text += " later " + std::to_string(row.latency.count());
    if (row.kind == RowKind::transfer || row.kind == RowKind::collective) text += " of " + std::to_string(row.bytes);
    facts.push_back(text);
  }
  std::sort(facts.begin(), facts.end());
  return facts;
}

// --- our own traces -------------------------------------------------------------------------------------------------

class ReadTrace : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    write_maybe_zipped(folder_.path(name), [&](const ByteSink& sink) { sink(text); });
    return folder_.path(name);
  }
  TraceRun read(const std::string& text, const TraceReadOptions& options = {}) {
    return read_trace_run({write("t.json", text)}, options);
  }

  TemporaryFolder folder_;
};

// Every family over small shapes, with and without latency, bytes and what surrounds an iteration: what is read is what
// was written, and the comparison finds no difference, not in memory counters nor in idle time either.
TEST_F(ReadTrace, EveryFamilyComesBack) {
  const SmallFootprint footprint;
  for (const Family& family : all_families()) {
    int runs = 0;
    int same_peaks = 0;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int microbatches = 2; microbatches <= (test::small_scope() ? 4 : 8); microbatches += 2) {
        const int chunks = family.name == "hanayo" ? 2 : 1;  // its least
        FamilyParams params{
            .ranks = ranks, .chunks = family.fixed_chunks == 0 ? chunks : 0, .microbatches = microbatches};
        if (family.sliced) params.shape.slice_lengths = {1, 1};
        std::optional<Schedule> schedule;
        try {
          schedule.emplace(make_schedule(family, params));
        } catch (const InputError&) {
          continue;  // a shape that the family refuses
        }
        SCOPED_TRACE(std::string(family.name) + " p=" + std::to_string(ranks) + " m=" + std::to_string(microbatches));
        LoweringOptions options{.footprint = &footprint, .data_parallel = 2, .recompute = true};
        options.global_norm = options.tied_embedding = !family.asynchronous;
        const Simulated run =
            simulated(std::move(*schedule), ranks % 2 == 0 ? "f=1,b=1,w=1" : "f=1,b=1.5,w=0.7,comm=0.3", options);
        const std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, true);
        const RunRows written = rows_of(run.graph, run.timeline, memory);
        const std::string file = folder_.path(microbatches % 4 == 0 ? "t.json" : "t.json.gz");
        write_trace_file(file, run.graph, run.timeline, memory, {.idle = true});
        const TraceRun read = read_trace_run({file});
        EXPECT_THAT(read.notes, ElementsAre(std::to_string(ranks) + " ranks"));
        EXPECT_EQ(facts_of(read.run), facts_of(written));
        EXPECT_EQ(first_difference(written, read.run), "");
        const Comparison found = compare(written, read.run, {.falls_behind_at = 0});
        EXPECT_EQ(found.makespan_difference(), 0.0);
        EXPECT_EQ(found.pairs, std::ssize(written.rows));
        EXPECT_THAT(found.differing, IsEmpty());
        EXPECT_FALSE(found.falls_behind);
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
          // Counters do not have what is there for an instant alone: buffers of transfers that take no time.
          const auto& samples = memory[rank].samples;
          const auto peak = std::max_element(samples.begin(), samples.end(), [](const auto& a, const auto& b) {
            return total(a.bytes) < total(b.bytes);
          });
          EXPECT_EQ(read.run.memory[rank].peak_bytes, total(peak->bytes));
          EXPECT_EQ(read.run.memory[rank].peak_time, peak->time);
          EXPECT_EQ(read.run.memory[rank].at_peak, peak->bytes);
          if (total(peak->bytes) != memory[rank].peak_bytes) continue;
          ++same_peaks;
        }
        EXPECT_EQ(read.run.idle.empty() ? std::vector<IdleByCause>(written.idle.size()) : read.run.idle, written.idle);
        ++runs;
      }
    }
    EXPECT_GT(runs, 0) << family.name;
    EXPECT_GE(same_peaks, runs) << family.name;
  }
}

TEST_F(ReadTrace, WhatATraceDoesNotSayIsNotKnown) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2});
  const TraceRun bare = read(test::trace_of(run));
  EXPECT_THAT(bare.run.idle, IsEmpty());
  EXPECT_THAT(bare.run.memory, IsEmpty());
  // Counters of a run without bytes are all 0.
  EXPECT_THAT(read(test::trace_of(run, {}, memory_over_time(run.graph, run.timeline, true))).run.memory, IsEmpty());
}

// Pipeline ranks are the processes in the order of the file.
TEST_F(ReadTrace, WorldRanksAndRanksThatAreLeftOut) {
  const Simulated run = simulated("1f1b", {.ranks = 4, .microbatches = 3});
  const RunRows all = rows_of(run.graph, run.timeline);
  TraceOptions options{.world_ranks = {0, 8, 16, 24}};
  EXPECT_EQ(facts_of(read(test::trace_of(run, options)).run), facts_of(all));
  options.ranks = {1, 2};
  const TraceRun some = read(test::trace_of(run, options));
  // Of ranks 1 and 2 with 0 and 3 six activations, six gradients: each has only the one end.
  EXPECT_THAT(some.notes,
              ElementsAre("2 ranks", "the trace leaves out ranks", "12 transfers with one end are left out"));
  EXPECT_EQ(first_difference(all, some.run), "first has F(stage 0, mb 0) on rank 0, second does not");
}

// A trace with several iterations: each slice again 100 s and 200 s later, the last time without the last op.
TEST_F(ReadTrace, OneOfSeveralIterations) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2}, "f=1,b=1,w=1,comm=0.25");
  json trace = json::parse(test::trace_of(run));
  json events = json::array();
  for (const json& event : trace.at("traceEvents")) {
    for (int i = 0; i < (event.at("ph") == "M" ? 1 : 3); ++i) {
      json again = event;
      if (event.at("ph") != "M") again["ts"] = event.at("ts").get<double>() + 1e8 * i;
      // Slower from time to time.
      if (event.at("ph") == "X" && event.at("name") == "F0") again["dur"] = event.at("dur").get<double>() - 1e5 * i;
      if (i == 2 && event.at("ph") == "X" && event.at("name") == "B1" && event.at("pid") == 1) continue;
      events.push_back(again);
    }
  }
  trace["traceEvents"] = events;
  const RunRows written = rows_of(run.graph, run.timeline);
  const TraceRun last = read(trace.dump());
  EXPECT_THAT(last.notes, ElementsAre("2 ranks, iteration 1 of 0 to 1"));
  const Comparison found = compare(written, last.run);
  EXPECT_EQ(found.pairs, std::ssize(written.rows));
  ASSERT_EQ(found.differing.size(), 2U);
  EXPECT_EQ(found.differing[0].duration.second, Duration{900'000'000});
  EXPECT_EQ(facts_of(read(trace.dump(), {.step = 0}).run), facts_of(written));
  EXPECT_EQ(error_of([&] { read(trace.dump(), {.step = 2}); }),
            folder_.path("t.json") + ": --step: expected 0 to 1, got 2");
  // With one iteration there is nothing to choose.
  EXPECT_EQ(facts_of(read(test::trace_of(run), {.step = 7}).run), facts_of(written));
}

struct Broken {
  const char* from;
  const char* to;
  const char* error;  // behind "FILE: "; EVENT is "event N" of the change, END the end of the file
};

TEST_F(ReadTrace, WhatIsWrongIsNamed) {
  const SmallFootprint footprint;
  const LoweringOptions lowering{.footprint = &footprint, .data_parallel = 2, .recompute = true};
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=0.25", lowering);
  const std::string good = test::trace_of(run, {.idle = true}, memory_over_time(run.graph, run.timeline, true));
  EXPECT_NO_THROW(read(good));
  const Broken all[] = {
      {"sluice.trace/1", "sluice.trace/2", "/sluice/schema: expected sluice.trace/1, got 'sluice.trace/2'"},
      {"\"scenario\":null", "\"sides\":[]", "/sluice/sides: expected a trace of one run, got one of two"},
      {"traceEvents", "events", "expected a trace: an object with an array traceEvents"},
      {"\"args\":{\"stage\":0", "\"args\":{\"stage\":-1",
       "EVENT: F0: args: stage: expected a whole number from 0 to 32766, got none"},
      {"\"args\":{\"stage\":0", "\"args\":{\"stage\":40000",
       "EVENT: F0: args: stage: expected a whole number from 0 to 32766, got 40000"},
      {"\"name\":\"F0\",\"args\"", "\"name\":\"G0\",\"args\"",
       "EVENT: expected a name such as F3, R3 or F3+B1, got 'G0'"},
      {"\"name\":\"F0\",\"args\"", "\"name\":\"F0+B0\",\"args\"",
       "EVENT: F0+B0: args: stage: expected a whole number from 0 to 32766, got none"},
      {"\"name\":\"send F0\"", "\"name\":\"sent F0\"",
       "EVENT: expected a name such as send F3 or recv B3, got 'sent F0'"},
      {"\"cat\":\"compute\"", "\"cat\":\"computation\"",
       "EVENT: expected a cat of compute, p2p, coll, opt or idle, got 'computation'"},
      {"\"name\":\"gradient reduce 0\"", "\"name\":\"gradient reduced 0\"",
       "EVENT: there is no collective 'gradient reduced'; did you mean 'gradient reduce'?"},
      {"\"cause\":\"warm_up\"", "\"cause\":\"cable\"", "EVENT: there is no cause 'cable'"},
      {"\"weights\":1000", "\"weight\":1000", "EVENT: memory: there is no class 'weight'; did you mean 'weights'?"},
      {"\"weights\":1000", "\"weights\":-1", "EVENT: memory: weights: expected bytes, got -1"},
      {"\"ts\":0.000,\"dur\":1000000.000", "\"ts\":0.000,\"dur\":-1.000", "EVENT: F0: dur: expected 0 or more"},
      {"\"ts\":0.000,\"dur\":1000000.000", "\"ts\":0.000,\"length\":1.000", "EVENT: F0: expected ts and dur"},
      {"\"ts\":0.000,\"dur\":1000000.000", "\"ts\":5e15,\"dur\":1.000",
       "EVENT: ts: expected microseconds between -1e+14 and 4e+15"},
      {"\"pid\":1,\"tid\":1,\"ts\"", "\"pid\":9,\"tid\":1,\"ts\"",
       "EVENT: expected a pid that process_name has named before, got 9"},
      {"\"pid\":2,\"name\":\"process_name\"", "\"pid\":1,\"name\":\"process_name\"",
       "EVENT: pid 1 has its second process_name"},
      {"\"step\":0", "\"stop\":0", "EVENT: gradient reduce 0: args: step: expected one"},
      {"},\n\"traceEvents\"", ",\n\"traceEvents\"",
       "END: not JSON: syntax error while parsing object - unexpected end of input; expected '}'"},
      {"{\"sluice\"", "[\"sluice\"",
       "line 1, column 10: not JSON: syntax error while parsing array - unexpected ':'; expected ']'"},
  };
  for (const Broken& broken : all) {
    SCOPED_TRACE(std::string(broken.from) + " -> " + broken.to);
    std::string bad = good;
    const std::size_t at = bad.find(broken.from);
    ASSERT_NE(at, std::string::npos);
    bad.replace(at, std::string_view(broken.from).size(), broken.to);
    // An event stands on a line of its own, behind two.
    const auto lines = [&](std::size_t end) {
      return std::count(bad.begin(), bad.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    };
    std::string expected = broken.error;
    if (expected.starts_with("EVENT")) expected.replace(0, 5, "event " + std::to_string(lines(at) - 2));
    if (expected.starts_with("END"))
      expected.replace(0, 3, "line " + std::to_string(lines(bad.size()) + 1) + ", column 1");
    EXPECT_EQ(error_of([&] { read(bad); }), folder_.path("t.json") + ": " + expected);
  }
  EXPECT_EQ(error_of([&] { read(good.substr(0, good.size() / 2)); }).substr(0, folder_.path("t.json").size() + 6),
            folder_.path("t.json") + ": line");
}

TEST_F(ReadTrace, FilesThatCannotBeRead) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 4});
  const std::string good = test::trace_of(run);
  const std::string zipped = write("whole.json.gz", good);
  EXPECT_NO_THROW(read_trace_run({zipped}));
  const std::string bytes = read_file(zipped);
  const auto error = [&](const std::string& name, const std::string& text) {
    write_file_whole(folder_.path(name), text);
    return error_of([&] { read_trace_run({folder_.path(name)}); });
  };
  EXPECT_EQ(error("cut.json.gz", bytes.substr(0, bytes.size() / 2)),
            folder_.path("cut.json.gz") + ": the gzip stream ends too early");
  std::string spoilt = bytes;
  spoilt[spoilt.size() - 5] = static_cast<char>(spoilt[spoilt.size() - 5] + 1);  // of the checksum
  EXPECT_THAT(error("spoilt.json.gz", spoilt), HasSubstr(folder_.path("spoilt.json.gz") + ": "));
  EXPECT_EQ(
      error("empty.json", ""),
      folder_.path("empty.json") +
          ": line 1, column 1: not JSON: syntax error while parsing value - unexpected end of input; expected '[', "
          "'{', or a literal");
  EXPECT_EQ(error("deep.json", std::string(101, '[')), folder_.path("deep.json") + ": nested deeper than 100");
  EXPECT_EQ(error("number.json", "{\"traceEvents\":[1e999]}"),
            folder_.path("number.json") + ": event 0: not JSON: a number is out of range");
  EXPECT_EQ(error_of([&] { read_trace_run({folder_.path()}); }), folder_.path() + ": is a folder");
  EXPECT_EQ(error_of([&] { read_trace_run({folder_.path("none.json")}); }),
            folder_.path("none.json") + ": cannot be read");
  EXPECT_EQ(error_of([&] {
              read_trace_run({zipped, zipped});
            }),
            zipped + ": a trace of ours holds all ranks: expected it alone, got 2 files");
}

TEST_F(ReadTrace, TracesOfTwoRunsAreRefused) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1});
  const RunRows rows = rows_of(run.graph, run.timeline);
  write_side_by_side_file(folder_.path("both.json.gz"), {TraceSide{"a", &rows}, TraceSide{"b", &rows}});
  EXPECT_EQ(error_of([&] { read_trace_run({folder_.path("both.json.gz")}); }),
            folder_.path("both.json.gz") + ": /sluice/sides: expected a trace of one run, got one of two");
}

// --- events
// -----------------------------------------------------------------------------------------------------------

TEST(TraceEvents, TimesAreExactToTheNanosecond) {
  std::vector<std::int64_t> starts;
  read_trace_text(R"({"traceEvents":[{"ts":1.0005},{"ts":1.0004},{"ts":-2.5},{"ts":1661938466265032},
                      {"ts":1661938466265032.123},{"ts":1e3},{"ts":7}]})",
                  "x", [&](TraceEvent& event, const TraceHead&) { starts.push_back(event.start->count()); });
  EXPECT_THAT(starts,
              ElementsAre(1001, 1000, -2500, 1'661'938'466'265'032'000, 1'661'938'466'265'032'123, 1'000'000, 7000));
}

TEST(TraceEvents, RankIsThatOfDistributedInfoOrTheFirstOne) {
  const auto rank = [](const std::string& text) { return read_trace_text(text, "x", [](auto&, auto&) {}).rank; };
  EXPECT_EQ(rank(R"({"a":{"rank":3},"distributedInfo":{"backend":"nccl","rank": 5},"traceEvents":[]})"), 5);
  EXPECT_EQ(rank(R"({"a":{"rank": 3},"traceEvents":[{"args":{"rank": 4}}]})"), 3);
  EXPECT_EQ(rank(R"({"rank":"0","traceEvents":[]})"), std::nullopt);
}

// --- PyTorch's ranges
// -------------------------------------------------------------------------------------------------

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

class Kineto : public ReadTrace {
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

// --- clocks
// -----------------------------------------------------------------------------------------------------------

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

// --- files
// ------------------------------------------------------------------------------------------------------------

TEST_F(ReadTrace, FilesOfAWord) {
  for (const char* name : {"rank10.json", "rank9.json", "rank2.json.gz", "notes.txt"}) write(name, "{}");
  EXPECT_THAT(trace_files(folder_.path()), ElementsAre(folder_.path() + "rank2.json.gz", folder_.path() + "rank9.json",
                                                       folder_.path() + "rank10.json"));
  const std::string a = folder_.path("rank9.json");
  const std::string b = folder_.path("rank10.json");
  EXPECT_THAT(trace_files(a), ElementsAre(a));
  EXPECT_THAT(trace_files(b + "," + a), ElementsAre(b, a));
  EXPECT_THAT(trace_files(folder_.path("none.json")), ElementsAre(folder_.path("none.json")));
  EXPECT_EQ(error_of([&] { trace_files(a + ",none.json"); }), a + ",none.json: there is no 'none.json'");
  std::filesystem::create_directory(folder_.path("empty"));
  EXPECT_EQ(error_of([&] { trace_files(folder_.path("empty")); }),
            folder_.path("empty") + ": expected files that end in .json or .json.gz, got none");
}

TEST_F(ReadTrace, TracesAreToldFromOtherFiles) {
  EXPECT_TRUE(is_trace_file(write("a.json", R"({"traceEvents":[{"ph":"X"}, and so on)")));  // no further than that
  EXPECT_TRUE(is_trace_file(write("b.json", R"({"traceEvents":[]})")));
  EXPECT_FALSE(is_trace_file(write("c.json", R"({"schema":"sluice.scenario/1"})")));
  EXPECT_FALSE(is_trace_file(write("d.json", R"({"a":{"traceEvents":[]}})")));
  EXPECT_THROW(is_trace_file(write("e.json", "nonsense")), InputError);
}

// --- anything
// ---------------------------------------------------------------------------------------------------------

// Bytes changed, left out, doubled or cut off: what comes is a run or an InputError.
TEST_F(ReadTrace, SpoiltFilesAreRefusedOrRead) {
  const SmallFootprint footprint;
  const LoweringOptions lowering{.footprint = &footprint, .data_parallel = 2, .recompute = true};
  const Simulated run = simulated("dualpipe-v", {.ranks = 2, .microbatches = 4}, "f=1,b=1,w=1,comm=0.25", lowering);
  const RunRows rows = rows_of(run.graph, run.timeline);
  const std::vector<std::string> good = {
      test::trace_of(run, {.idle = true}, memory_over_time(run.graph, run.timeline, true)),
      test::kineto_text(RunRows{.num_ranks = 1, .rows = rows.rows}, 0, {.iterations = 2}),
      test::kineto_text(RunRows{.num_ranks = 1, .rows = rows.rows}, 0, {.iterations = 2, .steps = false})};
  std::mt19937 random(1);
  int read_well = 0;
  int refused = 0;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int i = 0; i < (test::small_scope() ? 300 : 1500); ++i) {
    std::string text = good[static_cast<std::size_t>(i) % good.size()];
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const std::size_t at = below(text.size());
      const std::size_t length = std::min(below(40), text.size() - at);
      switch (below(5)) {
        case 0: text[at] = static_cast<char>(below(256)); break;
        case 1: text.erase(at, length); break;
        case 2: text.insert(at, text.substr(at, length)); break;
        case 3: text.replace(at, 1, "0123456789-{}[]\",:e."[below(20)] + std::string()); break;
        default: text = i % 7 == 0 ? text.substr(0, at) : text; break;
      }
    }
    try {
      const TraceRun found = read(text);
      EXPECT_FALSE(found.run.rows.empty());
      compare(found.run, found.run);
      ++read_well;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("t.json"));
      ++refused;
    }
  }
  EXPECT_GT(read_well, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace sluice
