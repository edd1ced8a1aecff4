#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/cost/cost_table.h"
#include "model/cost/profile.h"

namespace sluice::model {

// Selects the samples of a cost file, which is valid for one microbatch and tensor-parallel size.
struct ProfileChoice {
  std::optional<int> sequences;  // required if the profile has several
  std::optional<int> tensor_parallel;
  int folds = 5;  // number of parts of the samples, each of which is held out once; at least 2
};

// |predicted / measured - 1| over some samples.
struct RelativeError {
  double mean = 0;
  double max = 0;
  int samples = 0;
};

// Relative error of t_ctx on held-out pairs, as reported by TeraPipe (Li et al. 2021, 3.3).
inline constexpr double kPublishedFitError = 0.02;

// A fit with a larger mean relative error on held-out pairs predicts nothing.
inline constexpr double kMostFitError = 0.5;

// The fit of one part and kind. A cell is a pair of tokens and context, with the median of its samples.
struct CurveFit {
  PartKind part = PartKind::layer;
  OpKind kind = OpKind::F;
  int alone = 0;                          // number of cells without context: these are t(i, 0)
  int with_context = 0;                   // number of cells with context, which t_ctx is fitted to
  RelativeError in_sample;                // over all cells
  std::optional<RelativeError> held_out;  // cells with context; empty if there are too few
  std::optional<RelativeError> between;   // t(i, 0) at omitted lengths, interpolated; empty below three lengths
};

// A fixed time and a time proportional to a size: a link, a pass over parameters or an all-reduce over ranks.
struct LinkTimeFit {
  std::string name;
  int sizes = 0;
  RelativeError in_sample;
  std::optional<RelativeError> held_out;
};

struct ProfileFit {
  CostTable table;
  std::vector<CurveFit> curves;     // in the order of parts, kinds F, B, I, W
  std::vector<LinkTimeFit> links;   // in the order of table.links
  std::vector<LinkTimeFit> passes;  // in the order of PassKind
  std::vector<LinkTimeFit> sums;    // in the order of table.sums
  std::vector<std::string> warnings;
};

// Fits TeraPipe's eq. 9 to each part and kind: t(i, 0) is the median of the measurements at each length; t_ctx = a0 +
// a1 i + a2 j + a3 i j minimizes the squares of relative errors. Where the pairs do not determine all four terms, a1 is
// dropped first, then a2, then a0, with a warning. Links: latency and 1 / bandwidth, neither below 0, by the same
// squares; passes over parameters and all-reduces over ranks likewise. Cells with context are held out in turn (a Latin
// square over lengths and contexts, so that the result is deterministic), with t(i, 0) as measured, as in the paper.
// The error of t(i, 0) between measured lengths is reported separately. Throws InputError naming the profile and what
// it lacks: samples to choose from, samples without context, a forward or a backward of a part, or transfers whose time
// increases with their size.
ProfileFit fit_profile(const Profile& profile, const ProfileChoice& choice);

}  // namespace sluice::model
