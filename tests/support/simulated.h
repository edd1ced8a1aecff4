#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "model/cost/price.h"
#include "model/cost/uniform.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/timeline/timeline.h"
#include "sim/engine/engine.h"

namespace sluice::test {

// A schedule, its graph and its predicted timeline under uniform costs.
struct Simulated {
  std::unique_ptr<Schedule> schedule;
  OpGraph graph;
  Timeline timeline;
};

inline Simulated simulated(Schedule made, std::string_view uniform = "f=1,b=1,w=1",
                           const LoweringOptions& options = {}) {
  auto schedule = std::make_unique<Schedule>(std::move(made));
  OpGraph graph = lower(*schedule, options);
  Timeline timeline = simulate(graph, price(graph, UniformCost(parse_uniform(uniform), *schedule)));
  return {std::move(schedule), std::move(graph), std::move(timeline)};
}

inline Simulated simulated(std::string_view family, const FamilyParams& params,
                           std::string_view uniform = "f=1,b=1,w=1", const LoweringOptions& options = {}) {
  return simulated(make_schedule(find_family(family), params), uniform, options);
}

}  // namespace sluice::test
