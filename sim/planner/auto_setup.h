#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "model/scenario/setup.h"
#include "sim/planner/auto_schedule.h"
#include "sim/planner/batch_setup.h"
#include "sim/planner/encoder_setup.h"

namespace sluice::sim {

// Returns the setup of a scenario that offloads activations, of its own schedule or of this one. Forwards wait for the
// copies of as few forwards before them (OffloadOptions::window) as does not lengthen the iteration. Throws as Setup.
std::unique_ptr<Setup> offload_setup(const Scenario& scenario, const Schedule* schedule = nullptr);

// A scenario ready to simulate and, for an automatic schedule, the result of its search.
struct PlannedSetup {
  std::unique_ptr<Setup> setup;
  std::optional<AutoResult> automatic;
  std::optional<BatchRun> batch;      // of documents: the setup is that of the slowest replica
  std::optional<EncoderRun> encoder;  // in bubbles
};

// Returns Setup(scenario) for any schedule but an automatic one. An automatic schedule is searched for with the
// scenario's prices, including slow ranks and links, and its memory. Candidates are simulated with collectives,
// optimizer steps and shared links, and their memory includes receive buffers. A cap in bytes is that of the device,
// from which reserved memory and allocator overhead are subtracted. The seed is the scenario's. `progress` is called
// with the elapsed seconds and the best makespan. With documents, orders are searched for microbatches of the mean
// number of tokens, candidates are those that are the fastest with the documents, and the lower bound is the compute
// time of the busiest rank. The search ignores the queues of communicators and offloaded activations, for which
// offload_setup chooses the window. A search that `stop` ends has the best result so far. Throws as Setup does,
// InputError for inconsistent options, DoesNotFit if no schedule fits.
PlannedSetup planned_setup(const Scenario& scenario, const std::function<void(double, Duration)>& progress = {},
                           const std::atomic<bool>* stop = nullptr);

}  // namespace sluice::sim
