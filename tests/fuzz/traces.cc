#include "tests/fuzz/targets.h"
#include "tests/support/trace_check.h"
#include "traces/chrome/side_by_side.h"
#include "traces/compare/comparison.h"
#include "traces/read/trace_read.h"

namespace sluice::test::fuzz {

void try_trace(std::string_view text) {
  accepts([&] {
    const RunRows run = read_trace_run_text(text, "input").run;
    require(!run.rows.empty(), "a run without rows");
    const Comparison same = compare(run, run, {.falls_behind_at = 0});
    require(same.pairs == std::ssize(run.rows), "a row that is not its own partner");
    require(same.differing.empty() && !same.falls_behind, "a run that differs from itself");
    require(first_difference(run, run).empty(), "a run of another schedule than its own");
    constexpr std::size_t kMostRows = 4096;
    if (run.rows.size() > kMostRows) return;
    std::string both;
    write_side_by_side([&](std::string_view bytes) { both += bytes; }, {TraceSide{"a", &run}, TraceSide{"b", &run}});
    const std::vector<std::string> breaches = test::check_trace(both);
    require(breaches.empty(), breaches.empty() ? "" : breaches.front());
  });
}

}  // namespace sluice::test::fuzz
