#pragma once

#include <cstdint>
#include <vector>

#include "model/blocks/model.h"

namespace sluice::model {

// Returns `slices` lengths of a sequence of `tokens` with equal FLOPs of the layers; under causal attention earlier
// slices are longer (Sun et al. 2024, Seq1F1B, 3.3: computation-wise partition; in closed form where all layers have
// such attention). Cuts are rounded to multiples of `multiple`. Throws InputError if the sequence has fewer multiples
// than slices.
std::vector<std::int64_t> balanced_slices(const Model& model, std::int64_t tokens, int slices, std::int64_t multiple);

// Returns `slices` equal lengths; where the tokens do not divide evenly, the first slices have one more. Throws
// InputError for more slices than tokens.
std::vector<std::int64_t> even_slices(std::int64_t tokens, int slices);

// Returns the default multiple for the slices of a sequence: one that suits attention kernels, if the sequence is long
// enough.
constexpr std::int64_t balanced_multiple(std::int64_t tokens, int slices) {
  constexpr std::int64_t kMultiple = 128;
  return tokens >= 4 * kMultiple * slices ? kMultiple : 1;
}

}  // namespace sluice::model
