#include "tests/support/trace_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "tests/support/simulated.h"
#include "tests/support/trace_text.h"
#include "traces/chrome/side_by_side.h"

namespace sluice::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A trace with each kind of event. Each mutation below changes one word of it.
std::string valid_trace(const TraceOptions& options = {}) {
  static const test::SmallFootprint kFootprint;
  const LoweringOptions lowering{.footprint = &kFootprint, .data_parallel = 2, .recompute = true};
  const test::Simulated run =
      test::simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=0.25", lowering);
  return test::trace_of(run, options, memory_over_time(run.graph, run.timeline, true));
}

struct Mutation {
  const char* from;
  const char* to;
  const char* violation;
};

const Mutation kMutations[] = {
    // the file
    {"{\"sluice\"", "[\"sluice\"", "parse error"},
    {"\"sluice\":", "\"slice\":", "no object sluice"},
    {"sluice.trace/1", "sluice.trace/2", "schema is not sluice.trace/1"},
    {"\"version\":\"", "\"v\":\"", "no version"},
    {"\"scenario\":null", "\"s\":null", "no scenario"},
    {"traceEvents", "events", "expected an object with an array traceEvents"},
    {"\n]}", "\n],\"extra\":1}", "unknown key extra"},
    {"\"pid\":1,\"tid\":1,\"ts\"", "\"pid\":1,\"pid\":1,\"tid\":1,\"ts\"", "key \"pid\" occurs twice"},
    // keys, phases, ids
    {"[\n", "[\n5,\n", "is not an object"},
    {"\"ph\":\"C\"", "\"ph\":\"i\"", "unknown ph i"},
    {"\"ph\":\"C\"", "\"hp\":\"C\"", "no ph"},
    {"\"cat\":\"compute\"", "\"cname\":\"good\"", "no cat"},
    {"\"cat\":\"compute\"", "\"cname\":\"good\",\"cat\":\"compute\"", "unknown key cname"},
    {"\"pid\":1,\"tid\":1,\"ts\"", "\"pid\":0,\"tid\":1,\"ts\"", "pid is not a positive integer"},
    {"\"pid\":1,\"tid\":1,\"ts\"", "\"pid\":1,\"tid\":0,\"ts\"", "tid is not a positive integer"},
    {"\"pid\":1,\"tid\":1,\"ts\"", "\"pid\":1,\"tid\":\"1\",\"ts\"", "tid is not a positive integer"},
    {"\"name\":\"F0\",\"args\"", "\"name\":\"\",\"args\"", "name is not a string"},
    // metadata
    {"\"process_name\"", "\"process_labels\"", "unknown metadata process_labels"},
    {"\"process_name\"", "\"process_sort_index\"", "second process_sort_index"},
    {"\"name\":\"rank 0\"", "\"name\":\"rank 1\"", "wrong name rank 1"},
    {"\"name\":\"compute\"", "\"name\":\"send next\"", "wrong name send next"},
    {"\"sort_index\":0", "\"sort_index\":4", "sort_index is not 0"},
    {"\"pid\":1,\"tid\":1,\"name\":\"thread_name\"", "\"pid\":1,\"tid\":9,\"name\":\"thread_name\"",
     "wrong name compute"},
    {"\"pid\":1,\"tid\":1,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":1}",
     "\"pid\":1,\"tid\":9,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":9}",
     "no thread_name or thread_sort_index for pid 1 tid 1"},
    {"\"pid\":1,\"tid\":1,\"name\":\"thread_name\"", "\"pid\":1,\"name\":\"thread_name\"", "thread_name without tid"},
    {"\"pid\":1,\"name\":\"process_name\"", "\"pid\":1,\"tid\":1,\"name\":\"process_name\"", "process_name with tid"},
    {"\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"rank 0\"}",
     "\"pid\":3,\"name\":\"process_name\",\"args\":{\"name\":\"rank 2\"}", "no process_name or process_sort_index"},
    // times
    {"\"ts\":0.000,\"dur\"", "\"ts\":0,\"dur\"", "ts is not microseconds with three decimals"},
    {"\"ts\":0.000,\"dur\"", "\"ts\":0.00,\"dur\"", "ts is not microseconds with three decimals"},
    {"\"ts\":0.000,\"dur\"", "\"ts\":0.0000,\"dur\"", "ts is not microseconds with three decimals"},
    {"\"ts\":0.000,\"dur\"", "\"ts\":-1.000,\"dur\"", "ts is not microseconds with three decimals"},
    {"\"ts\":0.000,\"dur\"", "\"ts\":0.0e0,\"dur\"", "ts is not microseconds with three decimals"},
    {"\"dur\":1000000.000", "\"dur\":1e6", "dur is not microseconds with three decimals"},
    {"\"ts\":0.000,\"dur\"", "\"ts\":0.001,\"dur\"", "the first slice does not start at 0"},
    {"\"dur\":0.001", "\"dur\":0.000", "a transfer shorter than 1 ns"},
    // overlaps: rank 1's F0 runs from 1.25 to 2.25 s, its B0 from 2.25 to 4.25 s
    {"\"ts\":1250000.000,\"dur\":1000000.000", "\"ts\":1250000.000,\"dur\":1000000.001", "overlaps F0"},
    {"\"ts\":4500000.000,\"dur\":0.001", "\"ts\":4500000.000,\"dur\":0.000", "shorter than 1 ns"},
    {"\"ts\":2250000.000,\"dur\":2000000.000", "\"ts\":2249999.999,\"dur\":2000000.000", "overlaps F0"},
    // names, categories, tracks, args
    {"\"cat\":\"compute\"", "\"cat\":\"idle time\"", "unknown cat idle time"},
    {"\"cat\":\"compute\"", "\"cat\":\"p2p\"", "wrong name F0"},
    {"\"name\":\"F0\",\"args\"", "\"name\":\"G0\",\"args\"", "wrong name G0"},
    {"\"name\":\"F0\",\"args\"", "\"name\":\"F0x\",\"args\"", "wrong name F0x"},
    {"\"name\":\"F0\",\"args\"", "\"name\":\"F1\",\"args\"", "microbatch does not match the name"},
    {"\"name\":\"F0\",\"args\"", "\"name\":\"F0+B0\",\"args\"", "with does not match the name"},
    {"\"name\":\"send F0\"", "\"name\":\"recv F0\"", "recv F0 on track 2"},
    {"\"name\":\"recv F0\"", "\"name\":\"send F0\"", "send F0 on track 4"},
    {"\"name\":\"optimizer 0\"", "\"name\":\"step 0\"", "wrong name step 0"},
    {"\"name\":\"optimizer 0\"", "\"name\":\"optimizer 1\"", "step does not match the name"},
    {"\"name\":\"gradient reduce 0\"", "\"name\":\"gradient reduce\"", "wrong name gradient reduce"},
    {"\"tid\":6,\"ts\"", "\"tid\":7,\"ts\"", "gradient reduce 0 on another track"},
    {"\"args\":{\"stage\":0", "\"args\":{\"stage\":-1", "stage is not a non-negative integer"},
    {"\"args\":{\"stage\":0", "\"args\":{\"stag\":0", "stage is not a non-negative integer"},
    {"\"bytes\":7", "\"byte\":7", "bytes is not a non-negative integer"},
    {"\"waited_for\":\"F(stage 0, mb 0)\"", "\"waited_for\":3", "waited_for is not a string"},
    // flows
    {"\"bp\":\"e\"", "\"bp\":\"s\"", "bp is not e"},
    {"\"bp\":\"e\",", "", "no bp"},
    {"\"ph\":\"s\",\"id\":1", "\"ph\":\"s\",\"id\":\"1\"", "id is not a positive integer"},
    {"\"ph\":\"s\",\"id\":1", "\"ph\":\"s\",\"id\":9", "flow 1 has no s"},
    {"\"ph\":\"s\",\"id\":1", "\"ph\":\"s\",\"id\":2", "second s of flow 2"},
    {"\"id\":1,\"pid\":1,\"tid\":2,\"ts\":1000000.000", "\"id\":1,\"pid\":1,\"tid\":2,\"ts\":1000000.001",
     "no slice send F0 before it that starts there"},
    {"\"id\":1,\"pid\":2,\"tid\":4,\"ts\":1250000.000", "\"id\":1,\"pid\":2,\"tid\":5,\"ts\":1250000.000",
     "no slice recv F0 before it that starts there"},
    {"\"id\":1,\"pid\":2,\"tid\":4,\"ts\":1250000.000", "\"id\":1,\"pid\":2,\"tid\":4,\"ts\":0.000",
     "flow 1 goes back in time"},
    {"\"ts\":1250000.000,\"cat\":\"p2p\",\"name\":\"F0\"", "\"ts\":1250000.000,\"cat\":\"p2p\",\"name\":\"F1\"",
     "flow 1 changes its name"},
    {"\"ts\":1250000.000,\"cat\":\"p2p\",\"name\":\"F0\"", "\"ts\":1250000.000,\"cat\":\"flow\",\"name\":\"F0\"",
     "a flow's cat is not p2p"},
    // counters
    {"\"weights\":1000", "\"weights\":-1", "weights is not a non-negative integer"},
    {"\"weights\":1000", "\"weights\":1000.5", "weights is not a non-negative integer"},
    {"\"weights\":1000", "\"other\":1000", "counter with other series than before"},
    {"\"name\":\"memory\"", "\"name\":\"mem\"", "unknown counter mem"},
    {"\"args\":{\"weights\":1000", "\"args\":{},\"x\":{\"weights\":1000", "unknown key x"},
};

// Applies each mutation alone to the trace `good`.
void expect_violations(const std::string& good, std::span<const Mutation> mutations) {
  for (const Mutation& mutation : mutations) {
    SCOPED_TRACE(std::string(mutation.from) + " -> " + mutation.to);
    std::string bad = good;
    const std::size_t at = bad.find(mutation.from);
    ASSERT_NE(at, std::string::npos);
    bad.replace(at, std::string_view(mutation.from).size(), mutation.to);
    EXPECT_THAT(test::check_trace(bad), Contains(HasSubstr(mutation.violation)));
  }
}

TEST(TraceCheck, ValidTraceHasNoViolation) {
  EXPECT_THAT(test::check_trace(valid_trace()), IsEmpty());
  EXPECT_THAT(test::check_trace(valid_trace({.ranks = {1}})), IsEmpty());
}

TEST(TraceCheck, EveryRuleIsEnforced) { expect_violations(valid_trace(), kMutations); }

// Rank 1 of the valid trace waits for F0 from 0 to 1.25 s: 1 s for rank 0 to compute it, 0.25 s for the transfer.
const Mutation kIdleMutations[] = {
    {"\"name\":\"idle warm_up\"", "\"name\":\"idle\"", "wrong name idle"},
    {"\"cause\":\"link\"", "\"cause\":\"cable\"", "unknown cause cable"},
    {"\"cause\":\"link\"", "\"reason\":\"link\"", "cause is not a string"},
    {"\"tid\":1,\"ts\":0.000,\"dur\":1000000.000,\"cat\":\"idle\"",
     "\"tid\":4,\"ts\":0.000,\"dur\":1000000.000,\"cat\":\"idle\"", "idle warm_up on track 4"},
    {"\"dur\":250000.000,\"cat\":\"idle\"", "\"dur\":0.000,\"cat\":\"idle\"", "an idle time of length 0"},
    {"\"dur\":250000.000,\"cat\":\"idle\"", "\"dur\":250000.001,\"cat\":\"idle\"", "overlaps idle link"},
    {"\"from_rank\":0", "\"from_rank\":-1", "from_rank is not a non-negative integer"},
    {"\"next\":\"F(stage 1, mb 0)\"", "\"next\":1", "next is not a string"},
};

TEST(TraceCheck, RulesOfIdleTimesAreEnforced) {
  const std::string good = valid_trace({.idle = true});
  EXPECT_THAT(test::check_trace(good), IsEmpty());
  expect_violations(good, kIdleMutations);
}

// Two sides of two ranks each: pids 1 to 4.
const Mutation kSideMutations[] = {
    {"\"sides\":[", "\"sides\":[1,", "sides is not a list of two"},
    {"\"ranks\":2", "\"ranks\":-2", "sides: expected name and ranks"},
    {"\"name\":\"b\"", "\"name\":\"a\"", "both sides have the same name"},
    {"\"ranks\":2}]", "\"ranks\":1}]", "pid belongs to neither side"},
    {"\"sides\"", "\"side\"", "wrong name a rank 0"},
    {"\"name\":\"a rank 0\"", "\"name\":\"rank 0\"", "wrong name rank 0"},
    {"\"name\":\"b rank 1\"", "\"name\":\"b rank 3\"", "wrong name b rank 3"},
    {"\"sort_index\":3", "\"sort_index\":1", "sort_index is not 3"},
    {"\"pid\":3,\"tid\":1,\"ts\":0.000", "\"pid\":3,\"tid\":1,\"ts\":0.001", "the first slice does not start at 0"},
};

TEST(TraceCheck, RulesOfTwoSidesAreEnforced) {
  const test::Simulated run = test::simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=0.25");
  const RunRows rows = rows_of(run.graph, run.timeline);
  std::string good;
  write_side_by_side([&](std::string_view bytes) { good += bytes; }, {TraceSide{"a", &rows}, TraceSide{"b", &rows}});
  EXPECT_THAT(test::check_trace(good), IsEmpty());
  expect_violations(good, kSideMutations);
}

// Splits a valid trace into lines, to reorder, remove or repeat some.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}
std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}
std::size_t line_with(const std::vector<std::string>& lines, std::string_view what) {
  const auto found = std::find_if(lines.begin(), lines.end(),
                                  [&](const std::string& line) { return line.find(what) != std::string::npos; });
  return static_cast<std::size_t>(found - lines.begin());
}

TEST(TraceCheck, FlowMustFollowItsSlice) {
  std::vector<std::string> lines = lines_of(valid_trace());
  const std::size_t flow = line_with(lines, "\"ph\":\"s\"");
  std::swap(lines[flow], lines[flow - 1]);
  EXPECT_THAT(test::check_trace(joined(lines)), Contains(HasSubstr("no slice send F0 before it")));
}

TEST(TraceCheck, TransferWithoutFlowIsAViolationUnlessRanksAreOmitted) {
  std::vector<std::string> lines = lines_of(valid_trace());
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(line_with(lines, "\"ph\":\"s\"")));
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(line_with(lines, "\"ph\":\"f\"")));
  EXPECT_THAT(test::check_trace(joined(lines)), Contains(HasSubstr("send F0 has no flow")));
  std::string filtered = joined(lines);
  filtered.replace(filtered.find("\"scenario\""), 0, "\"world_ranks\":[0,1],");
  EXPECT_THAT(test::check_trace(filtered), IsEmpty());
}

TEST(TraceCheck, CountersMustIncreaseInTimeAndChange) {
  std::vector<std::string> lines = lines_of(valid_trace());
  const auto counter = static_cast<std::ptrdiff_t>(line_with(lines, "\"ph\":\"C\""));
  lines.insert(lines.begin() + counter, lines[static_cast<std::size_t>(counter)]);
  const std::vector<std::string> violations = test::check_trace(joined(lines));
  EXPECT_THAT(violations, Contains(HasSubstr("counter written without a change")));
  EXPECT_THAT(violations, Contains(HasSubstr("counter does not rise in time")));
}

TEST(TraceCheck, NestedSlicesDoNotOverlap) {
  // Viewers draw a slice inside another one, listed after it, as its child.
  std::string trace = valid_trace();
  const std::string inner =
      R"({"ph":"X","pid":2,"tid":1,"ts":1250000.000,"dur":5.000,"cat":"compute","name":"F0","args":{"stage":1,"chunk":0,"microbatch":0,"slice":0}},)";
  const std::size_t outer = trace.find(R"({"ph":"X","pid":2,"tid":1,"ts":1250000.000)");
  ASSERT_NE(outer, std::string::npos);
  std::string after = trace;
  after.insert(after.find('\n', outer) + 1, inner + "\n");
  EXPECT_THAT(test::check_trace(after), IsEmpty());
  // If it is listed first, a stable sort by start puts the long slice inside the short one.
  std::string before = trace;
  before.insert(outer, inner + "\n");
  EXPECT_THAT(test::check_trace(before), Contains(HasSubstr("overlaps F0")));
}

TEST(TraceCheck, TransfersDoNotNest) {
  std::string trace = valid_trace();
  const std::size_t at = trace.find(R"({"ph":"X","pid":1,"tid":2)");
  const std::size_t line = trace.find('\n', at) + 1;
  trace.insert(at, trace.substr(at, line - at));
  EXPECT_THAT(test::check_trace(trace), Contains(HasSubstr("send F0 overlaps send F0")));
}

TEST(TraceCheck, InvalidJsonIsOneViolation) {
  EXPECT_THAT(test::check_trace("{\"traceEvents\":["), testing::ElementsAre(HasSubstr("parse error")));
}

}  // namespace
}  // namespace sluice::test
