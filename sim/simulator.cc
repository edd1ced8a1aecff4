#include "sim/simulator.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_setup.h"

namespace sluice::sim {

struct Simulator::Parts {
  std::unique_ptr<Setup> setup;
};

Scenario read_scenario(const std::string& path) {
  return scenario_from_json(parse_json(read_file(path), path), path,
                            std::filesystem::path(path).parent_path().string());
}

Scenario parse_scenario(std::string_view text, const std::string& folder) {
  return scenario_from_json(parse_json(text, "scenario"), "scenario", folder);
}

Simulator::Simulator(const Scenario& scenario) : parts_(new Parts{planned_setup(scenario).setup}) {}
Simulator::Simulator(const Scenario& scenario, Schedule schedule)
    : parts_(new Parts{std::make_unique<Setup>(scenario, std::move(schedule))}) {}
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;
Simulator::~Simulator() = default;

const Scenario& Simulator::scenario() const { return parts_->setup->scenario(); }
const Schedule& Simulator::schedule() const { return parts_->setup->schedule(); }
const OpGraph& Simulator::graph() const { return parts_->setup->graph(); }

Prediction Simulator::predict(const PredictOptions& options) const { return sim::predict(*parts_->setup, options); }

}  // namespace sluice::sim
