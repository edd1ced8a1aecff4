#pragma once

#include <cstdint>

#include "model/graph/op_graph.h"

namespace sluice::traces {

struct Rgb {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;
};

// The colours of all pictures, distinguishable for colour-blind readers.
namespace palette {
inline constexpr Rgb kForward{0x33, 0x22, 0x88};
inline constexpr Rgb kBackward{0xD5, 0x5E, 0x00};
inline constexpr Rgb kInputGradient{0xFF, 0xD2, 0x3F};
inline constexpr Rgb kWeightGradient{0x00, 0x73, 0x5C};
inline constexpr Rgb kVocabulary{0x44, 0x77, 0xAA};
inline constexpr Rgb kVocabularyGradient{0xEE, 0x99, 0xAA};
inline constexpr Rgb kRecompute{0x66, 0xCC, 0xEE};
inline constexpr Rgb kCommunication{0x9B, 0x59, 0xB6};
inline constexpr Rgb kDispatch = kCommunication;
inline constexpr Rgb kCombine{0xD6, 0xA2, 0xE8};
inline constexpr Rgb kOptimizer{0x66, 0x11, 0x00};
inline constexpr Rgb kIdle{0xF2, 0xF2, 0xF2};
}  // namespace palette

constexpr Rgb colour_of(OpKind kind) {
  switch (kind) {
    case OpKind::F: return palette::kForward;
    case OpKind::B: return palette::kBackward;
    case OpKind::I: return palette::kInputGradient;
    case OpKind::W: return palette::kWeightGradient;
    case OpKind::S: return palette::kVocabulary;
    case OpKind::T: return palette::kVocabularyGradient;
  }
  return palette::kIdle;
}

// The colour of a vertex. For a joint block: that of its first op.
constexpr Rgb colour_of(const Vertex& vertex) {
  switch (vertex.kind) {
    case VertexKind::compute:
    case VertexKind::joint: return colour_of(vertex.op);
    case VertexKind::recompute: return palette::kRecompute;
    case VertexKind::transfer:
    case VertexKind::offload:
    case VertexKind::collective: return palette::kCommunication;
    case VertexKind::optimizer: return palette::kOptimizer;
  }
  return palette::kIdle;
}

// Whether text on this colour is easier to read in white than in black (luma of ITU-R BT.601).
constexpr bool is_dark(Rgb c) { return 299 * c.red + 587 * c.green + 114 * c.blue < 128'000; }

}  // namespace sluice::traces
