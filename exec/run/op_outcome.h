#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage.h"
#include "model/schedule/op.h"

namespace sluice::exec {

// Calls the op of a stage of the given kind.
void compute(const Stage& stage, OpKind kind, SliceCall& call);

// Returns whether no element is infinite or NaN.
bool all_finite(const std::byte* data, std::int64_t elements, Precision precision);

// Returns whether the first row and the first column of the gradients of every parameter are finite, except for columns
// of the word embedding. A row of the input or a column of the output gradient that is not finite makes a whole row or
// column of a weight gradient so.
bool edges_finite(const Stage& stage, const std::byte* gradients, Precision precision);

void fill_not_a_number(std::byte* data, std::int64_t elements, Precision precision);

// Returns the block of the word embedding of a stage. Precondition: the stage has it, or a tied copy.
const Parameter& word_embedding(const Stage& stage);
inline std::int64_t word_embedding_offset(const Stage& stage) { return word_embedding(stage).offset; }

}  // namespace sluice::exec
