#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/scenario/scenario.h"
#include "model/scenario/settings.h"
#include "model/schedule/schedule.h"
#include "tools/command/document.h"

namespace sluice::tools {

// What a prediction rests on that was not specified.
struct Assumption {
  std::string setting;    // path of its key, or what it is: "network"
  std::string_view name;  // of the setting in text
  std::string value;
  std::string source;        // catalogue entry or document
  std::string_view heading;  // of the settings that stand on one line
};

// A predicted scenario, and the document that specifies it. Refers to both.
struct PredictedScenario {
  const Scenario& scenario;
  const nlohmann::json& document;
  Commands reader = kSimulate;
  bool joint = false;  // its schedule has joint blocks
};

// Returns whether a schedule has joint blocks.
bool has_joint_blocks(const Schedule& schedule);

// Returns what a prediction with the analytic cost model rests on: the settings that its command reads, that its
// document does not set and that have an effect in its scenario (by the conditions of their rows), and from the
// catalogue the network, the attention kernel and the clock under power. With given times, the times that are not
// given.
std::vector<Assumption> assumptions_of(const PredictedScenario& of);

// Returns what is not modeled in this scenario.
std::vector<std::string> not_modeled(const Scenario& scenario);

// Appends them to the JSON document of a prediction: `assumptions`, with setting, value and source, and `not_modeled`.
void add_assumptions(OrderedJson& results, const PredictedScenario& of);
void add_assumptions(OrderedJson& results, const std::vector<Assumption>& assumed,
                     const std::vector<std::string>& not_modeled);

// Returns at most six lines about both, no wider than kAssumptionColumns; "" without assumptions.
inline constexpr std::size_t kAssumptionColumns = 120;
std::string assumptions_text(const PredictedScenario& of);

// Appends them to the JSON document of an output and to its text.
void add_assumptions(OrderedJson& results, std::string& text, const PredictedScenario& of);

}  // namespace sluice::tools
