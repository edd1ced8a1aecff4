#include "tools/command/outputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "model/errors.h"
#include "model/scenario/scenario.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

bool is_output(const CLI::Option& option) { return option.get_type_name() == kWrittenFile; }

// Whether writing one of the two names changes the other. Devices and pipes may be written twice.
bool same_file(const std::string& first, const std::string& second) {
  std::error_code error;
  if (fs::exists(first, error)) {
    return fs::is_regular_file(first, error) && fs::equivalent(first, second, error);
  }
  const fs::path one = fs::weakly_canonical(fs::absolute(first, error), error);
  return !error && one == fs::weakly_canonical(fs::absolute(second, error), error) && !error;
}

// Whether the value of an option may name a file. Numbers and titles do not.
bool may_name_file(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const bool number = type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
  return option.get_items_expected_max() > 0 && !number && option.get_name() != "--svg-title";
}

// Whether the value of an option that is not an output is a file that the command reads.
bool is_input(const CLI::Option& option, const std::string& value) {
  const std::string name = option.get_name();
  const bool schedule = name == "--schedule" || name == "--for" || name == "name";
  std::error_code error;
  return (!schedule || names_file(value)) && fs::exists(value, error);
}

bool may_share(const CLI::Option& output, const CLI::Option& other) {
  return output.get_name() == "--checkpoint" && other.get_name() == "--resume";
}

// Returns the file names in the value of an option: the value, and the parts of FILE=scenario.json.
std::vector<std::string> named_files(const std::string& value) {
  const std::size_t equals = value.find('=');
  if (equals == std::string::npos) return {value};
  return {value, value.substr(0, equals), value.substr(equals + 1)};
}

void check_output(const CLI::App& command, const CLI::Option& output) {
  const std::string& name = output.results().front();
  const std::string flag = output.get_name();
  for (const CLI::Option* other : command.get_options()) {
    if (other == &output || !may_name_file(*other) || may_share(output, *other)) continue;
    for (const std::string& value : other->results()) {
      for (const std::string& file : named_files(value)) {
        if (file.empty() || !(is_output(*other) || is_input(*other, file)) || !same_file(name, file)) continue;
        throw InputError(fmt::format("{}: '{}' is also {} '{}'", flag, name,
                                     is_output(*other) ? other->get_name() : "the input", file));
      }
    }
  }
}

}  // namespace

CLI::Option* add_output(CLI::App& command, const std::string& flags, std::string& value,
                        const std::string& description) {
  return command.add_option(flags, value, description)->type_name(kWrittenFile);
}

void check_outputs(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (is_output(*option) && option->count() > 0) check_output(command, *option);
  }
}

}  // namespace sluice::tools
