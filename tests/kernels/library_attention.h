#pragma once

#include "kernels/device.h"
#include "tests/kernels/sliced_attention.h"

namespace sluice::test {

// Compares the attention library of a device with naive attention in double precision: the queries of the last slice
// over the keys of all slices in one block, and all gradients. Fails the test if the library does not run both passes,
// or writes elsewhere.
void expect_library_equals_naive(const AttentionCase& of, Device& device);

}  // namespace sluice::test
