#include "model/batches/context_group_cost.h"

#include <algorithm>
#include <utility>

#include "model/to_size.h"

namespace sluice::model {

ContextGroupCost::ContextGroupCost(std::vector<std::unique_ptr<const CostModel>> costs,
                                   std::vector<ContextGroup> groups, int ranks)
    : costs_(std::move(costs)), groups_(std::move(groups)), ranks_(ranks) {}

double ContextGroupCost::longest(const MicrobatchShape& shape, const Price& price) const {
  ContextProblem problem{.documents = {}, .ranks = ranks_, .time = {}};
  problem.time = [&](std::int64_t tokens, int ranks) {
    std::size_t doublings = 0;
    while ((1 << doublings) < ranks) ++doublings;
    return price(*costs_.at(doublings), {.slice_lengths = {tokens}, .forward_only = shape.forward_only});
  };
  const std::vector<double> times = times_of_ranks(groups_.at(to_size(shape.group)), problem);
  return *std::max_element(times.begin(), times.end());
}

double ContextGroupCost::compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  return longest(shape, [&](const CostModel& cost, const MicrobatchShape& document) {
    return cost.compute_s(kind, stage, document, slice);
  });
}

double ContextGroupCost::recompute_s(int stage, const MicrobatchShape& shape, int slice) const {
  return longest(shape, [&](const CostModel& cost, const MicrobatchShape& document) {
    return cost.recompute_s(stage, document, slice);
  });
}

}  // namespace sluice::model
