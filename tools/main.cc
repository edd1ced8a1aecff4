// The sluice command: parses, dispatches, and turns every error into one line and an exit code.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/input/nearest.h"
#include "tools/command/command.h"
#include "tools/command/command_tree.h"
#include "tools/command/version.h"

namespace sluice::tools {
namespace {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

int complain(const std::string& message, int code) {
  fmt::print(stderr, "sluice: {}\n", one_line(message));
  return code;
}

const CLI::App& active(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : *chosen.front();
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

int wrong_usage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = active(app);
  const std::string where = &command == &app ? "" : command.get_name() + ": ";
  for (const std::string& word : command.remaining()) {
    const std::string flag = word.substr(0, word.find('='));
    if (flag.starts_with("-")) {
      return complain(fmt::format("{}there is no flag '{}'{}", where, flag, did_you_mean(flag, option_names(command))),
                      kWrongInput);
    }
    if (&command == &app) {
      std::vector<std::string> names;
      for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(each->get_name());
      return complain(
          fmt::format("there is no command '{}'{} ('sluice --help' lists them)", word, did_you_mean(word, names)),
          kWrongInput);
    }
    return complain(fmt::format("{}did not expect '{}'", where, word), kWrongInput);
  }
  return complain(where + error.what(), kWrongInput);
}

int run(int argc, char** argv) {
  CLI::App app{
      "Sluice predicts what a pipeline-parallel training iteration costs, and finds a better way to run it.\n\n"
      "Examples:\n"
      "  sluice simulate examples/gpt3-175b-a100.json --gantt --trace timeline.json.gz\n"
      "  sluice simulate --schedule zb-h1 --pp 4 --microbatches 8 --uniform f=1,b=1,w=1 --json\n"
      "  sluice plan examples/gpt3-175b-a100.json --schedule megatron\n"
      "  sluice schedules"};
  app.name("sluice");
  app.set_version_flag("--version", std::string("sluice ") + kVersion);
  app.require_subcommand(1);
  app.get_formatter()->column_width(44);
  const Subcommand commands[] = {
      add_schedules_command(app), add_schedule_command(app), add_simulate_command(app, {argv, argv + argc}),
      add_calibrate_command(app), add_profile_command(app),  add_validate_command(app),
      add_fit_command(app),       add_slice_command(app),    add_plan_command(app),
      add_run_command(app),       add_compare_command(app),  add_doctor_command(app),
      add_completion_command(app)};
  add_man_flag(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return wrong_usage(app, error);
  }
  const auto chosen = std::find_if(std::begin(commands), std::end(commands),
                                   [](const Subcommand& each) { return each.parser->parsed(); });
  return chosen->run();
}

}  // namespace
}  // namespace sluice::tools

int main(int argc, char** argv) {
  using namespace sluice::tools;
  try {
    const int code = run(argc, argv);
    if (std::fflush(stdout) != 0) return complain("cannot write to standard output", kWrongInput);
    return code;
  } catch (const DoesNotFit& error) {
    return complain(error.what(), kAnswerIsNo);
  } catch (const InputError& error) {
    return complain(error.what(), kWrongInput);
  } catch (const ScheduleError& error) {
    return complain(error.what(), kInvalidSchedule);
  } catch (const std::bad_alloc&) {
    return complain("out of memory: ask for fewer ops, or a trace of fewer ranks", kWrongInput);
  } catch (const std::exception& error) {
    return complain(fmt::format("internal error: {}", error.what()), kOurFault);
  }
}
