#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/run/run_devices.h"
#include "exec/transport/transport.h"
#include "exec/watch/recorder.h"
#include "exec/watch/supervisor.h"

// How workers are watched, in training runs and in measurements.
namespace sluice::exec {

// Plans that the same workers run in turn, with equal layouts, and how the workers are watched.
struct WatchedPlans {
  std::vector<const RunPlan*> plans;  // not empty if the workers are watched
  Supervision supervision;            // without a folder they are not
};

// The workers of a plan by world rank, all in this process.
std::vector<RecorderOwner> owners_of(const RunPlan& plan);

// Records what a worker does outside its steps, and for which worker it waits there.
class ControlRecorder {
 public:
  static constexpr int kNoStep = -1;  // as `last_step`: none has been completed

  // `recorder` may be null.
  ControlRecorder(Transport& transport, Recorder* recorder);
  ~ControlRecorder();
  ControlRecorder(const ControlRecorder&) = delete;
  ControlRecorder& operator=(const ControlRecorder&) = delete;

  void enter(ControlPhase phase, std::int64_t last_step);

 private:
  Transport& transport_;
  Recorder* recorder_;
  ControlPhase phase_ = ControlPhase::start;
  int last_step_ = kNoStep;
};

// Called before any worker begins: throws if this process cannot. `workers_here`: number of workers on this host by
// pipeline rank.
using BeginCheck = std::function<void(const std::vector<RecorderOwner>& owners, const std::vector<int>& workers_here)>;

// Begins to watch the worker of this process, one of many. All processes begin, or none does, because the check of one
// has failed. `watched` outlives the result. Throws RunFailure if another process does not come within the limits, the
// own failure, and on the root the failure of another process, with its rank.
std::unique_ptr<Supervisor> watch_process(const WatchedPlans& watched, Transport& transport, const BeginCheck& check);

// Runs a worker and passes its failure to the supervisor. Returns the failure, or null.
std::exception_ptr run_watched(Supervisor& supervisor, const Transport& transport, const std::function<void()>& work);

// The work of one worker. The supervisor is null if it is not watched.
using WatchedWork = std::function<void(Transport&, const WorkerDevice&, Supervisor*)>;

// Does the work as one process of many, or on one thread per worker of this process. Throws the first failure after all
// workers of this process have ended.
void work_as_process(const WatchedPlans& watched, Transport& transport, const WorkerDevice& device,
                     const WatchedWork& work);
void work_on_threads(const WatchedPlans& watched, int workers, const RunDevices& devices, const WatchedWork& work);

}  // namespace sluice::exec
