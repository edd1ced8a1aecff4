#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "model/errors.h"

namespace sluice::test::fuzz {

// Each takes any text through one parser, and what the parser made of it a step further. Being refused with InputError
// or ScheduleError is a good end; another exception, a crash or a sanitizer's complaint is a find.
void try_scenario(std::string_view text);       // what is small is also simulated
void try_schedule_json(std::string_view text);  // lowered, and written back
void try_schedule_csv(std::string_view text);   // the same
void try_model(std::string_view text);          // config.json or Megatron's names: parameters, FLOPs, stages
void try_cost_table(std::string_view text);     // evaluated, and written back
void try_profile(std::string_view text);        // fitted, and the fit written and read
void try_slice_times(std::string_view text);    // cut, where it is small
void try_cluster(std::string_view text);        // a cluster file, or a node's
void try_catalogue(std::string_view text);      // a file of the catalogue: node, GPU or link
void try_checkpoint(std::string_view text);     // and its tensors read
void try_fault(std::string_view text);          // of the flag
void try_trace(std::string_view text);          // ours or Kineto's: compared with itself, and drawn beside itself

struct Target {
  std::string_view name;
  void (*run)(std::string_view text);
};

inline constexpr std::array kTargets = {
    Target{"scenario", try_scenario},
    Target{"schedule_json", try_schedule_json},
    Target{"schedule_csv", try_schedule_csv},
    Target{"model", try_model},
    Target{"cost_table", try_cost_table},
    Target{"cluster", try_cluster},
    Target{"catalogue", try_catalogue},
    Target{"profile", try_profile},
    Target{"slice_times", try_slice_times},
    Target{"checkpoint", try_checkpoint},
    Target{"fault", try_fault},
    Target{"trace", try_trace},
};

// What no input may break.
inline void require(bool holds, const std::string& rule) {
  if (!holds) throw std::logic_error(rule);
}

// Runs `call`; false if it refused its input as it should, with a reason.
template <typename Call>
bool accepts(const Call& call) {
  try {
    call();
    return true;
  } catch (const InputError& error) {
    require(*error.what() != '\0', "an InputError without a reason");
  } catch (const ScheduleError& error) {
    require(*error.what() != '\0', "a ScheduleError without a reason");
  }
  return false;
}

}  // namespace sluice::test::fuzz
