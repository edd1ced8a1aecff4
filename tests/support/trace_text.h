#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/timeline/memory.h"
#include "tests/support/simulated.h"
#include "traces/chrome/chrome_trace.h"

namespace sluice::test {

inline std::string trace_of(const Simulated& run, const TraceOptions& options = {},
                            const std::vector<RankMemory>& memory = {}) {
  std::string text;
  write_chrome_trace([&text](std::string_view bytes) { text.append(bytes); }, run.graph, run.timeline, memory, options);
  return text;
}

// Returns the events of a trace with this phase.
inline std::vector<nlohmann::json> events_of(const std::string& trace, const std::string& phase) {
  std::vector<nlohmann::json> events;
  const auto parsed = nlohmann::json::parse(trace);
  for (const auto& event : parsed.at("traceEvents")) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

// Returns the only slice of a process with this name.
inline nlohmann::json slice_of(const std::string& trace, int pid, const std::string& name) {
  nlohmann::json found;
  for (const auto& event : events_of(trace, "X")) {
    if (event.at("pid") != pid || event.at("name") != name) continue;
    if (!found.is_null()) return "several " + name;
    found = event;
  }
  return found;
}

// A footprint in which all byte counts differ, to detect mix-ups.
class SmallFootprint : public Footprint {
 public:
  StageBytes stage(int stage) const override {
    return {.weights = 1000 + stage, .gradients = 2000, .optimizer = 3000, .reduced = 400 + stage, .gathered = 500};
  }
  SliceBytes slice(int, const MicrobatchShape&, int) const override {
    return {.activations_to_input_gradient = 10,
            .activations_to_weight_gradient = 20,
            .gradients_to_weight_gradient = 5,
            .keys_values = 3,
            .transfer_forward = 7,
            .transfer_backward = 8};
  }
};

}  // namespace sluice::test
