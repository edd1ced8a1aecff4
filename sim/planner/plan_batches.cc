#include "sim/planner/plan_batches.h"

#include <algorithm>
#include <utility>

namespace sluice::sim {

std::shared_ptr<const Batch> PlanBatches::of(const Scenario& base, int replicas, int microbatches, bool in_step) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Batch>& known = known_[{replicas, microbatches, in_step}];
  if (known != nullptr) return known;
  BatchRequest request = base.documents->request;
  request.replicas = replicas;
  request.microbatches = microbatches;
  request.in_step = in_step;
  Batch batch = make_batch(std::move(request), &*base.model);
  batch.before.clear();
  const auto work = [&](const Microbatches& replica) {
    double sum = 0;
    for (const Documents& documents : replica) sum += work_of(documents, &*base.model);
    return sum;
  };
  std::iter_swap(batch.replicas.begin(),
                 std::max_element(batch.replicas.begin(), batch.replicas.end(),
                                  [&](const auto& a, const auto& b) { return work(a) < work(b); }));
  return known = std::make_shared<const Batch>(std::move(batch));
}

}  // namespace sluice::sim
