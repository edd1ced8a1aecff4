#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage.h"

namespace sluice::exec {

// Whether no element is infinite or not a number.
bool all_finite(const std::byte* data, std::int64_t elements, Precision precision);

void fill_not_a_number(std::byte* data, std::int64_t elements, Precision precision);

// Where a stage with an embedding, or a tied copy of one, has the word embedding's block. Precondition: it has.
const Parameter& word_embedding(const Stage& stage);
inline std::int64_t word_embedding_offset(const Stage& stage) { return word_embedding(stage).offset; }

}  // namespace sluice::exec
