#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/measure/profiling.h"
#include "exec/plan/run_plan.h"
#include "exec/run/token_source.h"
#include "model/cost/profile.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"
#include "tools/command/assumptions.h"
#include "tools/command/scenario_flags.h"
#include "tools/run/run_place.h"

namespace sluice::tools {

// The flags that select what a profile measures.
struct ProfilingFlags {
  std::vector<std::int64_t> tokens;    // --tokens; empty: profile_grid of the sequence length
  std::vector<std::int64_t> contexts;  // --contexts
  double time_budget_s = 10;

  void add_to(CLI::App& command);
};

// Returns what to measure for `plans`, which differ only in their schedules: a grid over the sequence, and the slices
// of the schedules. Throws InputError for microbatches of several sizes, or lengths beyond the sequence. `tokens` of
// the run outlive the measurement.
ProfilingSpec profiling_spec(std::span<const RunPlan* const> plans, const ProfilingFlags& flags, const RunPlace& place,
                             const TokenSource& tokens);

// Measures a profile with one thread per worker of the layout, or with the processes of a launcher; then the result is
// complete on the first process. Shows the progress on a terminal. `plan` is the one of the layout, and `supervision`
// how its workers are watched.
Profile measured_profile(const ProfilingSpec& spec, const RunPlan& plan, const RunPlace& place,
                         const Supervision& supervision);

// The flags of commands that run a model on this machine: the scenario flags that apply to a run, and flags of their
// own. The default is the small built-in GPT on two ranks, with 1F1B.
class RunFlags {
 public:
  // Adds the flags and a scenario file operand to `command`, without --schedule if the command defines its own. Must
  // outlive the parsing.
  // Adds the scenario flags except `without`, and those of training.
  explicit RunFlags(CLI::App& command, std::initializer_list<std::string_view> without = {});
  ~RunFlags();

  // Returns the file overridden by the flags, with defaults for what is missing. A non-empty `schedule` replaces
  // --schedule; `unsliced` removes the keys about slices. Throws InputError for features that a run does not support.
  Scenario scenario(const std::string& schedule = "", bool unsliced = false) const;
  // Returns what the last scenario() took for keys that are not given.
  const std::vector<Assumption>& assumed() const;
  // Calls `work` and changes the message of its InputError to name the flag that set the value (ScenarioFlags).
  int naming_flags(const std::function<int()>& work) const;
  // Prints one line on standard error with the sections of the file that `command` does not use, if it has any.
  void print_ignored(std::string_view command) const;
  // Prints one line on standard error if a weave is given, but no block of the plan is woven, with the reason.
  void print_weave_note(const RunPlan& plan) const;
  // Throws InputError for a precision that the backend does not support.
  RunSpec spec(const Scenario& scenario, const RunPlace& place) const;
  // `batches` is the number of batches for families without a flush, unless the scenario specifies it.
  Schedule schedule(const Scenario& scenario, int batches) const;
  // The same for each replica that has documents of its own, or for all.
  std::vector<Schedule> schedules(const Scenario& scenario, int batches) const;
  // Returns the tokens of --data, or synthetic ones.
  TokenSource tokens(const RunPlan& plan) const;

  // Returns the name of the data for checkpoints: the name of the text file, or "synthetic".
  std::string data_name() const;

 private:
  struct Values;
  std::unique_ptr<Values> values_;
};

// The default model: 4 layers, hidden size 128, 4 heads, bytes as tokens; 0.86 million parameters.
inline constexpr const char* kBuiltInModel = "built-in GPT";

// Returns a sentence that advises a value of OPENBLAS_CORETYPE (kernels/cpu/gemm.h).
std::string blas_advice(const std::string& coretype);

}  // namespace sluice::tools
