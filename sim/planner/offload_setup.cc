#include "sim/planner/offload_setup.h"

#include <algorithm>

#include "model/cost/price.h"
#include "sim/engine/engine.h"
#include "sim/engine/perturbed.h"

namespace sluice::sim {
namespace {

constexpr int kWidestWindow = 4;

Duration last_end(const Setup& setup) {
  Prices prices = price(setup.graph(), setup.cost());
  const Perturbation& perturbation = setup.scenario().perturbation;
  if (perturbation.slows()) slow_down(setup.graph(), perturbation, prices);
  const Timeline timeline = simulate(setup.graph(), prices);
  return *std::max_element(timeline.end.begin(), timeline.end.end());
}

}  // namespace

std::unique_ptr<Setup> offload_setup(const Scenario& scenario, const Schedule* schedule) {
  const auto with_window = [&](int window) {
    Scenario with = scenario;
    with.training.offload_window = window;
    return schedule == nullptr ? std::make_unique<Setup>(with) : std::make_unique<Setup>(with, Schedule(*schedule));
  };
  std::unique_ptr<Setup> free = with_window(0);
  const Duration least = last_end(*free);
  for (int window = 1; window <= kWidestWindow; ++window) {
    std::unique_ptr<Setup> setup = with_window(window);
    if (last_end(*setup) <= least) return setup;
  }
  return free;
}

}  // namespace sluice::sim
