// Public header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// The parts of a layer with experts, in the order of its forward pass; a backward runs them in reverse. Dispatch and
// combine are communication.
enum class LayerPart : std::uint8_t { attention, dispatch, experts, combine };
inline constexpr std::size_t kNumLayerParts = 4;
constexpr std::string_view to_string(LayerPart part) {
  constexpr std::array<std::string_view, kNumLayerParts> kNames = {"attention", "dispatch", "experts", "combine"};
  return kNames[static_cast<std::size_t>(part)];
}
constexpr bool communicates(LayerPart part) { return part == LayerPart::dispatch || part == LayerPart::combine; }

}  // namespace sluice::model
