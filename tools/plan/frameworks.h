#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/planner/plan_space.h"

namespace sluice::tools {

// A training framework: which of the modeled configurations it runs as they are, and how it is configured for one.
struct Framework {
  std::string_view name;   // of --runs-on
  std::string_view title;  // as people write it
  // Returns what it does not have of a model; "" if it has all.
  std::string (*lacks)(const Model& model);
  // Returns the reason why it does not run a configuration of a model that it has; "" if it does.
  std::string (*refusal_of_point)(const Scenario& base, const PlanPoint& point);
  // Returns its command line or configuration file in full.
  std::string (*configuration)(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

  // Returns the reason why it does not run a configuration of any model; "" if it does.
  std::string refusal(const Scenario& base, const PlanPoint& point) const {
    const std::string what = lacks(*base.model);
    return what.empty() ? refusal_of_point(base, point) : what + " is not printed for it";
  }
};

std::span<const Framework> all_frameworks();
// Throws InputError for an unknown name; null for "any".
const Framework* find_framework(const std::string& name);

// Restricts a space to what the framework runs, and sets its loss in the base (torchtitan). Throws InputError naming
// the flag of a value that is asked for, or the property of the scenario, that it does not run.
void restrict_to(const Framework& framework, Scenario& base, PlanSpace& space);

}  // namespace sluice::tools
