#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/schedule/family.h"
#include "tools/command/command.h"

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

void print_json() {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Family& family : all_families()) {
    rows.push_back({{"name", family.name},
                    {"aliases", family.aliases},
                    {"summary", family.summary},
                    {"source", family.source},
                    {"fixed_chunks", family.fixed_chunks},
                    {"default_chunks", family.default_chunks},
                    {"sliced", family.sliced},
                    {"split_backward", family.split_backward},
                    {"grouped", family.grouped},
                    {"asynchronous", family.asynchronous},
                    {"replicas", family.replicas}});
  }
  fmt::print("{}\n", nlohmann::ordered_json{{"schema", "sluice.families/1"}, {"families", rows}}.dump(2));
}

}  // namespace

Subcommand add_schedules_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("schedules",
                                         "List the schedule families, with their parameters, purpose and source.\n\n"
                                         "Examples:\n"
                                         "  sluice schedules\n"
                                         "  sluice schedules --json");
  command->group("Schedules");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON document (sluice.families/1)");
  return {command, [json] {
            if (*json) {
              print_json();
            } else {
              print_table();
            }
            return kDone;
          }};
}

}  // namespace sluice::tools
