#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/stage.h"
#include "kernels/weights.h"

namespace sluice::kernels::cuda {

// A range of a stage's weights, in elements, with equal options.
struct WeightRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool decays = false;
};
// Returns consecutive ranges that cover all elements. Padding, whose gradient is zero, belongs to the previous
// parameter.
std::vector<WeightRange> step_ranges(const WeightOffsets& offsets);
// Returns ranges that cover the `counted` parameters, and padding.
std::vector<WeightRange> counted_ranges(const WeightOffsets& offsets);

// Implements Stage::add_squared_norm. The order in which blocks add to *squares is not deterministic.
void add_squares(Stream& stream, const std::vector<WeightRange>& ranges, const float* gradients, float* squares);

// Master weights, and Adam's first and second moments.
struct OptimizerState {
  float* master = nullptr;
  float* first = nullptr;
  float* second = nullptr;
};
// Implements Stage::step. Writes the rounded master weights to new_weights even if the step is skipped.
void optimizer_step(Stream& stream, Element element, const std::vector<WeightRange>& ranges, const OptimizerStep& step,
                    const OptimizerState& state, const float* gradients, Half* new_weights);
// Implements Stage::set_weights.
void set_weights(Stream& stream, Element element, std::int64_t elements, const float* from, float* master,
                 Half* weights);

}  // namespace sluice::kernels::cuda
