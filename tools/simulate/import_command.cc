#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/command.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {
namespace {

struct ImportOptions {
  std::string file;
  std::string output;
  std::unique_ptr<ScenarioFlags> flags;
};

int import_command(const ImportOptions& options) {
  if (options.file.empty()) throw InputError("import: expected a file or --megatron-args");
  if (!ScenarioFlags::is_imported(options.file)) {
    reject_other_formats(ScenarioFlags::file_text(options.file), options.file);
    throw InputError(options.file +
                     ": expected a script that starts Megatron-LM, its printed arguments, a TOML file of torchtitan, "
                     "or a YAML file of NeMo or Megatron-Bridge");
  }
  const nlohmann::json document = options.flags->document(options.file);
  ScenarioFlags::read(document, options.file);
  ScenarioFlags::print_notes(options.file);
  const std::string text = document.dump(2) + "\n";
  if (options.output.empty()) {
    fmt::print("{}", text);
  } else {
    write_file_whole(options.output, text);
  }
  return kDone;
}

}  // namespace

Subcommand add_import_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "import",
      "Write the configuration of another framework as a scenario file.\n\n"
      "Examples:\n"
      "  sluice import pretrain.sh --cluster dgx-h100 --vocab-size 128256 -o scenario.json\n"
      "  sluice import run.log --cluster dgx-h100 -o scenario.json\n\n"
      "The file is a shell script that starts Megatron-LM or Megatron-DeepSpeed, a log that prints their arguments, "
      "the printed arguments alone, a TOML file of torchtitan, or a YAML file of NeMo 1 or Megatron-Bridge. Other "
      "commands that take a scenario file read such files as well. Of a script, variables and arrays are followed. "
      "Where "
      "its arguments depend on control flow, `sluice-args bash pretrain.sh > args.txt` runs it with launchers that "
      "print "
      "their command line, and args.txt is the file to read. Arguments that change time or memory and are not modeled "
      "are printed, and those that are unknown.");
  command->group("Predict and plan");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto options = std::make_shared<ImportOptions>();
  command->add_option("file", options->file, "Script, log or printed arguments; flags override them")
      ->type_name(kReadFile);
  add_output(*command, "-o,--output", options->output, "Write the scenario to this file (default: standard output)");
  options->flags = std::make_unique<ScenarioFlags>(*command, kComplete);
  ScenarioFlags::add_imports(*command, options->file, "file");
  return {command,
          [options] { return options->flags->naming_flags(options->file, [&] { return import_command(*options); }); }};
}

}  // namespace sluice::tools
