#pragma once

#include <functional>
#include <string>

#include "model/schedule/family.h"

namespace sluice::test {

// p ranks, m microbatches (of one batch), v chunks, k slices, a group in units (0: the family's default), batches.
struct Shape {
  int p = 1, m = 1, v = 1, k = 1, group = 0, batches = 1;
};

struct Limits {
  int ranks = 1, microbatches = 1, chunks = 1, slices = 1, batches = 1;
};

// Generates the family's schedule of that shape: k slices of one token. Throws InputError for an invalid shape.
Schedule make(const std::string& family, const Shape& shape);

// The condition of `for_shapes` that is true for every shape.
inline bool everywhere(const Shape& /*shape*/) { return true; }

// Calls `check` for all shapes within the limits and `in_range` that the family supports. Parameters that the family
// does not have keep their default. Stops at the first fatal failure. Returns the number of shapes checked.
int for_shapes(const std::string& family, const Limits& limits, const std::function<bool(const Shape&)>& in_range,
               const std::function<void(const Shape&, const Schedule&)>& check);

// Returns a schedule that repeats each rank's list `times` times.
Schedule repeated(const Schedule& schedule, int times);

}  // namespace sluice::test
