#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/batches/batch.h"
#include "model/scenario/setup.h"
#include "sim/engine/prediction.h"

namespace sluice::sim {

// A replica of a batch of documents (Scenario::documents).
struct ReplicaRun {
  Duration makespan{};
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  std::int64_t peak_bytes = 0;  // of the rank with the most; 0 without a model
  int peak_rank = 0;
};

// How long a batch of documents takes.
struct BatchRun {
  // By replica. Where replicas wait for each other at every microbatch, one entry: of every number, the microbatch with
  // the most work.
  std::vector<ReplicaRun> replicas;
  int slowest = 0;
  std::vector<Microbatches> microbatches;  // by replica, in the order that was found
  bool best_order = false;                 // no order of the slowest replica's microbatches is faster
  std::int64_t orders = 0;                 // simulated in the search
  Duration even{};                         // of the batch if all microbatches had their mean times
  std::optional<Duration> before;          // of the batch as the data loader has it (Batch::before)
};

// The slowest replica, ready to simulate. All replicas end together: gradients are reduced when the last one has them,
// and what follows depends on nothing else of a replica, so that the longest of their makespans is the batch's.
struct BatchSetup {
  std::unique_ptr<Setup> setup;
  BatchRun run;
};

// Simulates every replica of a scenario with documents. The best order is found by trying all, or where these are too
// many, by exchanging and moving microbatches from several starts; only replicas that are slower than the slowest
// result are searched. Throws as Setup does; InputError for the best order of a schedule with joint blocks, two routes
// or no flush.
BatchSetup batch_setup(const Scenario& scenario);
// The same in the order of another schedule of equal microbatches. Precondition: no dynamic context parallelism.
BatchSetup batch_setup(const Scenario& scenario, Schedule equal);

// Sets the fit to that of the replica with the highest peak.
void fit_all_replicas(const Scenario& scenario, const BatchRun& run, Prediction& prediction);

}  // namespace sluice::sim
