// Public header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/namespaces.h"

namespace sluice::model {

// The name of the automatic schedule, generated for the scenario's own costs and memory, in place of a family.
inline constexpr const char* kAutomatic = "auto";

// Memory limit per rank: bytes, or the activations of a number of microbatches through 1/pp of the layers (as counted
// by peak_in_flight). If neither is set, the device's memory if there is a cluster, otherwise no limit.
struct MemoryCap {
  std::optional<std::int64_t> bytes;
  std::optional<double> microbatches;
};

// Parses "60GiB", "80GB", "512MiB", "1000B", or "3mb", "4.5mb" for microbatches. Throws InputError with a message that
// starts with `place`.
MemoryCap parse_memory_cap(const std::string& text, const std::string& place);
// The same for bytes only, from 0B on.
std::int64_t parse_bytes(const std::string& text, const std::string& place);

// The options of an automatic schedule.
struct AutomaticChoices {
  MemoryCap cap;
  std::string placement = "any";  // linear, looped, v or any
  double seconds = 60;            // time limit of the search
  std::int64_t evaluations = 0;   // limit of the orders that it times; 0: by the number of ops
};

}  // namespace sluice::model
