#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "exec/faults.h"
#include "exec/measured_timeline.h"
#include "exec/run_plan.h"
#include "exec/token_source.h"
#include "exec/transport/transport.h"
#include "exec/worker.h"
#include "model/timeline/timeline.h"

namespace sluice {

struct TrainingOptions {
  std::int64_t first_step = 0;    // steps that were done before, in another run
  int runs = 1;                   // of the graph: steps, or for schedules without a flush as many times its batches
  std::int64_t warmup_steps = 0;  // over which the learning rate rises to its value
  bool keep_timelines = false;    // of every run of the graph
  std::string recorders;          // a folder for the flight recorders; empty: none
  std::vector<Fault> faults;
};

// One run of the graph, as the root worker sees it.
struct RunReport {
  std::int64_t first_step = 0;
  std::vector<double> losses;       // by batch: nats a token, the mean over all tokens of the batch
  double gradient_norm = 0;         // before clipping; 0 without
  double seconds = 0;               // first start to last end over the workers of the first replica
  std::vector<WorkerClock> clocks;  // of the first replica, by pipeline rank; empty unless kept
};

// Of one worker, over the whole run.
struct WorkerReport {
  std::int64_t held_bytes = 0;
  std::int64_t arena_bytes = 0;
  WorkerTimes times;  // of the last run of the graph
};

struct TrainingReport {
  std::vector<RunReport> runs;
  std::vector<WorkerReport> workers;  // by world rank
};

// Told of each run of the graph, on the root worker alone.
using RunObserver = std::function<void(const RunReport&)>;

// What is done with a worker before its first run (instead of `initialise`) and behind each: checkpoints. Called on
// every worker; may use the transport's gather and broadcast.
struct WorkerHooks {
  std::function<void(Worker&, Transport&)> begin;
  std::function<void(Worker&, Transport&, std::int64_t steps_done)> after_run;
};

// The part of one worker: all of them call it, each with its own transport. The report is the root's.
TrainingReport train(Worker& worker, Transport& transport, const RunPlan& plan, const TrainingOptions& options,
                     const WorkerHooks& hooks, const RunObserver& observer);

// Trains with a thread for each worker. Throws the first failure (RunFailure), after all have stopped.
TrainingReport train_with_threads(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options,
                                  const WorkerHooks& hooks = {}, const RunObserver& observer = {});

double learning_rate_of(const RunPlan& plan, const TrainingOptions& options, std::int64_t step);

}  // namespace sluice
