#pragma once

#include <CLI/CLI.hpp>
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

// Each adds one subcommand to `app`; its callback writes the exit code to `exit_code`, or throws.
void add_schedules_command(CLI::App& app, int& exit_code);
void add_schedule_command(CLI::App& app, int& exit_code);
// `arguments` are the command's words, for a report to show.
void add_simulate_command(CLI::App& app, int& exit_code, std::vector<std::string> arguments);
void add_calibrate_command(CLI::App& app, int& exit_code);
void add_profile_command(CLI::App& app, int& exit_code);
void add_validate_command(CLI::App& app, int& exit_code);
void add_fit_command(CLI::App& app, int& exit_code);
void add_slice_command(CLI::App& app, int& exit_code);
void add_plan_command(CLI::App& app, int& exit_code);
void add_run_command(CLI::App& app, int& exit_code);
void add_compare_command(CLI::App& app, int& exit_code);
void add_doctor_command(CLI::App& app, int& exit_code);
void add_completion_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
