#pragma once

#include <string>
#include <vector>

#include "benchmarks/claims/claim.h"
#include "benchmarks/claims/ran.h"

namespace sluice::bench::claims {

// A row of the table.
struct Answer {
  std::string name;
  std::string measure;
  std::string published;  // empty: the paper does not say
  std::string ours;
  std::string difference;  // "+4.2 %"; "as published", "differs"; empty without a published figure
  Json value;              // ours: a number, true or false, or a list
  bool fits = true;        // all its runs, as predicted
};

Answer answer(const Claim& claim, const Measure& measure, const std::vector<Ran>& runs);

}  // namespace sluice::bench::claims
