#include "model/cost/memory_json.h"

#include <string>

namespace sluice::model {
namespace {

constexpr std::int64_t kMostMemoryTokens = std::int64_t{1} << 31;
constexpr std::int64_t kMostMemoryBytes = std::int64_t{1} << 50;

const std::vector<std::string>& memory_part_names() {
  static const std::vector<std::string> names = {"embedding", "layer", "head", "stage"};  // as PartKind
  return names;
}

PartMemory part_memory_from_json(JsonReader reader) {
  PartMemory part;
  const std::string name = reader.at("part").one_of(memory_part_names());
  for (std::size_t i = 0; i < memory_part_names().size(); ++i) {
    if (memory_part_names()[i] == name) part.part = static_cast<PartKind>(i);
  }
  part.sliced = reader.boolean_or("sliced", false);
  part.recompute = reader.boolean_or("recomputed", false);
  for (const JsonReader& tokens : reader.at("tokens").elements()) {
    part.tokens.push_back(tokens.integer(1, kMostMemoryTokens));
    if (part.tokens.size() > 1 && part.tokens.back() <= part.tokens[part.tokens.size() - 2]) {
      tokens.fail("expected token counts that increase");
    }
  }
  if (part.tokens.empty()) reader.at("tokens").fail("expected at least one token count");
  for (std::size_t field = 0; field < PartMemory::kFields.size(); ++field) {
    const std::string key = PartMemory::kFields[field];
    reader.allow(key);
    if (!reader.has(key)) continue;
    for (const JsonReader& bytes : reader.at(key).elements()) {
      part.bytes[field].push_back(bytes.integer(-kMostMemoryBytes, kMostMemoryBytes));
    }
    if (part.bytes[field].size() == part.tokens.size()) continue;
    reader.at(key).fail("expected as many entries as tokens, " + std::to_string(part.tokens.size()));
  }
  reader.finish();
  return part;
}

}  // namespace

RunMemory run_memory_from_json(JsonReader reader) {
  constexpr std::int64_t kMostPerParameter = 1024;
  RunMemory memory;
  memory.weight_bytes = reader.integer("weight_bytes_per_parameter", 0, kMostPerParameter);
  memory.gradient_bytes = reader.integer("gradient_bytes_per_parameter", 0, kMostPerParameter);
  memory.optimizer_bytes = reader.integer("optimizer_bytes_per_parameter", 0, kMostPerParameter);
  for (const JsonReader& part : reader.at("parts").elements()) memory.parts.push_back(part_memory_from_json(part));
  reader.finish();
  return memory;
}

nlohmann::ordered_json run_memory_json(const RunMemory& memory) {
  nlohmann::ordered_json out = {{"weight_bytes_per_parameter", memory.weight_bytes},
                                {"gradient_bytes_per_parameter", memory.gradient_bytes},
                                {"optimizer_bytes_per_parameter", memory.optimizer_bytes},
                                {"parts", nlohmann::ordered_json::array()}};
  for (const PartMemory& part : memory.parts) {
    nlohmann::ordered_json row = {{"part", to_string(part.part)},
                                  {"sliced", part.sliced},
                                  {"recomputed", part.recompute},
                                  {"tokens", part.tokens}};
    for (std::size_t field = 0; field < PartMemory::kFields.size(); ++field) {
      if (!part.bytes[field].empty()) row[PartMemory::kFields[field]] = part.bytes[field];
    }
    out["parts"].push_back(std::move(row));
  }
  return out;
}

}  // namespace sluice::model
