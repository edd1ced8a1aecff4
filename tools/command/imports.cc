// Scenario files, and the configurations of other frameworks in their place.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/import/import.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {
namespace {

const std::string kMegatronArguments = "--megatron-args";  // the name of its text

// Contents of pipes, and of flags that take the place of a file, by their names.
std::map<std::string, std::string>& kept_texts() {
  static std::map<std::string, std::string> texts;
  return texts;
}

Imported imported_file(const std::string& file) {
  const std::string text = ScenarioFlags::file_text(file);
  return file == kMegatronArguments ? import_megatron_line(text, file) : import_text(text, file);
}

}  // namespace

void ScenarioFlags::add_imports(CLI::App& command, std::string& file, const std::string& excluded) {
  command
      .add_option_function<std::string>(
          kMegatronArguments,
          [&file](const std::string& text) {
            kept_texts()[kMegatronArguments] = text;
            file = kMegatronArguments;
          },
          "Arguments of Megatron-LM in place of a scenario file, as one text; flags override them (default: none)")
      ->excludes(command.get_option(excluded));
  command
      .add_option_function<std::string>(
          "--torchtitan", [&file](const std::string& path) { file = path; },
          "Job configuration of torchtitan (TOML) in place of a scenario file; flags override it (default: none)")
      ->type_name(kReadFile)
      ->excludes(command.get_option(excluded))
      ->excludes(command.get_option(kMegatronArguments));
}

std::string ScenarioFlags::file_text(const std::string& file) {
  std::error_code error;
  if (file != kMegatronArguments && std::filesystem::is_regular_file(file, error)) return read_file(file);
  const auto found = kept_texts().find(file);
  return found != kept_texts().end() ? found->second : kept_texts().emplace(file, read_file(file)).first->second;
}

bool ScenarioFlags::is_imported(const std::string& file) {
  return !file.empty() && (file == kMegatronArguments || is_foreign(file_text(file)));
}

nlohmann::json ScenarioFlags::file_json(const std::string& file) {
  return is_imported(file) ? imported_file(file).scenario : parse_json(file_text(file), file);
}

void ScenarioFlags::print_notes(const std::string& file) {
  if (!is_imported(file)) return;
  for (const std::string& note : imported_file(file).notes) print_message(note);
}

}  // namespace sluice::tools
