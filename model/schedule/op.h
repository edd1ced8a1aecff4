// Public header.
#pragma once

#include <cstdint>
#include <string>

#include "model/namespaces.h"

namespace sluice::model {

// F: forward. B: backward, that is, input and weight gradients in one op. I: input gradient only. W: weight gradient
// only.
enum class OpKind : std::uint8_t { F, B, I, W };

constexpr char letter(OpKind kind) { return "FBIW"[static_cast<int>(kind)]; }

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
