#pragma once

#include "kernels/gemm_library.h"

namespace sluice::test {

// Sizes of a linear layer: x [rows, inputs], weights [outputs, inputs].
struct LinearCase {
  Element element = Element::bfloat16;
  std::int64_t rows = 0;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

// Expects that the device's library runs every epilogue as a linear layer calls it, twice, and that the results equal
// those in double precision within allowed_error. GELU is that of the tanh approximation, from which the exact one
// differs by less than 5e-4: where it does by more than 2e-4, results are compared within 1e-4 in float16.
void expect_epilogues_equal_naive(const LinearCase& of, Device& device);

}  // namespace sluice::test
