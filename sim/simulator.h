// Public header.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "model/graph/op_graph.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"
#include "sim/engine/prediction.h"

namespace sluice::sim {

// Reads a scenario file ("sluice.scenario/1", docs/formats.md). Relative paths in it are resolved against the file's
// folder. Throws InputError with the file, the JSON pointer, what was expected and what was found.
Scenario read_scenario(const std::string& path);

// Parses the JSON text of a scenario. Relative paths in it are resolved against `folder`. Throws InputError.
Scenario parse_scenario(std::string_view text, const std::string& folder = ".");

// Predicts the time and memory of one training iteration.
//
//   const Scenario scenario = read_scenario("gpt3-175b.json");
//   const Simulator simulator(scenario);
//   const Prediction prediction = simulator.predict();
//   std::printf("%g s\n", prediction.iteration_s());
//
// The const functions may be called from several threads concurrently.
class Simulator {
 public:
  // Builds the scenario's schedule and its graph. The schedule "auto" is searched for here, which takes up to the
  // scenario's time budget. Throws InputError for an inconsistent scenario, ScheduleError for a schedule that
  // deadlocks, and DoesNotFit if no automatic schedule fits in memory.
  explicit Simulator(const Scenario& scenario);

  // Uses `schedule` instead of the one that the scenario names. Its numbers of ranks and microbatches and its shapes
  // replace those of the scenario. Throws InputError and ScheduleError as above.
  Simulator(const Scenario& scenario, Schedule schedule);

  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;
  ~Simulator();

  const Scenario& scenario() const;
  const Schedule& schedule() const;
  // The lowered graph. Timeline and Prices of a prediction are indexed by its vertices and lanes.
  const OpGraph& graph() const;

  // Throws InputError for times that are out of range.
  Prediction predict(const PredictOptions& options = {}) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace sluice::sim
