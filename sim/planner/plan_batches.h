#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "model/batches/batch.h"
#include "model/scenario/scenario.h"

namespace sluice::sim {

using namespace model;  // NOLINT(google-build-using-namespace)

// The batches of documents of a plan's configurations, each packed once. Thread-safe.
class PlanBatches {
 public:
  // Returns the documents of `base` in this number of replicas and of microbatches per replica (0: the fewest), the
  // replica with the most work first. Throws InputError if they do not fit.
  std::shared_ptr<const Batch> of(const Scenario& base, int replicas, int microbatches, bool in_step);

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, int, bool>, std::shared_ptr<const Batch>> known_;
};

}  // namespace sluice::sim
