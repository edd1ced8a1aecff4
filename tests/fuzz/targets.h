#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "model/errors.h"

namespace sluice::test::fuzz {

// Each target parses arbitrary text with one parser and processes the result. Rejection by InputError or ScheduleError
// is correct; any other exception, crash or sanitizer report is a bug.
void try_scenario(std::string_view text);       // small scenarios are also simulated
void try_schedule_json(std::string_view text);  // also lowered, and written back
void try_schedule_csv(std::string_view text);   // also lowered, and written back
void try_model(std::string_view text);          // config.json or Megatron-LM's names; parameters, FLOPs, stages
void try_cost_table(std::string_view text);     // also evaluated, and written back
void try_profile(std::string_view text);        // also fitted, and the fit written and read
void try_slice_times(std::string_view text);    // also sliced, if small
void try_cluster(std::string_view text);        // a cluster or node file
void try_catalogue(std::string_view text);      // a catalogue file: node, GPU or link
void try_checkpoint(std::string_view text);     // also reads its tensors
void try_fault(std::string_view text);          // the value of --fault
void try_recorder(std::string_view text);       // a flight recorder, damaged as the text says
void try_flags(std::string_view text);          // a line of flags of a scenario, and the scenario file that they change
void try_trace(std::string_view text);          // a trace of Sluice or Kineto; also compared with itself
void try_kineto(std::string_view text);         // a folder of Kineto traces, separated by lines of "---"
void try_measured_steps(std::string_view text);  // a timeline of ByteDance's; also replayed and analysed
void try_kernels(std::string_view text);         // like try_kineto, as kernels; also matched and replayed
void try_gzip(std::string_view text);            // decompressed; also compressed and decompressed
void try_measured_table(std::string_view text);  // measured iterations, kernels or collectives (CSV)
void try_megatron_log(std::string_view text);    // also compared with a scenario
void try_calibration(std::string_view text);     // a calibration file; also applied, and written back
void try_software(std::string_view text);        // a framework file; also used by a prediction
void try_import(std::string_view text);          // a script, dump or line of another framework; the scenario is read

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
    Target{"recorder", try_recorder},
    Target{"flags", try_flags},
    Target{"trace", try_trace},
    Target{"kineto", try_kineto},
    Target{"measured_steps", try_measured_steps},
    Target{"kernels", try_kernels},
    Target{"gzip", try_gzip},
    Target{"measured_table", try_measured_table},
    Target{"megatron_log", try_megatron_log},
    Target{"calibration", try_calibration},
    Target{"software", try_software},
    Target{"import", try_import},
};

// Throws std::logic_error unless an invariant holds.
inline void require(bool holds, const std::string& rule) {
  if (!holds) throw std::logic_error(rule);
}

// Runs `call`. Returns false if it rejected its input with a proper error.
template <typename Call>
bool accepts(const Call& call) {
  try {
    call();
    return true;
  } catch (const InputError& error) {
    require(*error.what() != '\0', "an InputError without a message");
  } catch (const ScheduleError& error) {
    require(*error.what() != '\0', "a ScheduleError without a message");
  }
  return false;
}

}  // namespace sluice::test::fuzz
