#include "tools/command/outputs.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/protected_files.h"

namespace sluice::tools {
namespace {

// Throws InputError for the name of a PDF or a PNG: pictures are SVG.
void refuse_other_pictures(const std::string& flag, const std::string& path) {
  for (const std::string_view suffix : {".pdf", ".png"}) {
    if (!path.ends_with(suffix)) continue;
    const std::string svg = path.substr(0, path.size() - suffix.size()) + ".svg";
    throw InputError(fmt::format(
        "{}: {}: expected another name than *{}: write {} and convert it, with 'rsvg-convert -f {} -o {} {}'", flag,
        path, suffix, svg, suffix.substr(1), path, svg));
  }
}

}  // namespace

CLI::Option* add_output(CLI::App& command, const std::string& flags, std::string& value,
                        const std::string& description) {
  return command.add_option(flags, value, description)->type_name(kWrittenFile);
}

void protect_files(const CLI::App& command) {
  std::vector<OutputFile> outputs;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_name() != kWrittenFile || option->count() == 0) continue;
    refuse_other_pictures(option->get_name(), option->results().front());
    outputs.push_back({.flag = option->get_name(),
                       .path = option->results().front(),
                       .is_checkpoint = option->get_name() == "--checkpoint"});
  }
  protect_inputs(std::move(outputs));
}

}  // namespace sluice::tools
