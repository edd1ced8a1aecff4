#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/outputs.h"
#include "tools/simulate/families_json.h"
#include "tools/simulate/gallery.h"
#include "tools/simulate/simulation_report.h"

namespace sluice::tools {
namespace {

std::string parameters(const Family& family) {
  std::string out = "--pp --microbatches";
  if (family.fixed_chunks == 0) out += " --vpp";
  if (family.grouped) out += " --group";
  if (family.sliced) out += " --slices";
  if (family.asynchronous) out += " --batches";
  return out;
}

void print_table() {
  for (const Family& family : all_families()) {
    fmt::print("{:<20} {}\n", family.name, family.summary);
    fmt::print("{:<20}   {}{}{}\n", "", parameters(family), family.split_backward ? "; split backward (I and W)" : "",
               family.replicas > 1 ? "; two replicas of each stage" : "");
    if (!family.aliases.empty()) fmt::print("{:<20}   also {}\n", "", fmt::join(family.aliases, ", "));
    fmt::print("{:<20}   {}\n", "", family.source);
  }
  fmt::print("\nBesides these families, --schedule auto searches for a schedule for given costs and memory.\n");
}

}  // namespace

Subcommand add_schedules_command(CLI::App& app, std::vector<std::string> arguments) {
  CLI::App* command = app.add_subcommand("schedules",
                                         "List the schedule families, with their parameters, purpose and source.\n\n"
                                         "Examples:\n"
                                         "  sluice schedules\n"
                                         "  sluice schedules --json\n"
                                         "  sluice schedules --gallery families.html");
  command->group("Schedules");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON document (sluice.families/1)");
  const auto gallery = std::make_shared<std::string>();
  add_output(*command, "--gallery", *gallery,
             "Write an HTML page to this file with the timelines of all families on one time axis");
  return {command, [json, gallery, arguments = std::move(arguments)] {
            if (*json && !gallery->empty()) throw InputError("schedules: --json and --gallery exclude each other");
            if (!gallery->empty()) {
              write_gallery(*gallery, shell_line(arguments));
            } else if (*json) {
              fmt::print("{}", json_text(families_json()));
            } else {
              print_table();
            }
            return kDone;
          }};
}

}  // namespace sluice::tools
