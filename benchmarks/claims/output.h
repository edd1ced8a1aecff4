#pragma once

#include <string>
#include <vector>

#include "benchmarks/claims/measure.h"

namespace sluice::bench::claims {

struct Answered {
  Claim claim;
  std::vector<Ran> runs;
  std::vector<Answer> answers;
};

// Claims with their rows: what is measured, published, ours, the difference. With `explain` also where a claim is from,
// what is assumed, and why ours differs.
std::string table_text(const std::vector<Answered>& claims, bool explain);
std::string table_json(const std::vector<Answered>& claims);  // sluice.claims/1

// Writes the scenario of every run to `folder`, a file each, for `sluice simulate`. Throws InputError.
void write_scenarios(const std::vector<Answered>& claims, const std::string& folder);

}  // namespace sluice::bench::claims
