#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "model/schedule/family.h"
#include "model/workload/training.h"

namespace sluice::sim {

// One way to run a model on a cluster.
struct PlanPoint {
  const Family* family = nullptr;
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int chunks = 1;
  int micro_batch = 1;
  int microbatches = 1;
  int slices = 1;
  int first_layers = 0;  // of the outer stages; 0: as many as the others
  int last_layers = 0;
  Training::Recompute recompute = Training::Recompute::none;
  bool distributed_optimizer = false;
  bool pipeline_before_data = false;

  friend bool operator==(const PlanPoint&, const PlanPoint&) = default;
};

// What a plan may choose from. An empty list: all that make sense.
struct PlanSpace {
  std::int64_t gpus = 0;                    // all of them are used; 0: those of the cluster
  std::vector<int> tp;                      // else divisors of a node's GPUs that divide the heads
  std::vector<int> pp;                      // else divisors of what is left, up to a layer a rank
  std::vector<int> dp;                      // else what is left
  std::vector<int> chunks;                  // of families whose placement leaves them free; else divisors up to 8
  std::vector<int> micro_batch;             // else powers of two up to 16
  std::vector<int> slices;                  // of families that cut sequences; else 2, 4, 8
  std::vector<std::string> families;        // else all that flush
  std::vector<std::string> recompute;       // else none, selective (without flash attention) and full
  std::vector<bool> distributed_optimizer;  // else both
  std::vector<bool> pipeline_before_data;   // else both, where they differ
  bool sequence_parallel = true;            // wherever tp is above 1
  bool balanced_slices = true;              // of equal FLOPs, else of equal length
  bool uneven_outer_stages = true;          // also a layer fewer beside the head, and beside the embedding too
};

// All configurations, in a fixed order: tp x cp x pp x dp are the GPUs, and micro_batch x dp divides the global batch.
// A pipeline of one rank is tried with the first family alone. Throws InputError for a base without model, cluster,
// sequence length or global batch, for names that are not known, and if there is no configuration at all, with the
// reason.
std::vector<PlanPoint> enumerate(const Scenario& base, const PlanSpace& space);

// The scenario of one configuration. Throws InputError where it cannot be (more slices than tokens).
Scenario scenario_of(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

// The flags of `sluice simulate` that, laid over the base, give it.
std::string flags_of(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

}  // namespace sluice::sim
