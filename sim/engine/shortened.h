#pragma once

#include <memory>
#include <optional>

#include "model/scenario/setup.h"
#include "sim/engine/prediction.h"

namespace sluice::sim {

// The prediction of a scenario from a shortened schedule.
struct ShortenedPrediction {
  std::unique_ptr<Setup> setup;  // of the shortened schedule; its scenario is the whole one
  Prediction prediction;         // with a `repetition`
};

// Predicts a scenario from two shortened schedules, in a time that does not depend on its number of microbatches. Every
// result equals that of `predict`, which simulates the whole schedule: SteadyState proves that of the first, and the
// second, which has one part more, shows what every further part adds. For a schedule of phases (phases.h) one of them
// is enough. Returns nothing if there is no proof, or less than nine tenths of the schedule would be left out: for
// schedules that are searched for, read from a file, or without a flush, with slow ranks or links, jitter, links that
// share resources, or measured kernels, and where an input is invalid.
std::optional<ShortenedPrediction> predict_shortened(const Scenario& scenario);

}  // namespace sluice::sim
