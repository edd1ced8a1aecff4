#include "tools/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

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
                                         "  sluice help simulate");
  command->group("Shell");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto name = std::make_shared<std::string>();
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(each->get_name());
  }
  command->add_option("command", *name, "Command to describe (default: all)")->check(CLI::IsMember(names));
  return {command, [&app, name] {
            const CLI::App& described = name->empty() ? app : *app.get_subcommand(*name);
            fmt::print("{}", help_text(command_tree(described)));
            return kDone;
          }};
}

}  // namespace

std::vector<Subcommand> add_all_commands(CLI::App& app, const std::vector<std::string>& arguments) {
  app.name("sluice");
  app.description(
      "Sluice predicts, plans and runs pipeline-parallel training of large language models.\n\n"
      "Examples:\n"
      "  sluice simulate examples/gpt3-175b-a100.json --gantt --trace timeline.json.gz\n"
      "  sluice plan examples/gpt3-175b-a100.json --schedule megatron\n"
      "  sluice run --schedule zb-h1 --pp 2 --steps 20");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("--version", std::string("sluice ") + kVersion, "Print the version and exit");
  app.require_subcommand(1);
  const bool like = std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--like" || argument.starts_with("--like=");
  });
  std::vector<Subcommand> commands = {add_simulate_command(app, arguments),
                                      add_plan_command(app),
                                      add_slice_command(app),
                                      add_weave_command(app),
                                      add_import_command(app),
                                      add_compare_command(app),
                                      add_analyze_command(app, arguments),
                                      add_schedules_command(app, arguments),
                                      add_schedule_command(app),
                                      add_run_command(app),
                                      like ? add_profile_like_command(app) : add_profile_command(app),
                                      add_fit_command(app),
                                      add_validate_command(app),
                                      add_calibrate_command(app),
                                      add_doctor_command(app),
                                      add_completion_command(app)};
  commands.push_back(add_help_command(app));
  app.footer(  // last, because subcommands inherit it
      "'sluice help <command>' prints the options and examples of a command, 'sluice --help-man' the manual page. "
      "The "
      "documentation is in docs/ of the repository, and in share/doc/sluice/ of an installation.");
  add_man_flag(app);
  return commands;
}

}  // namespace sluice::tools
