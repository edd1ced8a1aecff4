#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"
#include "tests/support/trace_check.h"
#include "traces/chrome/gzip.h"
#include "traces/chrome/side_by_side.h"
#include "traces/compare/comparison.h"
#include "traces/measured/causes_of_slowness.h"
#include "traces/measured/estimated_transfers.h"
#include "traces/measured/measured_rows.h"
#include "traces/measured/read_measured.h"
#include "traces/measured/recognised.h"
#include "traces/measured/slowdown.h"
#include "traces/profile/breakdown.h"
#include "traces/profile/gpu_trace.h"
#include "traces/profile/kernel_causes.h"
#include "traces/profile/matched_calls.h"
#include "traces/read/trace_read.h"

namespace sluice::test::fuzz {
namespace {

void require_equal_to_itself(const RunRows& run) {
  require(!run.rows.empty(), "a run without rows");
  const Comparison same = compare(run, run, {.falls_behind_at = 0});
  require(same.pairs == std::ssize(run.rows), "a row is not paired with itself");
  require(same.differing.empty() && !same.falls_behind, "a run differs from itself");
  require(first_difference(run, run).empty(), "a run has another schedule than itself");
}

std::string decompressed(std::string_view bytes) {
  GzipReader reader("input", [&bytes](std::span<char> out) {
    const std::size_t count = bytes.copy(out.data(), out.size());
    bytes.remove_prefix(count);
    return count;
  });
  std::string out;
  for (auto block = reader.next(); !block.empty(); block = reader.next()) out.append(block.data(), block.size());
  return out;
}

std::string compressed(std::string_view text) {
  std::string out;
  const ByteSink sink = [&out](std::string_view bytes) { out += bytes; };
  GzipStream gzip(sink);
  gzip.write(text);
  gzip.finish();
  return out;
}

// Files separated by lines of "---".
std::vector<std::unique_ptr<TraceSource>> files_of(std::string_view text) {
  constexpr std::string_view kCut = "\n---\n";
  std::vector<std::unique_ptr<TraceSource>> sources;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(kCut, begin), text.size());
    const std::string name = "rank" + std::to_string(sources.size());
    sources.push_back(std::make_unique<TraceSource>(text.substr(begin, end - begin), name));
    begin = end + kCut.size();
  }
  return sources;
}

}  // namespace

void try_trace(std::string_view text) {
  accepts([&] {
    std::vector<std::unique_ptr<TraceSource>> sources;
    sources.push_back(std::make_unique<TraceSource>(text, "input"));
    const RunRows run = read_trace_run(std::move(sources)).run;
    require_equal_to_itself(run);
    constexpr std::size_t kMaxRows = 4096;
    if (run.rows.size() > kMaxRows) return;
    std::string both;
    write_side_by_side([&](std::string_view bytes) { both += bytes; }, {TraceSide{"a", &run}, TraceSide{"b", &run}});
    const std::vector<std::string> violations = test::check_trace(both);
    require(violations.empty(), violations.empty() ? "" : violations.front());
  });
}

void try_kineto(std::string_view text) {
  accepts([&] { require_equal_to_itself(read_trace_run(files_of(text)).run); });
}

void try_kernels(std::string_view text) {
  accepts([&] {
    std::vector<GpuTrace> traces;
    for (const std::unique_ptr<TraceSource>& source : files_of(text)) {
      GpuTraceReader reader(source->name());
      const TraceHead head = source->read([&](TraceEvent& event, const TraceHead&) { reader.add(event); });
      for (GpuTrace& trace : std::move(reader).finish(head)) traces.push_back(std::move(trace));
    }
    std::vector<std::int64_t> ranks;
    std::vector<std::string> names;
    std::vector<std::vector<char>> keep;
    for (const GpuTrace& trace : traces) {
      for (const Breakdown& of : breakdowns(trace)) {
        require(of.compute + of.exposed_communication + of.exposed_copies + of.idle == of.span, "times do not add up");
        require(of.idle >= of.idle_for_host && of.hidden_communication().count() >= 0, "a time is too large");
      }
      ranks.push_back(std::ssize(ranks));
      names.push_back("rank");
      keep.emplace_back(trace.steps.size(), 1);
    }
    MatchedCalls matched = matched_calls(traces, ranks);
    align_clocks_by_calls(traces, matched);
    call_waits(traces, matched, keep);
    kernel_causes(traces, ranks, names, matched, keep);
  });
}

void try_measured_steps(std::string_view text) {
  accepts([&] {
    TraceSource source(text, "input");
    const MeasuredRun run = with_estimated_transfers(read_bytedance_timeline(source));
    constexpr std::size_t kMaxOps = 4096;
    if (run.ops.size() > kMaxOps || run.workers() > 256) return;
    recognise(run);
    for (const ReceiveRule rule : {ReceiveRule::early, ReceiveRule::observed}) {
      const std::vector<StepGraph> graphs = step_graphs(run, rule);
      slowdown_of(run, graphs);
      causes_of_slowness(run, graphs);
    }
    require_equal_to_itself(rows_of_step(run, std::nullopt, "input").run);
  });
}

void try_gzip(std::string_view text) {
  accepts([&] { decompressed(text); });
  require(decompressed(compressed(text)) == text, "the text changed");
  require(decompressed(compressed(text) + compressed(text)) == std::string(text) + std::string(text),
          "the text of two members changed");
  // The start of a member is either truncated or complete.
  const std::string whole = compressed(text);
  require(!accepts([&] { decompressed(std::string_view(whole).substr(0, whole.size() - 1)); }),
          "a truncated member is accepted");
}

}  // namespace sluice::test::fuzz
