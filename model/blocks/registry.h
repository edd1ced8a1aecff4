#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/blocks/block.h"
#include "model/input/json_reader.h"

namespace sluice::model {

// Limits of sizes and layers in files, so that counts of parameters fit in 64 bits.
inline constexpr std::int64_t kMostModelSize = 1 << 20;
inline constexpr std::int64_t kMostModelLayers = 1 << 12;

// A kind of block: a row of the registry.
struct BlockType {
  std::string_view kind;
  std::string_view purpose;  // for documentation: "grouped-query attention, windows, gates, sinks"
  // Reads the block's sizes from an object of a model file; the caller checks that no other keys are there.
  BlockPtr (*read)(JsonReader& reader, int hidden, bool dropout);
};

std::span<const BlockType> block_types();
std::vector<std::string> block_kinds();
// Reads an object with "block", the kind, and the keys of that kind. Throws InputError naming the file and the key.
BlockPtr block_from_json(JsonReader reader, int hidden, bool dropout);

}  // namespace sluice::model
