#include "tests/fuzz/targets.h"
#include "tests/support/trace_check.h"
#include "traces/chrome/side_by_side.h"
#include "traces/compare/comparison.h"
#include "traces/read/trace_read.h"

namespace sluice::test::fuzz {

void try_trace(std::string_view text) {
  accepts([&] {
    std::vector<std::unique_ptr<TraceSource>> sources;
    sources.push_back(std::make_unique<TraceSource>(text, "input"));
    const RunRows run = read_trace_run(std::move(sources)).run;
    require(!run.rows.empty(), "a run without rows");
    const Comparison same = compare(run, run, {.falls_behind_at = 0});
    require(same.pairs == std::ssize(run.rows), "a row is not paired with itself");
    require(same.differing.empty() && !same.falls_behind, "a run differs from itself");
    require(first_difference(run, run).empty(), "a run has another schedule than itself");
    constexpr std::size_t kMaxRows = 4096;
    if (run.rows.size() > kMaxRows) return;
    std::string both;
    write_side_by_side([&](std::string_view bytes) { both += bytes; }, {TraceSide{"a", &run}, TraceSide{"b", &run}});
    const std::vector<std::string> violations = test::check_trace(both);
    require(violations.empty(), violations.empty() ? "" : violations.front());
  });
}

}  // namespace sluice::test::fuzz
