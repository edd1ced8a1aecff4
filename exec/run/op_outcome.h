#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage.h"

namespace sluice::exec {

// Returns whether no element is infinite or NaN.
bool all_finite(const std::byte* data, std::int64_t elements, Precision precision);

void fill_not_a_number(std::byte* data, std::int64_t elements, Precision precision);

// Returns the block of the word embedding of a stage. Precondition: the stage has it, or a tied copy.
const Parameter& word_embedding(const Stage& stage);
inline std::int64_t word_embedding_offset(const Stage& stage) { return word_embedding(stage).offset; }

}  // namespace sluice::exec
