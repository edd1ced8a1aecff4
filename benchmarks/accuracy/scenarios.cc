#include "benchmarks/accuracy/scenarios.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/input/files.h"

namespace sluice::bench::accuracy {

Json base_of(const char* name) {
  const std::string path = fmt::format("{}/benchmarks/accuracy/scenarios/{}.json", SLUICE_SOURCE_DIR, name);
  return parse_json(read_file(path), path);
}

void add_document(const Json& scenario, const std::string& place, double seconds, std::string& table) {
  constexpr const char* kParts[] = {"model", "cluster", "parallelism", "batch", "schedule", "software"};
  const auto quoted = [](const Json& json) {
    std::string out = "\"";
    for (const char c : json.dump()) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  };
  if (table.empty()) {
    for (const char* part : kParts) table += fmt::format("/{},", part);
    table += "iter_s,note\n";
  }
  for (const char* part : kParts) table += quoted(scenario.at(part)) + ",";
  table += fmt::format("{},\"{}\"\n", seconds, place);
}

}  // namespace sluice::bench::accuracy
