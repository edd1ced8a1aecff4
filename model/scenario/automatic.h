// Public header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/namespaces.h"

namespace sluice::model {

// The name that stands for a schedule made for the scenario's own costs and memory, in place of a family.
inline constexpr const char* kAutomatic = "auto";

// Most that a rank may hold: bytes of the device, or the activations of so many microbatches through 1/pp of the layers
// (as peak_in_flight counts them). Neither: the device's memory where a cluster is given, else no limit.
struct MemoryCap {
  std::optional<std::int64_t> bytes;
  std::optional<double> microbatches;
};

// "60GiB", "80GB", "512MiB", "1000B"; "3mb", "4.5mb" for microbatches. Throws InputError, with `place` before the
// message.
MemoryCap parse_memory_cap(const std::string& text, const std::string& place);

// What an automatic schedule may choose, and how long it may take.
struct AutomaticChoices {
  MemoryCap cap;
  std::string placement = "any";  // linear, looped, v or any
  double seconds = 10;            // of search
};

}  // namespace sluice::model
