#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/scenario/setup.h"
#include "sim/engine/prediction.h"

namespace sluice::sim {

// Device memory that a rank with this peak needs, including allocator overhead and reserved memory.
std::int64_t needed_bytes(const Gpu& gpu, std::int64_t peak_bytes);

// Fit of the rank with the highest memory use. `memory` has one entry per rank.
Fit fit_of(const Cluster& cluster, const std::vector<RankMemory>& memory);

// Throughput of one batch of `sequences` over all replicas that takes `seconds`. `stages` as split for the schedule.
Throughput throughput_of(const Scenario& scenario, const std::vector<StageContents>& stages, double sequences,
                         double seconds);

// Returns a remark if `mfu` is above the fraction of the peak that the GPU's GEMMs sustain: either since MFU counts
// attention as the full square, or because the predicted time is impossible; "" if it is not above.
std::string mfu_remark(const Scenario& scenario, double mfu);

// Simulates the priced graph and measures its timeline: everything but the period and what `complete` adds.
Prediction measured(const Setup& setup, const PredictOptions& options);
// Measures a timeline of the graph that is simulated already.
Prediction measured(const Setup& setup, Prices prices, Timeline timeline, const PredictOptions& options = {});
// Adds the iteration time, the throughput and the fit, which follow from the makespan, the period and the memory.
void complete(const Setup& setup, Prediction& prediction);

// Prices the graph, applies the scenario's slow ranks and links, simulates and measures the timeline, and runs the
// jitter trials. Throws InputError.
Prediction predict(const Setup& setup, const PredictOptions& options = {});

}  // namespace sluice::sim
