#pragma once

#include <cstdint>
#include <vector>

#include "model/workload/transformer.h"

namespace sluice::model {

// `slices` lengths of a sequence of `tokens` whose layers have equal FLOPs under causal attention, earlier ones longer
// (Sun et al. 2024, Seq1F1B, 3.3: computation-wise partition; in closed form). Cuts are rounded to multiples of
// `multiple`. Throws InputError if there are not so many multiples in the sequence.
std::vector<std::int64_t> balanced_slices(const Transformer& model, std::int64_t tokens, int slices,
                                          std::int64_t multiple);

// `slices` equal lengths; where the tokens do not divide, the first ones have one more. Throws InputError for more
// slices than tokens.
std::vector<std::int64_t> even_slices(std::int64_t tokens, int slices);

// What slices of a sequence are multiples of where nobody says: what attention kernels like, if there is enough of it.
constexpr std::int64_t balanced_multiple(std::int64_t tokens, int slices) {
  constexpr std::int64_t kMultiple = 128;
  return tokens >= 4 * kMultiple * slices ? kMultiple : 1;
}

}  // namespace sluice::model
