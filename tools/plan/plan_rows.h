#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planner/plan.h"
#include "tools/command/document.h"

namespace sluice::tools {

double gib(std::int64_t bytes);
double tokens_per_device(const PlanPoint& point, const PlanResult& result);
const char* recompute_of(const PlanPoint& point);
std::string dispatcher_of(const Scenario& base, const PlanPoint& point);  // "deepep"
std::string encoder_of(const Scenario& base, const PlanPoint& point);     // "bubbles", or "own-ranks 2"

// Returns the frameworks that run a configuration as it is.
std::vector<std::string_view> runners_of(const Scenario& base, const PlanPoint& point);
// Returns what the prediction of a configuration rests on and frameworks do differently.
std::vector<std::string> assumptions_of(const Scenario& base, const PlanPoint& point);

// Returns the choices of a configuration by name, as in sluice.plan/1.
OrderedJson sizes_json(const Scenario& base, const PlanPoint& point);
// Returns the settings that a plan searched: sizes, "sharding" and "offload" of optimizer states, "layers" per stage,
// "dispatcher" of experts and others.
std::vector<std::string> searched(const Plan& plan);
// Returns a title and words after commas, in lines of at most 120 columns.
std::string filled_words(const std::string& title, const std::vector<std::string>& words);

// Returns a table of the first `top` of a ranking, at most 120 columns wide.
std::string ranking_text(const Plan& plan, const std::vector<int>& ranking, int top);
// Returns all of one row of the ranking, from 1: properties, layout, flags, and how each framework runs it or why it
// does not.
std::string shown_text(const Plan& plan, const std::vector<int>& ranking, int row);

}  // namespace sluice::tools
