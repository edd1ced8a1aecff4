#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "exec/plan/run_plan.h"
#include "exec/run/token_source.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {

// The flags of commands that really run a model on this machine: those of a scenario that a run can have, and those
// that only a run has. What nothing is said about is the small built-in GPT, two ranks and 1F1B.
class RunFlags {
 public:
  // Adds the flags to `command`, and a scenario file as its argument; without --schedule where the command has one of
  // its own. Must outlive the parsing.
  explicit RunFlags(CLI::App& command, bool own_schedule_flag = false);
  ~RunFlags();

  // The file with the flags laid over it, and what is built in where nothing is said. Throws InputError for what a
  // run cannot do. `schedule`, if any, is taken for --schedule; `unsliced`: what is said about slices is for others.
  Scenario scenario(const std::string& schedule = "", bool unsliced = false) const;
  // `kernels` of devices, or null: the CPU. Throws InputError for a precision that it does not compute in.
  RunSpec spec(const Scenario& scenario, const DeviceKernels* kernels = nullptr) const;
  // With so many batches, for families without a flush where the scenario does not say how many.
  Schedule schedule(const Scenario& scenario, int batches) const;
  // --data, or synthetic tokens.
  TokenSource tokens(const RunPlan& plan) const;

  // What was trained on, for a checkpoint to remember: the name of the text's file, or "synthetic".
  std::string data_name() const;

 private:
  struct Values;
  std::unique_ptr<Values> values_;
};

// The model that runs where none is asked for: 4 layers of 128, 4 heads, bytes as tokens; 0.86 million parameters.
inline constexpr const char* kBuiltInModel = "built-in GPT";

}  // namespace sluice::tools
