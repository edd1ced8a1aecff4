#include "tools/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tools/command/help.h"
#include "tools/command/version.h"
#include "tools/completion/completion.h"

namespace sluice::tools {

namespace {

// Prints the help of a command, or of all.
Subcommand add_help_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("help",
                                         "Print the help of a command, or the list of commands.\n\n"
                                         "Examples:\n"
                                         "  sluice help simulate\n"
                                         "  sluice help settings        # the keys of scenario files, as in "
                                         "docs/formats.md");
  command->group("Shell");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto name = std::make_shared<std::string>();
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(each->get_name());
  }
  names.emplace_back("settings");
  command->add_option("command", *name, "Command to describe, or settings (default: all commands)")
      ->check(CLI::IsMember(names));
  return {command, [&app, name] {
            if (*name == "settings") {
              fmt::print("{}", settings_table());
              return kDone;
            }
            const CLI::App& described = name->empty() ? app : *app.get_subcommand(*name);
            fmt::print("{}", help_text(command_tree(described), false));
            return kDone;
          }};
}

}  // namespace

std::vector<Subcommand> add_commands(CLI::App& app, const std::vector<std::string>& arguments) {
  app.name("sluice");
  app.description(
      "Sluice predicts, plans and runs pipeline-parallel training of large language models.\n\n"
      "Examples:\n"
      "  sluice simulate examples/gpt3-175b-a100.json --gantt --trace timeline.json.gz\n"
      "  sluice plan examples/gpt3-175b-a100.json --schedule megatron\n"
      "  sluice run --schedule zb-h1 --pp 2 --steps 20");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_help_all_flag("--help-all", "Print all options and exit");
  app.set_version_flag("--version", std::string("sluice ") + kVersion, "Print the version and exit");
  app.require_subcommand(1);
  const auto has = [&](std::string_view word) {
    return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
  };
  const bool like = std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--like" || argument.starts_with("--like=");
  });
  struct Row {
    const char* name;
    const char* group;
    const char* summary;  // the first sentence of the description
    std::function<Subcommand()> add;
  };
  constexpr const char* kPredict = "Predict and plan";
  constexpr const char* kMeasure = "Run and measure";
  const Row rows[] = {
      {"simulate", kPredict, "Predict the time, bubbles and memory of one training iteration",
       [&] { return add_simulate_command(app, arguments); }},
      {"plan", kPredict, "Search for the fastest parallel sizes, schedules, recomputation and placement",
       [&] { return add_plan_command(app); }},
      {"goodput", kPredict, "Simulate a whole training run with failures, checkpoints and recoveries",
       [&] { return add_goodput_command(app, arguments); }},
      {"slice", kPredict, "Find the fastest way to cut sequences into slices for a pipeline or a schedule",
       [&] { return add_slice_command(app); }},
      {"weave", kPredict, "Print how the parts of a forward and a backward with experts interleave",
       [&] { return add_weave_command(app); }},
      {"models", kPredict, "List the models of the catalogue, or describe models: layers, blocks and parameters",
       [&] { return add_models_command(app); }},
      {"import", kPredict, "Write the configuration of another framework as a scenario file",
       [&] { return add_import_command(app); }},
      {"compare", kPredict, "Compare two timelines op by op, such as a prediction and a measurement",
       [&] { return add_compare_command(app); }},
      {"analyze", kPredict, "Find out why measured training steps were slow",
       [&] { return add_analyze_command(app, arguments); }},
      {"schedules", "Schedules", "List the schedule families, with their parameters, purpose and source",
       [&] { return add_schedules_command(app, arguments); }},
      {"schedule", "Schedules", "Generate a schedule or read one from a file, check it, and write it as JSON or CSV",
       [&] { return add_schedule_command(app); }},
      {"run", kMeasure, "Train a model on this machine with the given schedule", [&] { return add_run_command(app); }},
      {"profile", kMeasure, "Measure the op times of a model on this machine",
       [&] { return like ? add_profile_like_command(app) : add_profile_command(app); }},
      {"fit", kMeasure, "Fit a cost file to a profile of measured op times", [&] { return add_fit_command(app); }},
      {"validate", kMeasure, "Predict and run schedules on this machine, and compare the times and memory",
       [&] { return add_validate_command(app); }},
      {"calibrate", kMeasure, "Fit the analytic cost model to measured iterations, kernels or collectives",
       [&] { return add_calibrate_command(app); }},
      {"doctor", kMeasure, "Report the hardware, libraries and launcher variables of this machine",
       [&] { return add_doctor_command(app); }},
      {"completion", "Shell", "Print a script that completes sluice commands and options in a shell",
       [&] { return add_completion_command(app); }},
      {"help", "Shell", "Print the help of a command, or the list of commands", [&] { return add_help_command(app); }}};
  const bool all = has("completion") || has("--help-man");
  std::vector<Subcommand> commands;
  for (const Row& row : rows) {
    if (all || has(row.name)) {
      commands.push_back(row.add());
    } else {
      app.add_subcommand(row.name, row.summary)->group(row.group);
    }
  }
  app.footer(  // last, because subcommands inherit it
      "'sluice help <command>' prints the options and examples of a command, 'sluice --help-man' the manual page. "
      "The "
      "documentation is in docs/ of the repository, and in share/doc/sluice/ of an installation.");
  add_man_flag(app);
  return commands;
}

}  // namespace sluice::tools
