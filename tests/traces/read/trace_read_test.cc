#include "traces/read/trace_read.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <random>
#include <thread>

#include "model/errors.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"
#include "tests/support/kineto_files.h"
#include "tests/support/run_facts.h"
#include "tests/support/simulated.h"
#include "tests/support/trace_check.h"
#include "tests/support/trace_text.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/chrome/gzip.h"
#include "traces/chrome/side_by_side.h"
#include "traces/chrome/trace_events.h"
#include "traces/compare/comparison.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- Sluice traces ------------------------------------------------------------------------------------------------

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

// Every family over small shapes, with and without latency, bytes, collectives and idle times: the rows read are the
// rows written, the comparison finds no difference, including memory counters and idle time, and the trace of both is
// valid.
TEST_F(ReadTrace, TracesOfEveryFamilyRoundTrip) {
  const SmallFootprint footprint;
  for (const Family& family : all_families()) {
    int runs = 0;
    int same_peaks = 0;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int microbatches = 2; microbatches <= (test::small_scope() ? 4 : 8); microbatches += 2) {
        const int chunks = family.name == "hanayo" ? 2 : 1;  // its minimum
        FamilyParams params{
            .ranks = ranks, .chunks = family.fixed_chunks == 0 ? chunks : 0, .microbatches = microbatches};
        if (family.sliced) params.shape.slice_lengths = {1, 1};
        std::optional<Schedule> schedule;
        try {
          schedule.emplace(make_schedule(family, params));
        } catch (const InputError&) {
          continue;  // a shape that the family does not support
        }
        SCOPED_TRACE(std::string(family.name) + " p=" + std::to_string(ranks) + " m=" + std::to_string(microbatches));
        LoweringOptions options{.footprint = &footprint, .data_parallel = 2, .recompute = true};
        options.global_norm = options.tied_embedding = !family.asynchronous;
        const Simulated run =
            simulated(std::move(*schedule), ranks % 2 == 0 ? "f=1,b=1,w=1" : "f=1,b=1.5,w=0.7,comm=0.3", options);
        const std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, true);
        const RunRows written = rows_of(run.graph, run.timeline, memory);
        const std::string file = folder_.path(microbatches % 4 == 0 ? "t.json" : "t.json.gz");
        write_trace_file(file, run.graph, run.timeline, memory, {.idle = microbatches % 4 == 0});
        const TraceRun read = read_trace_run({file});
        EXPECT_THAT(read.notes, ElementsAre(std::to_string(ranks) + " ranks"));
        EXPECT_EQ(facts_of(read.run), facts_of(written));
        EXPECT_EQ(first_difference(written, read.run), "");
        const Comparison found = compare(written, read.run, {.falls_behind_at = 0});
        EXPECT_EQ(found.makespan_difference(), 0.0);
        EXPECT_EQ(found.pairs, std::ssize(written.rows));
        EXPECT_THAT(found.differing, IsEmpty());
        EXPECT_FALSE(found.falls_behind);
        std::string both;
        write_side_by_side([&](std::string_view bytes) { both += bytes; },
                           {TraceSide{"a", &written}, TraceSide{"b", &read.run}});
        EXPECT_THAT(check_trace(both), IsEmpty());
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
          // Counters exclude instantaneous allocations: buffers of transfers that take no time.
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
        // Causes that are not in the trace are derived from its ops, except for schedules without a flush, and with
        // vocabulary passes.
        const bool known = !(family.asynchronous || family.vocabulary_barriers > 0) || !read.run.idle.empty();
        EXPECT_EQ(known ? read.run.idle : written.idle, written.idle);
        ++runs;
      }
    }
    EXPECT_GT(runs, 0) << family.name;
    EXPECT_GE(same_peaks, runs) << family.name;
  }
}

TEST_F(ReadTrace, MissingInformationIsUnknown) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2});
  const std::string trace = test::trace_of(run);
  EXPECT_THAT(read(trace).run.memory, IsEmpty());
  // Counters of a run without bytes are all 0.
  EXPECT_THAT(read(test::trace_of(run, {}, memory_over_time(run.graph, run.timeline, true))).run.memory, IsEmpty());
  // Causes of idle time are known unless an op is missing.
  EXPECT_EQ(read(trace).run.idle, idle_by_cause(run.graph, run.timeline));
  const std::size_t last = trace.find("{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":7000000.000");  // B1 of rank 0
  ASSERT_NE(last, std::string::npos);
  std::string cut = trace;
  cut.erase(last, trace.find('\n', last) + 1 - last);
  EXPECT_THAT(read(cut).run.idle, IsEmpty());
}

// Pipeline ranks are the processes in file order.
TEST_F(ReadTrace, WorldRanksAndOmittedRanks) {
  const Simulated run = simulated("1f1b", {.ranks = 4, .microbatches = 3});
  const RunRows all = rows_of(run.graph, run.timeline);
  TraceOptions options{.world_ranks = {0, 8, 16, 24}};
  EXPECT_EQ(facts_of(read(test::trace_of(run, options)).run), facts_of(all));
  options.ranks = {1, 2};
  const TraceRun some = read(test::trace_of(run, options));
  // Six activations and six gradients between ranks 1 and 2 and ranks 0 and 3 have only one end.
  EXPECT_THAT(some.notes,
              ElementsAre("2 ranks", "the trace omits some ranks", "12 transfers with only one end ignored"));
  EXPECT_EQ(first_difference(all, some.run), "first has F(stage 0, mb 0) on rank 0, second does not");
}

// A trace with three iterations: each slice is repeated 100 s and 200 s later; the third iteration lacks the last op.
TEST_F(ReadTrace, ReadsOneOfSeveralIterations) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2}, "f=1,b=1,w=1,comm=0.25");
  json trace = json::parse(test::trace_of(run));
  json events = json::array();
  for (const json& event : trace.at("traceEvents")) {
    for (int i = 0; i < (event.at("ph") == "M" ? 1 : 3); ++i) {
      json again = event;
      if (event.at("ph") != "M") again["ts"] = event.at("ts").get<double>() + 1e8 * i;
      // F0 is faster in each iteration.
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
  EXPECT_EQ(error_from([&] { read(trace.dump(), {.step = 2}); }),
            folder_.path("t.json") + ": --step: expected 0 to 1, got 2");
  // With one iteration the option is ignored.
  EXPECT_EQ(facts_of(read(test::trace_of(run), {.step = 7}).run), facts_of(written));
}

struct Broken {
  const char* from;
  const char* to;
  const char* error;  // after "FILE: "; EVENT is "event N" of the change, END the end of the file
};

TEST_F(ReadTrace, PartsRoundTrip) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2});
  TraceOptions options;
  for (VertexId v = 0; v < run.graph.size(); ++v) {
    if (run.graph[v].kind != VertexKind::compute) continue;
    const Duration half = (run.timeline.end[v] - run.timeline.start[v]) / 2;
    const PartRow attention{.vertex = v,
                            .rank = run.graph.rank_of(v),
                            .part = {LayerPart::attention, run.graph[v].op},
                            .start = run.timeline.start[v],
                            .end = run.timeline.start[v] + half};
    PartRow dispatch = attention;
    dispatch.part.part = LayerPart::dispatch;
    dispatch.end = run.timeline.end[v];
    options.parts.push_back(attention);
    options.parts.push_back(dispatch);
  }
  std::string text;
  write_chrome_trace([&](std::string_view bytes) { text += bytes; }, run.graph, run.timeline, {}, options);
  const RunRows rows = read(text).run;
  const auto facts = [](const std::vector<PartRow>& parts) {
    std::vector<std::tuple<int, std::string, Duration, Duration>> out;
    for (const PartRow& part : parts) out.emplace_back(part.rank, to_string(part.part), part.start, part.end);
    std::sort(out.begin(), out.end());
    return out;
  };
  EXPECT_EQ(facts(rows.parts), facts(options.parts));
  EXPECT_DOUBLE_EQ(hidden_of_run(rows.parts, 2).fraction(), 0.5);
  const Comparison same = compare(rows, rows);
  ASSERT_EQ(same.parts.size(), 4U);  // of F and of B
  EXPECT_EQ(to_string(same.parts[1].part), "dispatch(F)");
  EXPECT_EQ(same.parts[1].count.second, 4);
  EXPECT_EQ(same.parts[1].total.first, std::chrono::seconds(4));
  EXPECT_EQ(same.hidden.first, 0.5);
  // A run without parts has none to compare, and no hidden fraction.
  RunRows without = rows;
  without.parts.clear();
  const Comparison one = compare(rows, without);
  EXPECT_THAT(one.parts, IsEmpty());
  EXPECT_EQ(one.hidden.first, 0.5);
  EXPECT_EQ(one.hidden.second, std::nullopt);
  const std::size_t at = text.find("dispatch(F)");
  ASSERT_NE(at, std::string::npos);
  EXPECT_THAT(error_from([&] { read(text.replace(at, 8, "dispatsh")); }),
              HasSubstr("expected a part such as dispatch(F), got 'dispatsh(F)'"));
}

TEST_F(ReadTrace, ErrorsNameEventAndCause) {
  const SmallFootprint footprint;
  const LoweringOptions lowering{.footprint = &footprint, .data_parallel = 2, .recompute = true};
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=0.25", lowering);
  const std::string good = test::trace_of(run, {.idle = true}, memory_over_time(run.graph, run.timeline, true));
  EXPECT_NO_THROW(read(good));
  const Broken all[] = {
      {"sluice.trace/1", "sluice.trace/2", "/sluice/schema: expected sluice.trace/1, got 'sluice.trace/2'"},
      {"\"scenario\":null", "\"sides\":[]", "/sluice/sides: expected a trace of one run, got one of two"},
      {"traceEvents", "events", "expected a trace: an object with an array traceEvents, or an array"},
      {"\"args\":{\"stage\":0", "\"args\":{\"stage\":-1",
       "EVENT: F0: args: stage: expected an integer from 0 to 32766, got none"},
      {"\"args\":{\"stage\":0", "\"args\":{\"stage\":40000",
       "EVENT: F0: args: stage: expected an integer from 0 to 32766, got 40000"},
      {"\"name\":\"F0\",\"args\"", "\"name\":\"G0\",\"args\"",
       "EVENT: expected a name such as F3, R3 or F3+B1, got 'G0'"},
      {"\"name\":\"F0\",\"args\"", "\"name\":\"F0+B0\",\"args\"",
       "EVENT: F0+B0: args: stage: expected an integer from 0 to 32766, got none"},
      {"\"name\":\"send F0\"", "\"name\":\"sent F0\"",
       "EVENT: expected a name such as send F3 or recv B3, got 'sent F0'"},
      {"\"cat\":\"compute\"", "\"cat\":\"computation\"",
       "EVENT: expected a cat of compute, p2p, coll, opt, host, part or idle, got 'computation'"},
      {"\"name\":\"gradient reduce 0\"", "\"name\":\"gradient reduced 0\"",
       "EVENT: unknown collective 'gradient reduced'; did you mean 'gradient reduce'?"},
      {"\"cause\":\"warm_up\"", "\"cause\":\"cable\"", "EVENT: unknown cause 'cable'"},
      {"\"weights\":1000", "\"weight\":1000", "EVENT: memory: unknown class 'weight'; did you mean 'weights'?"},
      {"\"weights\":1000", "\"weights\":-1", "EVENT: memory: weights: expected 0 to 2^60 bytes, got -1"},
      {"\"ts\":0.000,\"dur\":1000000.000", "\"ts\":0.000,\"dur\":-1.000", "EVENT: F0: dur: expected 0 or more"},
      {"\"ts\":0.000,\"dur\":1000000.000", "\"ts\":0.000,\"length\":1.000", "EVENT: F0: expected ts and dur"},
      {"\"ts\":0.000,\"dur\":1000000.000", "\"ts\":5e15,\"dur\":1.000",
       "EVENT: ts: expected microseconds between -1e+14 and 4e+15"},
      {"\"pid\":1,\"tid\":1,\"ts\"", "\"pid\":9,\"tid\":1,\"ts\"",
       "EVENT: expected a pid with an earlier process_name event, got 9"},
      {"\"pid\":2,\"name\":\"process_name\"", "\"pid\":1,\"name\":\"process_name\"",
       "EVENT: second process_name for pid 1"},
      {"\"step\":0", "\"stop\":0", "EVENT: gradient reduce 0: args: step: expected an integer from 0 to 60000000"},
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
    // Each event is on its own line, after two other lines.
    const auto lines = [&](std::size_t end) {
      return std::count(bad.begin(), bad.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    };
    std::string expected = broken.error;
    if (expected.starts_with("EVENT")) expected.replace(0, 5, "event " + std::to_string(lines(at) - 2));
    if (expected.starts_with("END"))
      expected.replace(0, 3, "line " + std::to_string(lines(bad.size()) + 1) + ", column 1");
    EXPECT_EQ(error_from([&] { read(bad); }), folder_.path("t.json") + ": " + expected);
  }
  EXPECT_EQ(error_from([&] { read(good.substr(0, good.size() / 2)); }).substr(0, folder_.path("t.json").size() + 6),
            folder_.path("t.json") + ": line");
}

TEST_F(ReadTrace, UnreadableFilesAreRejected) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 4});
  const std::string good = test::trace_of(run);
  const std::string zipped = write("whole.json.gz", good);
  EXPECT_NO_THROW(read_trace_run({zipped}));
  const std::string bytes = read_file(zipped);
  const auto error = [&](const std::string& name, const std::string& text) {
    write_file_whole(folder_.path(name), text);
    return error_from([&] { read_trace_run({folder_.path(name)}); });
  };
  EXPECT_EQ(error("cut.json.gz", bytes.substr(0, bytes.size() / 2)),
            folder_.path("cut.json.gz") + ": the gzip stream is truncated");
  std::string corrupt = bytes;
  corrupt[corrupt.size() - 5] = static_cast<char>(corrupt[corrupt.size() - 5] + 1);  // of the checksum
  EXPECT_THAT(error("corrupt.json.gz", corrupt), HasSubstr(folder_.path("corrupt.json.gz") + ": "));
  EXPECT_EQ(
      error("empty.json", ""),
      folder_.path("empty.json") +
          ": line 1, column 1: not JSON: syntax error while parsing value - unexpected end of input; expected '[', "
          "'{', or a literal");
  EXPECT_EQ(error("deep.json", std::string(101, '[')), folder_.path("deep.json") + ": nested deeper than 100");
  EXPECT_EQ(error("number.json", "{\"traceEvents\":[1e999]}"),
            folder_.path("number.json") + ": event 0: not JSON: a number is out of range");
  EXPECT_EQ(error_from([&] { read_trace_run({folder_.path()}); }), folder_.path() + ": is a folder, expected a file");
  EXPECT_EQ(error_from([&] { read_trace_run({folder_.path("none.json")}); }),
            folder_.path("none.json") + ": cannot open: No such file or directory");
  EXPECT_EQ(error_from([&] {
              read_trace_run({zipped, zipped});
            }),
            zipped + ": a Sluice trace contains all ranks: expected one file, got 2");
}

TEST_F(ReadTrace, TracesOfTwoRunsAreRejected) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 1});
  const RunRows rows = rows_of(run.graph, run.timeline);
  write_side_by_side_file(folder_.path("both.json.gz"), {TraceSide{"a", &rows}, TraceSide{"b", &rows}});
  EXPECT_EQ(error_from([&] { read_trace_run({folder_.path("both.json.gz")}); }),
            folder_.path("both.json.gz") + ": /sluice/sides: expected a trace of one run, got one of two");
}

// --- events ------------------------------------------------------------------------------------------------------

TEST(TraceEvents, TimesAreExactToTheNanosecond) {
  std::vector<std::int64_t> starts;
  read_trace_text(R"({"traceEvents":[{"ts":1.0005},{"ts":1.0004},{"ts":-2.5},{"ts":1661938466265032},
                      {"ts":1661938466265032.123},{"ts":1e3},{"ts":7}]})",
                  "x", [&](TraceEvent& event, const TraceHead&) { starts.push_back(event.start->count()); });
  EXPECT_THAT(starts,
              ElementsAre(1001, 1000, -2500, 1'661'938'466'265'032'000, 1'661'938'466'265'032'123, 1'000'000, 7000));
}

// Returns the error of reading a text, or "no error", and the events, with what JSON says about each.
std::string events_and_error(const std::string& text, json& events) {
  events = json::array();
  return error_from([&] {
    read_trace_text(text, "x", [&](TraceEvent& event, const TraceHead&) {
      json values = json::object();
      for (const auto& [name, value] : event.values) values[name] = value;
      events.push_back({{"ph", event.phase},
                        {"name", event.name},
                        {"cat", event.category},
                        {"pid", event.pid},
                        {"ns", event.start ? event.start->count() : -1},
                        {"values", values}});
    });
  });
}

// Events are read by a scanner, and by a JSON parser where it does not read them. Whatever is wrong in a text, the
// error is that of a JSON parser of the whole text.
TEST(TraceEvents, ErrorsAreThoseOfAJsonParser) {
  const std::string good =
      "{\"traceEvents\": [\n{\"ph\":\"C\",\"ts\":1.5,\"args\":{\"a\":1,\"b\":-20}},\n"
      "  {\"ph\": \"X\", \"name\": \"F\\u00e9\\n\", \"pid\": 3, \"args\": {\"x\": [1, {\"y\": null}], \"z\": true}} "
      ",\n\n"
      "{\"ph\":\"X\",\"ts\":12e1,\"cat\":\"\u00e9\",\"pid\":4,\"pid\":5},{},\n{\"ts\":0.25,\"name\":\"\",\"args\":{}}"
      "\n], \"a\": 0}";
  json expected;
  ASSERT_EQ(events_and_error(good, expected), "no error");
  ASSERT_EQ(expected.size(), 5U);
  EXPECT_EQ(expected[0].dump(), R"({"cat":"","name":"","ns":1500,"ph":"C","pid":-1,"values":{"a":1,"b":-20}})");
  EXPECT_EQ(expected[2].at("pid"), 5);
  EXPECT_EQ(expected[2].at("ns"), 120'000);
  EXPECT_EQ(expected[4].at("ns"), 250);
  int wrong = 0;
  const auto check = [&](const std::string& text) {
    json events;
    const std::string error = events_and_error(text, events);
    std::string why = "no error";
    try {
      EXPECT_FALSE(json::parse(text).is_discarded());
    } catch (const json::parse_error& parse_error) {
      const std::string what = parse_error.what();
      why = what.substr(what.find("line "));
      why.replace(why.find(": "), 2, ": not JSON: ");
      why = "x: " + why;
    } catch (const json::exception&) {
      return;  // a number out of range, which has no position
    }
    // Values of complete events are checked too, before the rest of the text.
    if (error != "no error" && error.find("not JSON") == std::string::npos) return;
    // The bracket that closes an array of events may be missing.
    if (text.starts_with('[') && error == "no error" && why.find("unexpected end of input") != std::string::npos)
      return;
    wrong += why == "no error" ? 0 : 1;
    // What the parser has read last does not include events that the scanner read.
    const auto split = [](const std::string& message) {
      const std::size_t begin = std::min(message.find("last read: '"), message.size());
      const std::size_t end = std::min(message.rfind("'; expected"), message.rfind('\''));
      if (begin == message.size()) return std::pair(message, std::string());
      return std::pair(message.substr(0, begin) + message.substr(end), message.substr(begin + 12, end - begin - 12));
    };
    ASSERT_EQ(split(error).first, split(why).first) << text;
    EXPECT_TRUE(split(why).second.ends_with(split(error).second)) << error << ", expected " << why << " of " << text;
    EXPECT_EQ(split(error).second.empty(), split(why).second.empty());
  };
  for (std::size_t at = 0; at < good.size(); ++at) {
    check(good.substr(0, at));
    check(good.substr(0, at) + good.substr(at + 1));
    for (const char c : std::string("\"\\{}[],:0-.ex\n \xff")) check(good.substr(0, at) + c + good.substr(at));
  }
  EXPECT_GT(wrong, 1000);
}

TEST(TraceEvents, RankIsFromDistributedInfoOrTheFirstKey) {
  const auto rank = [](const std::string& text) { return read_trace_text(text, "x", [](auto&, auto&) {}).rank; };
  EXPECT_EQ(rank(R"({"a":{"rank":3},"distributedInfo":{"backend":"nccl","rank": 5},"traceEvents":[]})"), 5);
  EXPECT_EQ(rank(R"({"a":{"rank": 3},"traceEvents":[{"args":{"rank": 4}}]})"), 3);
  EXPECT_EQ(rank(R"({"rank":"0","traceEvents":[]})"), std::nullopt);
}

// --- files -------------------------------------------------------------------------------------------------------

TEST_F(ReadTrace, ArgumentsNameFiles) {
  for (const char* name : {"rank10.json", "rank9.json", "rank2.json.gz", "notes.txt"}) write(name, "{}");
  EXPECT_THAT(trace_files(folder_.path()), ElementsAre(folder_.path() + "rank2.json.gz", folder_.path() + "rank9.json",
                                                       folder_.path() + "rank10.json"));
  const std::string a = folder_.path("rank9.json");
  const std::string b = folder_.path("rank10.json");
  EXPECT_THAT(trace_files(a), ElementsAre(a));
  EXPECT_THAT(trace_files(b + "," + a), ElementsAre(b, a));
  EXPECT_THAT(trace_files(folder_.path("none.json")), ElementsAre(folder_.path("none.json")));
  EXPECT_EQ(error_from([&] { trace_files(a + ",none.json"); }), a + ",none.json: file 'none.json' does not exist");
  std::filesystem::create_directory(folder_.path("empty"));
  EXPECT_EQ(error_from([&] { trace_files(folder_.path("empty")); }),
            folder_.path("empty") + ": expected files that end in .json or .json.gz, got none");
}

TEST_F(ReadTrace, TracesAreDistinguishedFromOtherFiles) {
  const auto is_trace = [&](const std::string& text) { return TraceSource(write("a.json.gz", text)).is_trace(); };
  EXPECT_TRUE(is_trace(R"({"traceEvents":[{"ph":"X"}, and so on)"));  // reads up to the first event
  EXPECT_TRUE(is_trace(R"({"traceEvents":[]})"));
  EXPECT_TRUE(is_trace(R"([{"ph":"X"}, and so on)"));
  EXPECT_FALSE(is_trace(R"({"schema":"sluice.scenario/1"})"));
  EXPECT_FALSE(is_trace(R"({"a":{"traceEvents":[]}})"));
  EXPECT_THROW(is_trace("nonsense"), InputError);
  // What was read to decide is read again.
  const std::string scenario = R"({"schema":"sluice.scenario/1"})";
  TraceSource source(write("s.json", scenario));
  EXPECT_FALSE(source.is_trace());
  EXPECT_EQ(source.text(), scenario);
}

// --- compressed and large files ----------------------------------------------------------------------------------

std::string gzipped(std::string_view text) {
  std::string out;
  const ByteSink sink = [&](std::string_view bytes) { out += bytes; };
  GzipStream gzip(sink);
  gzip.write(text);
  gzip.finish();
  return out;
}

// A member with the extra field, name and comment of RFC 1952, 2.3, which follow the 10 bytes of the header.
std::string with_header_fields(std::string member) {
  member[3] = static_cast<char>(4 | 8 | 16);
  const std::string extra(
      "\x04\x00"
      "abcd",
      6);
  return member.substr(0, 10) + extra + std::string("trace.json\0a comment\0", 21) + member.substr(10);
}

TEST_F(ReadTrace, GzipHeadersMayHaveAllFieldsAndStreamsSeveralMembers) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 8});
  const std::string text = test::trace_of(run);
  const auto rows = facts_of(rows_of(run.graph, run.timeline));
  const auto read_bytes = [&](const std::string& bytes) {
    write_file_whole(folder_.path("t.json.gz"), bytes);
    return facts_of(read_trace_run({folder_.path("t.json.gz")}).run);
  };
  EXPECT_EQ(read_bytes(with_header_fields(gzipped(text))), rows);
  std::string members = gzipped("");
  for (std::size_t at = 0; at < text.size(); at += 97) members += with_header_fields(gzipped(text.substr(at, 97)));
  EXPECT_EQ(read_bytes(members), rows);
  EXPECT_EQ(read_bytes(members + gzipped("") + std::string(1000, '\0')), rows);  // padded as by tar
  EXPECT_EQ(read_bytes(members + "\x1f"), rows);
  EXPECT_THAT(error_from([&] { read_bytes(members + gzipped("x").substr(0, 12)); }),
              HasSubstr("the gzip stream is truncated"));
  EXPECT_THAT(error_from([&] { read_bytes(std::string("\x1f\x8b\x07", 3) + text); }),
              HasSubstr("the gzip stream is corrupt: unknown compression method"));
}

TEST_F(ReadTrace, EventsMayBeATopLevelArray) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 3});
  const RunRows rows = rows_of(run.graph, run.timeline);
  std::vector<std::string> paths;
  for (int rank = 0; rank < 2; ++rank) {
    const json events = json::parse(kineto_text(rows, rank, {.distributed_info = false})).at("traceEvents");
    // The format permits a missing bracket at the end, also after a comma.
    std::string text = events.dump();
    if (rank == 1) text.back() = ',';
    paths.push_back(write(fmt::format("rank{}.json.gz", rank), text));
  }
  const TraceRun read = read_trace_run(paths);
  EXPECT_EQ(read.run.num_ranks, 2);
  EXPECT_EQ(first_difference(rows, read.run), "");
  // The events of a Sluice trace, with memory and idle time.
  const SmallFootprint footprint;
  const Simulated own = simulated("1f1b", {.ranks = 2, .microbatches = 3}, "f=1,b=1,w=1", {.footprint = &footprint});
  const auto memory = memory_over_time(own.graph, own.timeline, true);
  const json trace = json::parse(test::trace_of(own, {.idle = true}, memory));
  const std::string whole = write("whole.json", trace.dump());
  const std::string array = write("array.json", trace.at("traceEvents").dump());
  EXPECT_EQ(facts_of(read_trace_run({array}).run), facts_of(read_trace_run({whole}).run));
  EXPECT_EQ(read_trace_run({array}).run.idle, read_trace_run({whole}).run.idle);
  EXPECT_EQ(read_trace_run({array}).run.memory.size(), 2U);
  std::string both;
  write_side_by_side([&](std::string_view bytes) { both += bytes; }, {TraceSide{"a", &rows}, TraceSide{"b", &rows}});
  EXPECT_THAT(error_from([&] { read_trace_run({write("both.json", json::parse(both).at("traceEvents").dump())}); }),
              HasSubstr("both.json: event 0: expected a trace of one run"));
  EXPECT_THAT(error_from([&] { read_trace_run({write("cut.json", R"([{"ph":"X")")}); }), HasSubstr("not JSON"));
  EXPECT_THAT(error_from([&] { read_trace_run({write("none.json", "[]")}); }),
              HasSubstr("expected pipeline op ranges"));
}

TEST_F(ReadTrace, PipesAreReadOnce) {
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 200});
  const std::string text = gzipped(test::trace_of(run));
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  std::thread writer([&] {
    for (std::size_t at = 0; at < text.size(); at += 1000) {
      const std::string_view part = std::string_view(text).substr(at, 1000);
      ASSERT_EQ(::write(ends[1], part.data(), part.size()), std::ssize(part));
    }
    ::close(ends[1]);
  });
  std::vector<std::unique_ptr<TraceSource>> sources;
  sources.push_back(std::make_unique<TraceSource>("/dev/fd/" + std::to_string(ends[0])));
  EXPECT_TRUE(sources[0]->is_trace());
  EXPECT_EQ(facts_of(read_trace_run(std::move(sources)).run), facts_of(rows_of(run.graph, run.timeline)));
  writer.join();
  ::close(ends[0]);
}

TEST_F(ReadTrace, SizesAreLimited) {
  const auto error = [&](const std::string& text) {
    return error_from([&] { read_trace_run({write("t.json.gz", text)}); });
  };
  const std::string long_string(std::size_t{17} << 20, 'x');
  EXPECT_THAT(error(R"({"traceEvents":[{"name":")" + long_string + R"("}]})"),
              HasSubstr("t.json.gz: event 1: a string or a blank is longer than 16 MiB"));
  EXPECT_THAT(error("[" + std::string(std::size_t{17} << 20, ' ') + "]"),
              HasSubstr("a string or a blank is longer than 16 MiB"));
  if (!test::small_scope()) {
    std::string zeros = "{\"a\":[0";
    std::string many;
    for (int i = 0; i < 1 << 10; ++i) many += ",0";
    for (int i = 0; i < 35 << 10; ++i) zeros += many;
    EXPECT_THAT(error(zeros + "]}"), HasSubstr("the gzip stream decompresses to more than 200 times its size"));
  }
  std::string counter = R"([{"ph":"C","args":{"a":1)";
  for (int i = 0; i < 1000; ++i) counter += ",\"b\":1";
  EXPECT_THAT(error(counter + "}}]"), HasSubstr("event 0: args: expected at most 1000 values"));
}

// --- corrupt files
// ----------------------------------------------------------------------------------------------------

// Bytes are changed, removed, repeated or truncated: the result is a run or an InputError.
TEST_F(ReadTrace, CorruptFilesAreRejectedOrRead) {
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
  int rejected = 0;
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
      ++rejected;
    }
  }
  EXPECT_GT(read_well, 0);
  EXPECT_GT(rejected, 0);
}

}  // namespace
}  // namespace sluice::test
