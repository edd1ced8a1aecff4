#include "sim/planner/plan_batches.h"

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
  return known = std::make_shared<const Batch>(std::move(batch));
}

}  // namespace sluice::sim
