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
  std::int64_t first_step = 0;  // steps completed in earlier runs
  // Number of runs of the graph; each has one optimizer step per batch (several batches without a flush).
  int runs = 1;
  std::int64_t warmup_steps = 0;  // of linear warm-up of the learning rate
  KeepTimes keep_times = KeepTimes::none;
  std::vector<Fault> faults;
  std::function<void(const std::string&)> announce_fault;  // see FaultPlan; may be empty
  Supervision supervision;
  const RunDevices* devices = nullptr;  // for a plan for devices
  // Ends training on all workers after the current run of the graph; on devices, where the workers agree on it with the
  // report of a run, possibly after the next one.
  const std::atomic<bool>* stop = nullptr;
};

// One run of the graph, as reported by the root worker.
struct RunReport {
  std::int64_t first_step = 0;
  std::vector<double> losses;       // by batch: nats per token, averaged over all tokens of the batch
  double gradient_norm = 0;         // before clipping; 0 if not computed
  double seconds = 0;               // first start to last end over the workers of the first replica
  double wall_seconds = 0;          // from the end of the previous run, or the begin of the first, to that of this one
  std::vector<WorkerClock> clocks;  // of the first replica, by pipeline rank; empty unless kept
  bool waited_for_cores = false;    // a worker on a CPU waited for a core for more than kMostCoreWait of the run
};

// One worker, over the whole training run.
struct WorkerReport {
  std::int64_t held_bytes = 0;
  std::int64_t arena_bytes = 0;
  WorkerTimes times;  // of the last run of the graph
};

struct TrainingReport {
  bool began = false;  // the workers were told to begin: an error of one of them is not known to the others
  std::vector<RunReport> runs;
  std::vector<WorkerReport> workers;  // by world rank
  bool interrupted = false;           // stopped on request
  int signal = 0;                     // that requested it, to any of the processes
  std::vector<WorkerClock> broken;    // of a failed run of the graph, as RunReport::clocks; threads only
};

// Called after each run of the graph, on the root worker only.
using RunObserver = std::function<void(const RunReport&)>;

// Called on every worker before its first run (instead of `initialise`), after each run, and when the run is stopped on
// request: checkpoints. May use gather and broadcast of the transport. `is_due` returns whether after_run is called; if
// it is not, the report of a run on devices overlaps with the next run. Empty: it always is.
struct WorkerHooks {
  std::function<void(Worker&, Transport&)> begin;
  std::function<void(Worker&, Transport&, std::int64_t steps_done)> after_run;
  std::function<bool(std::int64_t steps_done)> is_due;
  std::function<void(Worker&, Transport&, std::int64_t steps_done)> at_stop;
};

// Trains with one thread per worker. `report` is filled during the run. Throws DoesNotFit if the arenas need more than
// the memory of the host or a device, and the first failure (RunFailure) after all workers have stopped.
void train_with_threads(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options,
                        TrainingReport& report, const WorkerHooks& hooks = {}, const RunObserver& observer = {});

// Trains as one process of many, over its transport: the report is filled on rank 0. Throws as above; the other
// processes are then in an undefined state, and this process should end without further communication.
void train_as_process(const RunPlan& plan, Transport& transport, const TokenSource& tokens,
                      const TrainingOptions& options, TrainingReport& report, const WorkerHooks& hooks = {},
                      const RunObserver& observer = {});

double learning_rate_of(const RunPlan& plan, const TrainingOptions& options, std::int64_t step);

}  // namespace sluice::exec
