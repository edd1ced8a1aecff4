#include "model/slicing/joint.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"

namespace sluice::model {

JointPlan best_joint_slices(int batch, const std::function<SlicingProblem(int sequences)>& problem_of) {
  if (batch < 1) throw InputError(fmt::format("expected a batch of at least one sequence, got {}", batch));
  std::vector<SlicePlan> plans(1);
  for (int b = 1; b <= batch; ++b) plans.push_back(best_slices(problem_of(b)));

  // The least time of n sequences, and the size of their last part.
  std::vector<Duration> least(plans.size());
  std::vector<int> last(plans.size());
  for (std::size_t n = 1; n < plans.size(); ++n) {
    least[n] = Duration::max();
    for (std::size_t b = 1; b <= n; ++b) {
      const Duration latency = least[n - b] + plans[b].latency;
      if (latency < least[n]) {
        least[n] = latency;
        last[n] = static_cast<int>(b);
      }
    }
  }
  JointPlan joint{.latency = least.back(), .lower_bound = least.back()};
  for (int left = batch; left > 0; left -= last[left]) {
    const int sequences = last[left];
    joint.parts.push_back({sequences, plans[sequences]});
  }
  std::stable_sort(joint.parts.begin(), joint.parts.end(),
                   [](const auto& a, const auto& b) { return a.sequences > b.sequences; });
  return joint;
}

}  // namespace sluice::model
