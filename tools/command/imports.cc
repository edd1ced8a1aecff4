// Scenario files, and the configurations of other frameworks in their place.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "import/import.h"
#include "model/errors.h"
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

const Imported& ScenarioFlags::imported(const std::string& file) {
  static std::map<std::string, Imported> read;
  const auto found = read.find(file);
  if (found != read.end()) return found->second;
  const std::string text = file_text(file);
  Imported imported = file == kMegatronArguments ? import_megatron_line(text, file) : import_text(text, file);
  return read.emplace(file, std::move(imported)).first->second;
}

nlohmann::json ScenarioFlags::file_json(const std::string& file) {
  if (is_imported(file)) return imported(file).scenario;
  reject_other_formats(file_text(file), file);
  return parse_json(file_text(file), file);
}

void ScenarioFlags::print_notes(const std::string& file) {
  if (!is_imported(file)) return;
  for (const std::string& note : imported(file).notes) print_message(note);
}

}  // namespace sluice::tools
