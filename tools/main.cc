// The sluice command: parses arguments, runs a subcommand, and reports errors as one line and an exit code.

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "model/errors.h"
#include "model/input/nearest.h"
#include "tools/command/command.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/commands.h"

namespace sluice::tools {
namespace {

int report_error(const std::string& message, int code) {
  print_message(message);
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
      return report_error(fmt::format("{}unknown flag '{}'{}", where, flag, did_you_mean(flag, option_names(command))),
                          kWrongInput);
    }
    if (&command == &app) {
      std::vector<std::string> names;
      for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(each->get_name());
      return report_error(
          fmt::format("unknown command '{}'{} ('sluice --help' lists the commands)", word, did_you_mean(word, names)),
          kWrongInput);
    }
    return report_error(fmt::format("{}unexpected argument '{}'", where, word), kWrongInput);
  }
  if (&command == &app && app.get_subcommands().empty()) {
    return report_error("a command is required ('sluice --help' lists the commands)", kWrongInput);
  }
  return report_error(where + error.what(), kWrongInput);
}

int run(int argc, char** argv) {
  CLI::App app;
  const std::vector<Subcommand> commands = add_all_commands(app, {argv, argv + argc});
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion&) {
    fmt::print("{}\n", app.version());
    return kDone;
  } catch (const CLI::Success&) {  // --help
    fmt::print("{}", app.help());
    return kDone;
  } catch (const CLI::ParseError& error) {
    return wrong_usage(app, error);
  }
  const auto chosen =
      std::find_if(commands.begin(), commands.end(), [](const Subcommand& each) { return each.parser->parsed(); });
  check_outputs(*chosen->parser);
  return chosen->run();
}

}  // namespace
}  // namespace sluice::tools

int main(int argc, char** argv) {
  using namespace sluice::tools;
  open_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of the write
  try {
    const int code = run(argc, argv);
    if (std::fflush(stdout) != 0) return report_error("cannot write to standard output", kWrongInput);
    return code;
  } catch (const DoesNotFit& error) {
    return report_error(error.what(), kNotFeasible);
  } catch (const InputError& error) {
    return report_error(error.what(), kWrongInput);
  } catch (const ScheduleError& error) {
    return report_error(error.what(), kInvalidSchedule);
  } catch (const std::system_error& error) {  // of {fmt}, writing to standard output
    return report_error(error.what(), kWrongInput);
  } catch (const std::bad_alloc&) {
    return report_error("out of memory", kWrongInput);
  } catch (const std::exception& error) {
    return report_error(fmt::format("internal error: {}", error.what()), kInternalError);
  }
}
