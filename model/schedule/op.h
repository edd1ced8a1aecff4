// Public header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// F: forward. B: backward, that is, input and weight gradients in one op. I: input gradient only. W: weight gradient
// only. S and T: the passes of a rank's shard of the output layer, where all ranks have one
// (Schedule::vocabulary_barriers); their stage is the first one of the rank.
enum class OpKind : std::uint8_t { F, B, I, W, S, T };
inline constexpr std::size_t kNumOpKinds = 6;
inline constexpr std::string_view kOpLetters = "FBIWST";

constexpr char letter(OpKind kind) { return kOpLetters[static_cast<std::size_t>(kind)]; }
constexpr bool of_vocabulary(OpKind kind) { return kind >= OpKind::S; }

// A compute op of a schedule. Microbatches are numbered over all batches.
struct Op {
  std::int32_t microbatch = 0;
  std::int16_t stage = 0;
  std::int16_t slice = 0;
  OpKind kind = OpKind::F;
  bool joined = false;  // forms a joint block with the next op on the same rank

  friend bool operator==(const Op&, const Op&) = default;
};

// "F(stage 1, mb 0)"; with `sliced`, "F(stage 1, mb 0, slice 2)".
std::string to_string(const Op& op, bool sliced);

}  // namespace sluice::model
