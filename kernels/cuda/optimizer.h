#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/stage.h"
#include "kernels/weights.h"

namespace sluice::kernels::cuda {

// Parts of a stage's weights, in elements: what a kernel can treat alike.
struct WeightRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool decays = false;
};
// Cover all elements, one after the other: padding, whose gradient is zero, goes with the parameter before.
std::vector<WeightRange> step_ranges(const WeightOffsets& offsets);
// Cover the parameters that are counted, and padding.
std::vector<WeightRange> counted_ranges(const WeightOffsets& offsets);

// Stage::add_squared_norm: blocks add to *squares in any order.
void add_squares(Stream& stream, const std::vector<WeightRange>& ranges, const float* gradients, float* squares);

// Master weights of all elements, then Adam's first moments, then the second.
struct OptimizerState {
  float* master = nullptr;
  float* first = nullptr;
  float* second = nullptr;
};
// Stage::step: the new 16-bit weights are the master weights rounded, even where the step changes nothing.
void optimizer_step(Stream& stream, Element element, const std::vector<WeightRange>& ranges, const OptimizerStep& step,
                    const OptimizerState& state, const float* gradients, Half* new_weights);
// Stage::set_weights.
void set_weights(Stream& stream, Element element, std::int64_t elements, const float* from, float* master,
                 Half* weights);

}  // namespace sluice::kernels::cuda
