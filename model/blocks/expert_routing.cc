#include "model/blocks/expert_routing.h"

#include <algorithm>
#include <cmath>

namespace sluice::model {
namespace {

double log_choose(double n, double k) { return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1); }

// Probability that `drawn` of `all` things, without replacement, include none of `marked`.
double none_drawn(double all, double marked, double drawn) {
  if (drawn > all - marked) return 0;
  return std::exp(log_choose(all - marked, drawn) - log_choose(all, drawn));
}

}  // namespace

double expected_parts(const Experts& experts, int parts) {
  if (parts <= 1) return 1;
  const double size = static_cast<double>(experts.count) / parts;            // experts of a part
  const double group = static_cast<double>(experts.count) / experts.groups;  // of a group
  const double reached = group * experts.groups_per_token;
  // A part covers some groups, or lies within one.
  const double covered = std::max(1.0, size / group);
  const double of_each = std::min(size, group);
  // Number of chosen groups among those that the part covers: hypergeometric.
  double missed = 0;
  const int most = std::min(static_cast<int>(covered), experts.groups_per_token);
  for (int groups = 0; groups <= most; ++groups) {
    const double chosen = groups;
    if (experts.groups_per_token - chosen > experts.groups - covered) continue;
    const double probability =
        std::exp(log_choose(covered, chosen) + log_choose(experts.groups - covered, experts.groups_per_token - chosen) -
                 log_choose(experts.groups, experts.groups_per_token));
    missed += probability * none_drawn(reached, chosen * of_each, experts.per_token);
  }
  return parts * (1 - missed);
}

}  // namespace sluice::model
