#include "tools/command/outputs.h"

#include <utility>
#include <vector>

#include "model/input/protected_files.h"

namespace sluice::tools {

CLI::Option* add_output(CLI::App& command, const std::string& flags, std::string& value,
                        const std::string& description) {
  return command.add_option(flags, value, description)->type_name(kWrittenFile);
}

void protect_files(const CLI::App& command) {
  std::vector<OutputFile> outputs;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_name() != kWrittenFile || option->count() == 0) continue;
    outputs.push_back({.flag = option->get_name(),
                       .path = option->results().front(),
                       .is_checkpoint = option->get_name() == "--checkpoint"});
  }
  protect_inputs(std::move(outputs));
}

}  // namespace sluice::tools
