// Public header.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/cost/price.h"
#include "model/scenario/correction.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"
#include "sim/engine/perturbed.h"

namespace sluice::sim {

struct Throughput {
  double tokens_per_s = 0;                // over all devices; 0 without a sequence length
  double model_tflops_per_device = 0;     // model FLOPs as in papers, without recomputation; 0 without a model
  double hardware_tflops_per_device = 0;  // with recomputation
  double mfu = 0;                         // model FLOPs as a fraction of the precision's peak; 0 without a cluster
};

// Whether the rank with the highest memory use fits on its device.
struct Fit {
  bool fits = true;
  int rank = 0;                   // with the highest memory use
  std::int64_t needed_bytes = 0;  // its peak, including allocator overhead and reserved memory
  std::int64_t capacity_bytes = 0;
};

// Consecutive vertices of a critical path, from index `begin` to `end`, which the path of the whole schedule passes
// `times` times: first `later` than in the simulated schedule, then each time `more`.
struct PathPiece {
  std::size_t begin = 0;
  std::size_t end = 0;
  int times = 1;
  Duration later{};
  Duration more{};
  int microbatches = 0;  // by which those of the vertices are later, of all routes
  int more_microbatches = 0;
};

// What the prediction of a whole schedule from a shortened one left out (sim/engine/shortened.h): `times` parts of the
// steady state, each of `microbatches` and with the length `time`, after which everything repeats.
struct RepeatedPart {
  int simulated = 0;     // microbatches of the shortened schedule
  int microbatches = 0;  // of a part, of all routes
  int times = 0;
  Duration time{};
  std::vector<PathPiece> path;         // the critical path, in its order
  std::vector<RootedIdle> idle_roots;  // as by idle_by_root, of the whole schedule
};

// The predicted time and memory of one training iteration. With a `repetition`, prices, timeline and the vertices of
// the critical path are those of the shortened schedule, and everything else is of the whole one.
struct Prediction {
  Prices prices;
  Timeline timeline;
  Metrics metrics;
  Duration period{};                              // time per batch when batches follow without a barrier
  Duration iteration{};                           // makespan, or without a flush the period; before any correction
  std::optional<Correction::Interval> corrected;  // iteration time after the scenario's correction
  std::vector<RankMemory> memory;                 // by rank
  std::vector<IdleByCause> idle;                  // by rank
  CriticalPath critical_path;
  Throughput throughput;
  std::optional<Fit> fit;        // with a model and a cluster
  std::optional<Trials> trials;  // with jitter
  std::optional<RepeatedPart> repetition;

  // Iteration time in seconds, after the scenario's correction if it has one.
  double iteration_s() const { return corrected ? corrected->seconds : to_seconds(iteration); }
};

// A vertex of the critical path of the whole schedule: one of the simulated graph, and how much later it is there.
struct PathStep {
  VertexId vertex = 0;
  Duration later{};
  int microbatches = 0;  // of all routes
};
std::size_t path_length(const Prediction& prediction);
PathStep path_step(const Prediction& prediction, std::size_t index);
// The number of times that a vertex of `critical_path.vertices`, by its index there, occurs in it.
int times_on_path(const Prediction& prediction, std::size_t index);
// The microbatch of the whole schedule, which has `num_microbatches`, that is `later` (PathStep::microbatches) than one
// of the simulated schedule.
int later_microbatch(const Schedule& simulated, int num_microbatches, int microbatch, int later);

struct PredictOptions {
  bool keep_memory = false;                            // keep the memory curves in addition to the peaks
  std::function<void(std::int64_t)> trial_progress{};  // called with the number of finished trials, from any thread
  std::function<void()> step_done{};                   // called after every pass over the graph; may throw to end it
};

}  // namespace sluice::sim
