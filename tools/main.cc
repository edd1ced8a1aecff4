// The sluice command: parses arguments, runs a subcommand, and reports errors as one line and an exit code.

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <regex>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "model/errors.h"
#include "model/input/nearest.h"
#include "model/input/printable.h"
#include "model/to_size.h"
#include "tools/command/command.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/commands.h"

namespace sluice::tools {
namespace {

// Values in the message may have line breaks.
int report_error(const std::string& message, int code) {
  print_message(model::printable(message, true));
  return code;
}

int report_full_output(const std::string& reason) {
  return report_error("cannot write to standard output" + (reason.empty() ? "" : ": " + reason), kWrongInput);
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

// Returns what an option takes: "a whole number", "numbers, separated by commas", "true or false" (a flag).
std::string expected_value(const CLI::Option& option, bool one = false) {
  const std::string type = option.get_type_name();
  const bool list = option.get_items_expected_max() > 1 && !one;
  if (option.get_items_expected_max() == 0) return "true or false";
  if (type.starts_with("INT") || type.starts_with("UINT")) {
    return list ? "whole numbers, separated by commas" : "a whole number";
  }
  return !type.starts_with("FLOAT") ? "a value" : list ? "numbers, separated by commas" : "a number";
}

// Returns for example "a whole number from 10 to 100000".
std::string expected_range(const CLI::Option& option, const std::string& low, const std::string& high) {
  if (option.get_type_name().find("POSITIVE") != std::string::npos) return expected_value(option, true) + " above 0";
  const double most = std::strtod(high.c_str(), nullptr);
  const std::string from = fmt::format("{:g}", std::strtod(low.c_str(), nullptr));
  if (most > 1e15) return fmt::format("{} of at least {}", expected_value(option, true), from);
  return fmt::format("{} from {} to {}", expected_value(option, true), from,
                     most == std::floor(most) ? fmt::format("{:.0f}", most) : fmt::format("{:g}", most));
}

// Returns the message of a parser error about an option or argument in the words of the other errors.
std::string option_error(const CLI::App& command, const std::string& what) {
  constexpr std::size_t kMostCharacters = 1000;  // std::regex recurses for each
  if (what.size() > kMostCharacters) return what.substr(0, kMostCharacters) + "...";
  for (const CLI::Option* option : command.get_options()) {
    for (std::string name : {option->get_name(), option->get_name(false, true)}) {
      name = name.substr(0, name.find(','));
      std::smatch found;
      const auto is = [&](const std::string& pattern) {
        return std::regex_match(what, found, std::regex(fmt::format(fmt::runtime(pattern), name)));
      };
      if (name.empty()) continue;
      if (is("Could not convert: {} = (.*)")) {
        return fmt::format("{}: expected {}, got '{}'", name, expected_value(*option), found.str(1));
      }
      if (is("{}: Value (.*) not in range (.*) to (.*)")) {
        return fmt::format("{}: expected {}, got '{}'", name, expected_range(*option, found.str(2), found.str(3)),
                           found.str(1));
      }
      if (is("{}: (.*) not in \\{{(.*)\\}}")) {
        std::vector<std::string> words;
        std::istringstream list(found.str(2));
        for (std::string word; std::getline(list, word, ',');) words.push_back(word);
        return fmt::format("{}: expected one of {}, got '{}'{}", name, fmt::join(words, ", "), found.str(1),
                           did_you_mean(found.str(1), words));
      }
      if (is("{} is required")) {
        const std::string description = option->get_description();
        return fmt::format("{} is required: {}", name, description.substr(0, description.find(';')));
      }
      if (is("{}: .* required .* missing")) return fmt::format("{}: expected {}", name, expected_value(*option));
      if (is("{}: At Most 1 required but received (.*)")) {
        return fmt::format("{}: given {} times, expected once", name, found.str(1));
      }
    }
  }
  return what;
}

// Returns the error of an option with an empty value: a file name, for example, that a script left unset. Only a title
// may be empty.
std::string empty_value(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_name() == "--svg-title") continue;
    for (const std::string& value : option->results()) {
      if (value.empty()) return fmt::format("{}: {}: expected a value, got ''", command.get_name(), option->get_name());
    }
  }
  return "";
}

// Returns the error of "--flag=" where the value is optional, which CLI11 would take as an argument of its own.
std::string missing_value(const CLI::App& command, std::span<char* const> arguments) {
  for (const std::string_view word : arguments) {
    if (!word.starts_with("--") || word.find('=') != word.size() - 1) continue;
    const std::string name(word.substr(0, word.size() - 1));
    const CLI::Option* const option = command.get_option_no_throw(name);
    if (option == nullptr || option->get_expected_min() > 0) continue;
    return fmt::format("{}: {}: expected a value after '='", command.get_name(), name);
  }
  return "";
}

// Returns the message of an error "--flag: ..." with the name of the flag that was typed, where it has several.
std::string as_typed(const CLI::App& command, const std::string& what, std::span<char* const> arguments) {
  const std::string main = what.substr(0, what.find(':'));
  const CLI::Option* const option = main.starts_with("--") ? command.get_option_no_throw(main) : nullptr;
  if (option == nullptr) return what;
  const auto typed = [&](const std::string& flag) {
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](const std::string_view word) { return word == flag || word.starts_with(flag + "="); });
  };
  for (const std::string& name : option->get_lnames()) {
    if (!typed(main) && typed("--" + name)) return "--" + name + what.substr(main.size());
  }
  return what;
}

int wrong_usage(const CLI::App& app, const CLI::ParseError& error, std::span<char* const> arguments) {
  const CLI::App& command = active(app);
  const std::string where = &command == &app ? "" : command.get_name() + ": ";
  if (const std::string missing = missing_value(command, arguments); !missing.empty()) {
    return report_error(missing, kWrongInput);
  }
  if (const CLI::Option* explain = command.get_option_no_throw("--explain");
      explain != nullptr && explain->count() > 0 && !command.remaining().empty()) {
    std::vector<std::string> words = command.remaining();
    for (const std::string& word : command.get_option("scenario")->results()) words.push_back(word);
    for (const std::string& word : words) {
      if (word.find_first_not_of("0123456789") != std::string::npos) continue;
      return report_error(fmt::format("{}--explain: write the stage after '=', as in --explain={}", where, word),
                          kWrongInput);
    }
  }
  for (const std::string& word : command.remaining()) {
    const std::string flag = word.substr(0, word.find('='));
    if (flag.starts_with("-")) {
      if (const std::string refused = refused_flag(command.get_name(), flag); !refused.empty()) {
        return report_error(refused, kWrongInput);
      }
      if (command.get_name() == "slice" && flag == "--balanced") {
        return report_error("slice: --balanced is now --equal-flops; --balance distributes documents", kWrongInput);
      }
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
  const std::string what = option_error(command, model::printable(error.what(), true));
  return report_error(where + as_typed(command, what, arguments), kWrongInput);
}

// Returns the arguments for CLI11, in reverse order. It takes the next argument as the value of "--flag=".
std::vector<std::string> reversed_arguments(int argc, char** argv) {
  std::vector<std::string> out;
  for (int i = argc - 1; i > 0; --i) {
    const std::string_view word = argv[i];
    const bool empty_value = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (empty_value) out.emplace_back();
    out.emplace_back(word.substr(0, word.size() - (empty_value ? 1 : 0)));
  }
  return out;
}

int run(int argc, char** argv) {
  CLI::App app;
  const std::span<char* const> arguments(argv, model::to_size(argc));
  const std::vector<Subcommand> commands = add_commands(app, {argv, argv + argc});
  try {
    app.parse(reversed_arguments(argc, argv));
  } catch (const CLI::CallForVersion&) {
    fmt::print("{}\n", app.version());
    return kDone;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return kDone;
  } catch (const CLI::CallForAllHelp&) {
    fmt::print("{}", app.help("", CLI::AppFormatMode::All));
    return kDone;
  } catch (const CLI::Success&) {  // the flag has printed what it is for
    return kDone;
  } catch (const CLI::ParseError& error) {
    if (argc > 1) return wrong_usage(app, error, arguments);
    fmt::print("{}", app.help());  // no command
    return kDone;
  }
  if (const std::string error = missing_value(active(app), arguments); !error.empty()) {
    return report_error(error, kWrongInput);
  }
  if (const std::string error = empty_value(active(app)); !error.empty()) return report_error(error, kWrongInput);
  const auto chosen =
      std::find_if(commands.begin(), commands.end(), [](const Subcommand& each) { return each.parser->parsed(); });
  protect_files(*chosen->parser);
  try {
    return chosen->run();
  } catch (const DoesNotFit&) {
    throw;
  } catch (const InputError& error) {
    throw InputError(as_typed(*chosen->parser, error.what(), arguments));
  }
}

}  // namespace
}  // namespace sluice::tools

int main(int argc, char** argv) {
  using namespace sluice::tools;
  open_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of the write
  try {
    const int code = run(argc, argv);
    if (std::fflush(stdout) != 0) return report_full_output(std::strerror(errno));
    return std::ferror(stdout) == 0 ? code : report_full_output("");
  } catch (const DoesNotFit& error) {
    return report_error(error.what(), kNotFeasible);
  } catch (const InputError& error) {
    return report_error(error.what(), kWrongInput);
  } catch (const ScheduleError& error) {
    return report_error(error.what(), kInvalidSchedule);
  } catch (const std::system_error& error) {
    // {fmt} throws it when it cannot print.
    if (std::ferror(stdout) != 0) return report_full_output(error.code().message());
    return report_error(error.what(), kWrongInput);
  } catch (const std::bad_alloc&) {
    return report_error("out of memory", kWrongInput);
  } catch (const std::exception& error) {
    print_message(fmt::format("internal error: {}", error.what()));
    return kInternalError;
  }
}
