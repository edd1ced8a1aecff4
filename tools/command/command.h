#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::tools {

// Exit codes of the command line (docs/architecture.md).
enum ExitCode : int {
  kDone = 0,
  kOurFault = 1,
  kWrongInput = 2,
  kAnswerIsNo = 3,
  kInvalidSchedule = 4,
  kOutsideTolerance = 5,
  kWorkerLost = 6,        // the process of a worker died
  kRunStuck = 7,          // an op is past its deadline, or ranks wait for what will not come
  kNotFinite = 8,         // an op made a number that is not finite
  kStoppedByAnother = 9,  // another process's worker failed, which says why
  kInterrupted = 130,
};

// A subcommand: its parser, and the work that it does once its arguments are parsed.
struct Subcommand {
  const CLI::App* parser = nullptr;
  std::function<int()> run;  // returns the exit code; throws what `main` reports
};

// Each adds the parser of one subcommand to `app`.
Subcommand add_schedules_command(CLI::App& app);
Subcommand add_schedule_command(CLI::App& app);
// `arguments` are argv, which a report shows.
Subcommand add_simulate_command(CLI::App& app, std::vector<std::string> arguments);
Subcommand add_calibrate_command(CLI::App& app);
Subcommand add_profile_command(CLI::App& app);
Subcommand add_validate_command(CLI::App& app);
Subcommand add_fit_command(CLI::App& app);
Subcommand add_slice_command(CLI::App& app);
Subcommand add_plan_command(CLI::App& app);
Subcommand add_run_command(CLI::App& app);
Subcommand add_compare_command(CLI::App& app);
Subcommand add_doctor_command(CLI::App& app);
Subcommand add_completion_command(CLI::App& app);

}  // namespace sluice::tools
