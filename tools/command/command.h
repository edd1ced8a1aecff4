#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "model/namespaces.h"
#include "tools/command/exit_codes.h"

namespace sluice::tools {

// A subcommand: its parser, and the work that it does once its arguments are parsed.
struct Subcommand {
  const CLI::App* parser = nullptr;
  std::function<int()> run;  // returns the exit code; throws what `main` reports
};

// Each adds the parser of a subcommand to `app`.
// `arguments` are argv, which a report shows.
Subcommand add_schedules_command(CLI::App& app, std::vector<std::string> arguments);
Subcommand add_schedule_command(CLI::App& app);
Subcommand add_simulate_command(CLI::App& app, std::vector<std::string> arguments);
Subcommand add_models_command(CLI::App& app);
Subcommand add_weave_command(CLI::App& app);
Subcommand add_import_command(CLI::App& app);
Subcommand add_calibrate_command(CLI::App& app);
Subcommand add_profile_command(CLI::App& app);
Subcommand add_profile_like_command(CLI::App& app);  // profile --like, which has the flags of a scenario
Subcommand add_validate_command(CLI::App& app);
Subcommand add_fit_command(CLI::App& app);
Subcommand add_slice_command(CLI::App& app);
Subcommand add_plan_command(CLI::App& app);
Subcommand add_goodput_command(CLI::App& app, const std::vector<std::string>& arguments);
Subcommand add_run_command(CLI::App& app);
Subcommand add_compare_command(CLI::App& app);
Subcommand add_analyze_command(CLI::App& app, const std::vector<std::string>& arguments);  // likewise
Subcommand add_doctor_command(CLI::App& app);
Subcommand add_completion_command(CLI::App& app);

}  // namespace sluice::tools
