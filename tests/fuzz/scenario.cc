#include "model/scenario/scenario.h"

#include <algorithm>

#include "model/input/json_reader.h"
#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "tests/fuzz/targets.h"

namespace sluice::test::fuzz {
namespace {

// Large scenarios take long by design. Unspecified chunks and batches are the family's default, at most 4.
bool small(const Scenario& scenario) {
  const double ranks = std::max(1, scenario.training.pp);
  const double chunks = scenario.chunks == 0 ? 4 : scenario.chunks;
  const double batches = scenario.batches == 0 ? 4 : scenario.batches;
  const double trials = std::max(1, scenario.perturbation.trials);
  return ranks * chunks * batches * trials * scenario.microbatches * scenario.shape.num_slices() < 4096;
}

}  // namespace

void try_scenario(std::string_view text) {
  accepts([&] {
    // Relative to examples/, so that a scenario can use its models.
    const Scenario scenario = scenario_from_json(parse_json(text, "input"), "input", SLUICE_SOURCE_DIR "/examples");
    if (names_file(scenario.schedule) || !small(scenario)) return;
    const Setup setup(scenario);
    const Prediction prediction = predict(setup, {.keep_memory = true});
    require(prediction.metrics.makespan >= prediction.metrics.ideal, "a makespan below the work of the busiest rank");
    for (const RankMemory& memory : prediction.memory) require(memory.peak_bytes >= 0, "a negative peak of memory");
  });
}

}  // namespace sluice::test::fuzz
