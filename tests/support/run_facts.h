#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "model/errors.h"
#include "tests/support/errors.h"
#include "traces/rows/run_rows.h"

namespace sluice::test {

// Returns all fields of each row as text, sorted, to compare runs exactly.
inline std::vector<std::string> facts_of(const RunRows& run) {
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

}  // namespace sluice::test
