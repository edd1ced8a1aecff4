#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/cost/cost_table.h"
#include "model/cost/profile.h"

namespace sluice::model {

// Of which samples a cost file is made, since it holds for one microbatch and tensor-parallel size.
struct ProfileChoice {
  std::optional<int> sequences;  // needed where the profile has several
  std::optional<int> tensor_parallel;
  int folds = 5;  // parts of the samples that are held out in turn; at least 2
};

// |predicted / measured - 1| over some samples.
struct RelativeError {
  double mean = 0;
  double max = 0;
  int samples = 0;
};

// Relative error of t_ctx on pairs that it was not fitted to, as TeraPipe reports it (Li et al. 2021, 3.3).
inline constexpr double kPublishedFitError = 0.02;

// One part and kind. Cells are pairs of tokens and context, each with the median of its samples.
struct CurveFit {
  PartKind part = PartKind::layer;
  OpKind kind = OpKind::F;
  int alone = 0;                          // cells without context: t(i, 0) is these
  int behind = 0;                         // cells with context, which t_ctx is fitted to
  RelativeError in_sample;                // over all cells
  std::optional<RelativeError> held_out;  // cells with context; nothing if there are too few
  std::optional<RelativeError> between;   // t(i, 0) at lengths left out, by those beside them; nothing below three
};

// A fixed time and one in proportion to a size: a link, a pass over parameters or a sum over ranks.
struct LinkTimeFit {
  std::string name;
  int sizes = 0;
  RelativeError in_sample;
  std::optional<RelativeError> held_out;
};

struct ProfileFit {
  CostTable table;
  std::vector<CurveFit> curves;     // in the order of parts, kinds F, B, I, W
  std::vector<LinkTimeFit> links;   // as table.links
  std::vector<LinkTimeFit> passes;  // those there are, in the order of PassKind
  std::vector<LinkTimeFit> sums;    // as table.sums
  std::vector<std::string> warnings;
};

// Fits TeraPipe's eq. 9 to each part and kind: t(i, 0) is the median of what was measured at each length; t_ctx =
// a0 + a1 i + a2 j + a3 i j has the least squares of relative errors. Where the pairs cannot tell all four terms apart,
// a1 goes first, then a2, then a0, with a warning. Links: latency and 1 / bandwidth, neither below 0, by the same
// squares; passes over parameters and sums over ranks likewise. Held out are cells with context, in turn (a Latin
// square over lengths and contexts, so the same ones every time), with t(i, 0) as measured, as in the paper. How good
// that is between measured lengths is another error. Throws InputError naming the profile and what it lacks: samples to
// choose from, samples without context, a forward or a backward of a part, transfers of which longer ones take longer.
ProfileFit fit_profile(const Profile& profile, const ProfileChoice& choice);

}  // namespace sluice::model
