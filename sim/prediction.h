#pragma once

#include <optional>
#include <vector>

#include "model/cost/price.h"
#include "model/scenario/setup.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"
#include "sim/perturbed.h"

namespace sluice::sim {

struct Throughput {
  double tokens_per_s = 0;                // of the whole cluster; 0 without a sequence length
  double model_tflops_per_device = 0;     // as papers count model FLOPs, without recomputation; 0 without a model
  double hardware_tflops_per_device = 0;  // with it
  double mfu = 0;                         // model FLOPs over the peak; 0 without a cluster
};

// Memory of the worst rank against what a device has.
struct Fit {
  bool fits = true;
  int rank = 0;                   // that needs most
  std::int64_t needed_bytes = 0;  // its peak, with the allocator's overhead and what is reserved
  std::int64_t capacity_bytes = 0;
};

// Memory of a device that a rank with this peak takes.
std::int64_t needed_bytes(const Gpu& gpu, std::int64_t peak_bytes);

// Of the rank that needs most, from the peaks of all.
Fit fit_of(const Cluster& cluster, const std::vector<RankMemory>& memory);

// `sequences` of one batch over all replicas, in `seconds`. `training` and `stages` as the schedule has them.
Throughput throughput_of(const Scenario& scenario, const std::vector<StageContents>& stages, double sequences,
                         double seconds);

// What `sluice simulate` answers for one scenario.
struct Prediction {
  Prices prices;
  Timeline timeline;
  Metrics metrics;
  Duration period{};                              // time per batch without a barrier
  Duration iteration{};                           // makespan, or without a flush the period: before any correction
  std::optional<Correction::Interval> corrected;  // the iteration time after the scenario's correction
  std::vector<RankMemory> memory;                 // by rank
  std::vector<IdleByCause> idle;                  // by rank
  CriticalPath critical_path;
  Throughput throughput;
  std::optional<Fit> fit;        // with a model and a cluster
  std::optional<Trials> trials;  // with jitter
};

struct PredictOptions {
  bool keep_memory = false;                            // the curves, not only their peaks
  std::function<void(std::int64_t)> trial_progress{};  // told how many trials are done, from any thread
};

// Prices, slows down what the scenario says is slow, simulates and measures; then runs the trials of its jitter.
Prediction predict(const Setup& setup, const PredictOptions& options = {});

}  // namespace sluice::sim
