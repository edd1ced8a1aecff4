#pragma once

#include <string>
#include <vector>

#include "benchmarks/claims/claim.h"
#include "benchmarks/claims/run_result.h"

namespace sluice::bench::claims {

// A row of the table.
struct ResultRow {
  std::string name;
  std::string measure;
  std::string published;   // empty if not published
  std::string ours;        // predicted
  std::string difference;  // "+4.2 %"; "as published", "differs"; empty without a published value
  Json value;              // predicted: a number, a boolean or a list
  bool fits = true;        // whether all its runs fit in memory
};

ResultRow evaluate(const Claim& claim, const Measure& measure, const std::vector<RunResult>& runs);

}  // namespace sluice::bench::claims
