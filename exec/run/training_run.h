#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/run/faults.h"
#include "exec/run/run_devices.h"
#include "exec/run/token_source.h"
#include "exec/run/worker.h"
#include "exec/transport/transport.h"
#include "exec/watch/failure.h"
#include "exec/watch/supervisor.h"

namespace sluice::exec {

enum class KeepTimes : std::uint8_t { none, last, all };

struct TrainingOptions {
  std::int64_t first_step = 0;    // steps that were done before, in another run
  int runs = 1;                   // of the graph: steps, or for schedules without a flush as many times its batches
  std::int64_t warmup_steps = 0;  // over which the learning rate rises to its value
  KeepTimes keep_times = KeepTimes::none;
  std::vector<Fault> faults;
  Supervision supervision;
  const RunDevices* devices = nullptr;      // of a plan for devices
  const std::atomic<bool>* stop = nullptr;  // ends training after the run of the graph that is under way
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
  bool interrupted = false;           // it was asked to stop
  std::vector<WorkerClock> broken;    // of a run of the graph that failed, as RunReport::clocks; threads only
};

// Told of each run of the graph, on the root worker alone.
using RunObserver = std::function<void(const RunReport&)>;

// What is done with a worker before its first run (instead of `initialise`) and behind each: checkpoints. Called on
// every worker; may use the transport's gather and broadcast.
struct WorkerHooks {
  std::function<void(Worker&, Transport&)> begin;
  std::function<void(Worker&, Transport&, std::int64_t steps_done)> after_run;
};

// Trains with a thread for each worker. `report` is filled as it goes. Throws DoesNotFit if the arenas are more than
// the host's memory, or a device's, and the first failure (RunFailure), after all have stopped.
void train_with_threads(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options,
                        TrainingReport& report, const WorkerHooks& hooks = {}, const RunObserver& observer = {});

// The part of one process of many, over its transport: the report is filled at rank 0. Throws as above; other processes
// are then in whatever state they are, and this one should end without more communication.
void train_as_process(const RunPlan& plan, Transport& transport, const TokenSource& tokens,
                      const TrainingOptions& options, TrainingReport& report, const WorkerHooks& hooks = {},
                      const RunObserver& observer = {});

double learning_rate_of(const RunPlan& plan, const TrainingOptions& options, std::int64_t step);

}  // namespace sluice::exec
