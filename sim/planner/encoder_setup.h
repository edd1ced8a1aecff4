#pragma once

#include <cstdint>
#include <memory>

#include "model/scenario/setup.h"
#include "model/units.h"

namespace sluice::sim {

using namespace model;  // NOLINT(google-build-using-namespace)

// What became of an encoder that runs where ranks wait for the language model.
struct EncoderRun {
  Duration in_phases{};        // makespan with all forwards of the encoder first and its backwards last
  Duration makespan{};         // with the order that was found
  std::int64_t schedules = 0;  // simulated
};

// Returns the setup of a scenario whose encoder is in bubbles. The order of the language model's ops stays. Forwards of
// the encoder take the earliest time at which a rank waits, backwards the latest, on the rank of the forward; where
// none is in time, all ranks pause for one and encode. Where that does not fit in the memory of the device,
// microbatches are encoded fewer ahead. A search then moves microbatches to other ranks and ops in lists, for some
// seconds at most. If the result does not fit, phases do not either, and otherwise it is at least as fast. Equal seeds
// give equal results. Without `search` it ends before it. Throws as Setup; InputError for documents, joint blocks,
// queues of communicators or offloaded activations.
std::unique_ptr<Setup> encoder_setup(const Scenario& scenario, EncoderRun& run, bool search = true);

}  // namespace sluice::sim
