#include "traces/chrome/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <set>

#include "model/errors.h"
#include "tests/support/golden.h"
#include "tests/support/simulated.h"
#include "tests/support/trace_check.h"
#include "tests/support/trace_text.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The trace without the first line, which contains the version.
std::string body(const std::string& trace) { return trace.substr(trace.find('\n') + 1); }

// The tracks that have slices, as "pid/tid".
std::set<std::string> tracks_in(const std::string& trace, const std::string& category) {
  std::set<std::string> tracks;
  for (const json& slice : events_of(trace, "X")) {
    if (slice.at("cat") == category) tracks.insert(slice.at("pid").dump() + "/" + slice.at("tid").dump());
  }
  return tracks;
}

std::string track_name(const std::string& trace, int pid, int tid) {
  for (const json& event : events_of(trace, "M")) {
    if (event.at("pid") == pid && event.value("tid", 0) == tid && event.at("name") == "thread_name") {
      return event.at("args").at("name");
    }
  }
  return "";
}

// Rank 0: F0 0..1 s, sent with a latency of 0.25 s; rank 1: F0 1.25..2.25, B0 2.25..4.25; rank 0: B0 4.5..6.5; then the
// optimizer steps, which take no time.
TEST(ChromeTrace, TwoRanksAndOneMicrobatch) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=0.25");
  EXPECT_EQ(body(trace_of(run)), R"json("traceEvents":[
{"ph":"M","pid":1,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"M","pid":1,"name":"process_sort_index","args":{"sort_index":0}},
{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":1,"tid":1,"name":"thread_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"send next"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},
{"ph":"M","pid":1,"tid":5,"name":"thread_name","args":{"name":"recv next"}},
{"ph":"M","pid":1,"tid":5,"name":"thread_sort_index","args":{"sort_index":5}},
{"ph":"M","pid":1,"tid":7,"name":"thread_name","args":{"name":"optimizer"}},
{"ph":"M","pid":1,"tid":7,"name":"thread_sort_index","args":{"sort_index":7}},
{"ph":"M","pid":2,"name":"process_name","args":{"name":"rank 1"}},
{"ph":"M","pid":2,"name":"process_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":2,"tid":1,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":2,"tid":1,"name":"thread_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":2,"tid":3,"name":"thread_name","args":{"name":"send previous"}},
{"ph":"M","pid":2,"tid":3,"name":"thread_sort_index","args":{"sort_index":3}},
{"ph":"M","pid":2,"tid":4,"name":"thread_name","args":{"name":"recv previous"}},
{"ph":"M","pid":2,"tid":4,"name":"thread_sort_index","args":{"sort_index":4}},
{"ph":"M","pid":2,"tid":7,"name":"thread_name","args":{"name":"optimizer"}},
{"ph":"M","pid":2,"tid":7,"name":"thread_sort_index","args":{"sort_index":7}},
{"ph":"X","pid":1,"tid":1,"ts":0.000,"dur":1000000.000,"cat":"compute","name":"F0","args":{"stage":0,"chunk":0,"microbatch":0,"slice":0}},
{"ph":"X","pid":1,"tid":2,"ts":1000000.000,"dur":0.001,"cat":"p2p","name":"send F0","args":{"stage":0,"chunk":0,"microbatch":0,"slice":0,"bytes":0,"waited_for":"F(stage 0, mb 0)"}},
{"ph":"s","id":1,"pid":1,"tid":2,"ts":1000000.000,"cat":"p2p","name":"F0"},
{"ph":"X","pid":2,"tid":4,"ts":1250000.000,"dur":0.001,"cat":"p2p","name":"recv F0","args":{"stage":0,"chunk":0,"microbatch":0,"slice":0,"bytes":0,"waited_for":"F(stage 0, mb 0)"}},
{"ph":"f","bp":"e","id":1,"pid":2,"tid":4,"ts":1250000.000,"cat":"p2p","name":"F0"},
{"ph":"X","pid":2,"tid":1,"ts":1250000.000,"dur":1000000.000,"cat":"compute","name":"F0","args":{"stage":1,"chunk":0,"microbatch":0,"slice":0,"waited_for":"send F(stage 0, mb 0) 0->1"}},
{"ph":"X","pid":2,"tid":1,"ts":2250000.000,"dur":2000000.000,"cat":"compute","name":"B0","args":{"stage":1,"chunk":0,"microbatch":0,"slice":0,"waited_for":"F(stage 1, mb 0)"}},
{"ph":"X","pid":2,"tid":3,"ts":4250000.000,"dur":0.001,"cat":"p2p","name":"send B0","args":{"stage":1,"chunk":0,"microbatch":0,"slice":0,"bytes":0,"waited_for":"B(stage 1, mb 0)"}},
{"ph":"s","id":2,"pid":2,"tid":3,"ts":4250000.000,"cat":"p2p","name":"B0"},
{"ph":"X","pid":1,"tid":5,"ts":4500000.000,"dur":0.001,"cat":"p2p","name":"recv B0","args":{"stage":1,"chunk":0,"microbatch":0,"slice":0,"bytes":0,"waited_for":"B(stage 1, mb 0)"}},
{"ph":"f","bp":"e","id":2,"pid":1,"tid":5,"ts":4500000.000,"cat":"p2p","name":"B0"},
{"ph":"X","pid":1,"tid":1,"ts":4500000.000,"dur":2000000.000,"cat":"compute","name":"B0","args":{"stage":0,"chunk":0,"microbatch":0,"slice":0,"waited_for":"send B(stage 1, mb 0) 1->0"}},
{"ph":"X","pid":1,"tid":7,"ts":6500000.000,"dur":0.000,"cat":"opt","name":"optimizer 0","args":{"stage":0,"chunk":0,"step":0,"waited_for":"B(stage 0, mb 0)"}},
{"ph":"X","pid":2,"tid":7,"ts":4250000.000,"dur":0.000,"cat":"opt","name":"optimizer 0","args":{"stage":1,"chunk":0,"step":0,"waited_for":"B(stage 1, mb 0)"}}
]}
)json");
}

// Checks the golden file and the times that follow from the schedule. With f = 1 and x = 2 the last
// rank runs F(i) at 3+3i and B(i) at 4+3i; stage 0 runs B(i) at 4+3i + 2 for its own stage and each of 2 between.
TEST(ChromeTrace, GoldenOneFOneB) {
  const Simulated run = simulated("1f1b", {.ranks = 4, .microbatches = 8});
  const std::string trace = trace_of(run);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  for (int i = 0; i < 8; ++i) {
    const std::string mb = std::to_string(i);
    EXPECT_EQ(slice_of(trace, 4, "F" + mb).at("ts"), (3 + 3 * i) * 1e6);
    EXPECT_EQ(slice_of(trace, 4, "B" + mb).at("ts"), (4 + 3 * i) * 1e6);
    EXPECT_EQ(slice_of(trace, 1, "B" + mb).at("ts"), (10 + 3 * i) * 1e6);
    EXPECT_EQ(slice_of(trace, 1, "B" + mb).at("dur"), 2e6);
  }
  test::expect_golden("traces/chrome/golden/1f1b-p4-m8.json", body(trace));
}

TEST(ChromeTrace, WithTwoRanksDirectionSelectsNextOrPrevious) {
  // Linear: activations go from rank 0 to its next, gradients from rank 1 to its previous.
  const std::string linear = trace_of(simulated("1f1b", {.ranks = 2, .microbatches = 2}));
  EXPECT_EQ(tracks_in(linear, "p2p"), (std::set<std::string>{"1/2", "2/4", "2/3", "1/5"}));
  // V: rank 1 sends no activation to rank 0 (stages 1 and 2 both live there), but rank 0 sends gradients of stage 3.
  const std::string folded = trace_of(simulated("dualpipe-v", {.ranks = 2, .microbatches = 4}));
  EXPECT_THAT(test::check_trace(folded), IsEmpty());
  EXPECT_EQ(tracks_in(folded, "p2p"), (std::set<std::string>{"1/2", "2/4", "2/2", "1/4", "2/3", "1/5", "1/3", "2/5"}));
}

TEST(ChromeTrace, OtherPeersHaveTracksFromEight) {
  // Stages on ranks 0, 2, 1, 4, 3, 5 of 6. To rank 0, 1 and 5 are neighbors and 2 is far; rank 1 sends to 4 and
  // receives from 2, its next; rank 4 exchanges with 1, far, and 3, its previous; rank 3 with 4 and 5, far.
  ScheduleParts parts;
  parts.family = "custom";
  parts.num_ranks = 6;
  parts.num_stages = 6;
  parts.routes = {{0, 2, 1, 4, 3, 5}};
  parts.orders.resize(6);
  for (int stage = 0; stage < 6; ++stage) {
    for (const OpKind kind : {OpKind::F, OpKind::B}) {
      parts.orders[parts.routes[0][stage]].push_back({.stage = static_cast<std::int16_t>(stage), .kind = kind});
    }
  }
  TraceOptions options;
  options.world_ranks = {10, 11, 12, 13, 14, 15};
  const std::string trace = trace_of(simulated(Schedule(parts)), options);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  EXPECT_EQ(track_name(trace, 11, 8), "send to rank 12");
  EXPECT_EQ(track_name(trace, 11, 9), "recv from rank 12");
  EXPECT_EQ(track_name(trace, 12, 8), "send to rank 14");
  EXPECT_EQ(track_name(trace, 12, 5), "recv next");
  EXPECT_EQ(track_name(trace, 14, 2), "send next");
  EXPECT_EQ(track_name(trace, 14, 9), "recv from rank 15");
  EXPECT_EQ(slice_of(trace, 11, "send F0").at("tid"), 8);
  EXPECT_EQ(slice_of(trace, 11, "recv B0").at("tid"), 9);
}

// A joint block of dualpipe-v ends with an activation and a gradient for the same rank, on one lane, at the same time.
TEST(ChromeTrace, SimultaneousTransfersAreDrawnOneAfterAnother) {
  const Simulated run = simulated("dualpipe-v", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1,comm=0.5");
  const std::string trace = trace_of(run);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  int moved = 0;
  for (const json& slice : events_of(trace, "X")) {
    if (slice.at("cat") != "p2p") continue;
    EXPECT_EQ(slice.at("dur"), 0.001);
    // All times are whole or half seconds.
    const double rest = std::fmod(slice.at("ts").get<double>(), 5e5);
    if (rest == 0) continue;
    ++moved;
    EXPECT_NEAR(rest, 0.001, 1e-6) << slice;
  }
  EXPECT_GT(moved, 0);
  EXPECT_EQ(moved % 2, 0) << "both ends of a transfer move";
}

TEST(ChromeTrace, TransferSlicesAreLaneTimeAndFlowsAreLatency) {
  Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1});
  // A send of 1500 ns that starts at 10 s, with a latency of 7 ns.
  for (VertexId v = 0; v < run.graph.size(); ++v) {
    if (run.graph[v].kind != VertexKind::transfer || run.graph[v].op != OpKind::F) continue;
    run.timeline.start[v] = Duration{10'000'000'000};
    run.timeline.end[v] = Duration{10'000'001'500};
    run.timeline.lane_latency[run.graph[v].lane] = Duration{7};
  }
  const std::string trace = trace_of(run);
  EXPECT_THAT(trace, HasSubstr(R"("tid":2,"ts":10000000.000,"dur":1.500,"cat":"p2p","name":"send F0")"));
  EXPECT_THAT(trace, HasSubstr(R"("tid":4,"ts":10000000.007,"dur":1.500,"cat":"p2p","name":"recv F0")"));
  EXPECT_THAT(trace, HasSubstr(R"({"ph":"f","bp":"e","id":1,"pid":2,"tid":4,"ts":10000000.007,)"));
}

TEST(ChromeTrace, TimesAreExactBeyondDoublePrecision) {
  Simulated run = simulated("1f1b", {.ranks = 1, .microbatches = 1});
  run.timeline.start[1] = Duration{90'000'000'000'000'001};  // three years; a double holds even numbers only
  run.timeline.end[1] = Duration{90'000'000'000'000'010};
  EXPECT_THAT(trace_of(run), HasSubstr(R"("ts":90000000000000.001,"dur":0.009)"));
}

TEST(ChromeTrace, JointBlocksNameBothOps) {
  const Simulated run = simulated("dualpipe-v", {.ranks = 2, .microbatches = 8});
  const std::string trace = trace_of(run);
  json slice;  // of chunk 0: there is another F3+B1 of chunk 1
  for (const json& event : events_of(trace, "X")) {
    if (event.at("name") == "F3+B1" && event.at("pid") == 1 && slice.is_null()) slice = event;
  }
  EXPECT_EQ(slice.at("cat"), "compute");
  EXPECT_EQ(slice.at("args").at("stage"), 0);
  EXPECT_EQ(slice.at("args").at("chunk"), 0);
  EXPECT_EQ(slice.at("args").at("microbatch"), 3);
  EXPECT_EQ(slice.at("args").at("with"), (json{{"stage", 3}, {"chunk", 1}, {"microbatch", 1}, {"slice", 0}}));
}

TEST(ChromeTrace, BytesCollectivesAndRecomputation) {
  const SmallFootprint footprint;
  const LoweringOptions options{.footprint = &footprint,
                                .data_parallel = 2,
                                .gather_parameters = true,
                                .tied_embedding = true,
                                .global_norm = true,
                                .recompute = true};
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1", options);
  const std::string trace = trace_of(run);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  EXPECT_EQ(slice_of(trace, 1, "F0").at("args").at("bytes"), 33);  // 10 + 20 + 3
  EXPECT_FALSE(slice_of(trace, 1, "B0").at("args").contains("bytes"));
  EXPECT_EQ(slice_of(trace, 1, "send F0").at("args").at("bytes"), 7);
  EXPECT_EQ(slice_of(trace, 1, "recv B0").at("args").at("bytes"), 8);
  EXPECT_EQ(slice_of(trace, 2, "R0").at("cat"), "compute");
  EXPECT_EQ(slice_of(trace, 2, "gradient reduce 0").at("args").at("bytes"), 401);
  EXPECT_EQ(slice_of(trace, 2, "parameter gather 0").at("args").at("bytes"), 500);
  // Collectives of both ranks are on both.
  for (const int pid : {1, 2}) {
    EXPECT_EQ(slice_of(trace, pid, "global norm 0").at("tid"), kCollectiveTrack);
    EXPECT_EQ(slice_of(trace, pid, "tied embedding 0").at("args").at("stage"), 0);
    EXPECT_EQ(slice_of(trace, pid, "optimizer 0").at("tid"), kOptimizerTrack);
  }
}

TEST(ChromeTrace, MemoryIsWrittenOnlyOnChange) {
  const Simulated run = simulated("1f1b", {.ranks = 1, .microbatches = 1});
  RankMemory memory;
  const auto sample = [](std::int64_t ns, std::int64_t weights, std::int64_t activations) {
    return MemorySample{Duration{ns}, {weights, 0, 0, activations, 0, 0}};
  };
  memory.samples = {sample(0, 5, 0), sample(1'000, 5, 7), sample(2'500, 5, 7), sample(3'001, 5, 0)};
  const std::string trace = trace_of(run, {}, {memory});
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  const auto first = trace.find(R"({"ph":"C")");
  EXPECT_EQ(trace.substr(first),
            R"json({"ph":"C","pid":1,"ts":0.000,"name":"memory","args":{"weights":5,"activations":0}},
{"ph":"C","pid":1,"ts":1.000,"name":"memory","args":{"weights":5,"activations":7}},
{"ph":"C","pid":1,"ts":3.001,"name":"memory","args":{"weights":5,"activations":0}}
]}
)json");
}

TEST(ChromeTrace, RanksCanBeFiltered) {
  const Simulated run = simulated("1f1b", {.ranks = 4, .microbatches = 3});
  TraceOptions options;
  options.ranks = {1, 2};
  options.world_ranks = {0, 8, 16, 24};
  options.scenario = R"({"name":"a \"b\""})";
  const std::string trace = trace_of(run, options);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  const json sluice = json::parse(trace).at("sluice");
  EXPECT_EQ(sluice.at("world_ranks"), (json{8, 16}));
  EXPECT_EQ(sluice.at("scenario").at("name"), "a \"b\"");
  std::set<int> pids;
  for (const json& event : events_of(trace, "X")) pids.insert(event.at("pid").get<int>());
  EXPECT_EQ(pids, (std::set<int>{9, 17}));
  // Three activations and three gradients between the two remaining ranks.
  EXPECT_EQ(events_of(trace, "s").size(), 6u);
  EXPECT_EQ(events_of(trace, "f").size(), 6u);
  // Rank 1 also receives three activations from rank 0, which is omitted.
  EXPECT_FALSE(slice_of(trace, 9, "recv F0").is_null());
}

TEST(ChromeTrace, InvalidRanksAreRejected) {
  const Simulated run = simulated("1f1b", {.ranks = 4, .microbatches = 3});
  EXPECT_THROW(trace_of(run, {.ranks = {4}}), InputError);
  EXPECT_THROW(trace_of(run, {.ranks = {-1}}), InputError);
  EXPECT_THROW(trace_of(run, {.world_ranks = {1, 2}}), InputError);
}

TEST(ChromeTrace, LargeTracesCauseAWarning) {
  EXPECT_EQ(trace_size_warning(1'000'000), "");
  EXPECT_THAT(trace_size_warning(2'000'000), HasSubstr("2000000 events, about 310 MB"));
}

std::string unzipped(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  std::string text;
  char buffer[4096];
  for (int n = 0; (n = gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  return text;
}

TEST(ChromeTrace, FilesAreGzippedByExtension) {
  const Simulated run = simulated("1f1b", {.ranks = 4, .microbatches = 300});  // more than one buffer
  const std::string expected = trace_of(run);
  ASSERT_GT(expected.size(), std::size_t{1} << 20);
  const std::string plain = testing::TempDir() + "/sluice_trace_test.json";
  const std::string zipped = plain + ".gz";
  const std::int64_t events = write_trace_file(plain, run.graph, run.timeline, {});
  EXPECT_EQ(write_trace_file(zipped, run.graph, run.timeline, {}), events);
  EXPECT_EQ(count_trace_events(run.graph, run.timeline, {}), events);
  EXPECT_EQ(read_file(plain), expected);
  EXPECT_NE(read_file(zipped).substr(0, 2), expected.substr(0, 2));
  EXPECT_EQ(unzipped(zipped), expected);
  std::filesystem::remove(plain);
  std::filesystem::remove(zipped);
}

TEST(ChromeTrace, FailureKeepsTheExistingFile) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1});
  const std::string folder = testing::TempDir() + "/sluice_trace_failure";
  std::filesystem::create_directory(folder);
  write_file_whole(folder + "/t.json", "before");
  EXPECT_THROW(write_trace_file(folder + "/t.json", run.graph, run.timeline, {}, {.ranks = {7}}), InputError);
  EXPECT_EQ(read_file(folder + "/t.json"), "before");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "a temporary file remains";
  EXPECT_THROW(write_trace_file(folder, run.graph, run.timeline, {}), InputError);
  std::filesystem::remove_all(folder);
}

// Every family over small shapes, with and without latency, bytes, collectives and idle times.
TEST(ChromeTrace, TracesOfEveryFamilyAreValid) {
  const SmallFootprint footprint;
  const int max_ranks = 4;
  const int max_microbatches = test::small_scope() ? 4 : 8;
  for (const Family& family : all_families()) {
    int traces = 0;
    int shapes = 0;
    for (int ranks = 1; ranks <= max_ranks; ++ranks) {
      for (int microbatches = 1; microbatches <= max_microbatches; ++microbatches) {
        for (const int slices : {1, 2}) {
          for (const int chunks : {1, 2}) {
            if ((slices > 1 && !family.sliced) || (chunks > 1 && family.fixed_chunks != 0)) continue;
            FamilyParams params{
                .ranks = ranks, .chunks = family.fixed_chunks == 0 ? chunks : 0, .microbatches = microbatches};
            params.shape.slice_lengths.assign(slices, 1);
            LoweringOptions options;
            if (microbatches % 2 == 0) {
              options = {.footprint = &footprint, .data_parallel = 2, .recompute = true};
              options.global_norm = options.tied_embedding = !family.asynchronous;
            }
            SCOPED_TRACE(std::string(family.name) + " p=" + std::to_string(ranks) +
                         " m=" + std::to_string(microbatches) + " k=" + std::to_string(slices) +
                         " v=" + std::to_string(chunks));
            std::optional<Schedule> schedule;
            try {
              schedule.emplace(make_schedule(family, params));
            } catch (const InputError&) {
              continue;  // a shape that the family does not support
            }
            if (test::small_scope() && shapes++ % 5 != 0) continue;
            const Simulated run =
                simulated(std::move(*schedule), ranks % 2 == 0 ? "f=1,b=1,w=1" : "f=1,b=1.5,w=0.7,comm=0.3", options);
            const std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, true);
            const TraceOptions whole{.idle = microbatches % 3 != 0};
            const std::string trace = trace_of(run, whole, memory);
            EXPECT_THAT(test::check_trace(trace), IsEmpty());
            EXPECT_EQ(count_trace_events(run.graph, run.timeline, memory, whole),
                      std::ssize(json::parse(trace).at("traceEvents")));
            TraceOptions filter = whole;
            filter.ranks = {ranks - 1};
            const std::string filtered = trace_of(run, filter, memory);
            EXPECT_THAT(test::check_trace(filtered), IsEmpty());
            EXPECT_EQ(count_trace_events(run.graph, run.timeline, memory, filter),
                      std::ssize(json::parse(filtered).at("traceEvents")));
            ++traces;
          }
        }
      }
    }
    EXPECT_GT(traces, 0) << family.name;
  }
}

}  // namespace
}  // namespace sluice::test
