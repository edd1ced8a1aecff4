#pragma once

#include <string>
#include <vector>

#include "benchmarks/claims/measure.h"

namespace sluice::bench::claims {

struct EvaluatedClaim {
  Claim claim;
  std::vector<RunResult> runs;
  std::vector<ResultRow> rows;
};

// Claims with their rows: measure, published and predicted value, and difference. With `explain` also the source and
// the assumptions of each claim, and why the prediction differs.
std::string table_text(const std::vector<EvaluatedClaim>& claims, bool explain);
std::string table_json(const std::vector<EvaluatedClaim>& claims);  // sluice.claims/1

// Writes one scenario file per run to `folder`, for `sluice simulate`. Throws InputError.
void write_scenarios(const std::vector<EvaluatedClaim>& claims, const std::string& folder);

}  // namespace sluice::bench::claims
