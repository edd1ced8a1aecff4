#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/over_elements.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

struct AddSquares {
  static constexpr int kThreads = kElementThreads;
  const float* gradients;
  std::int64_t count;
  float* squares;
  SLUICE_DEVICE void operator()() const {
    float sum = 0;
    for_each_element(count, [&](std::int64_t i) { sum += gradients[i] * gradients[i]; });
    sum = block_sum(sum);
    if (thread() == 0) atomic_add(squares, sum);
  }
};

struct StepFactors {
  float gradient_scale = 1;
  float beta1 = 0;
  float beta2 = 0;
  float rate = 0;      // learning rate; Adam's is divided by the bias correction of the first moment
  float inverse2 = 0;  // 1 / the second moment's bias correction
  float epsilon = 0;
  float decay = 0;  // learning rate times weight decay
};

// Consecutive ranges: ends relative to the start of the first.
struct RangeEnds {
  static constexpr int kMost = 128;
  std::int64_t ends[kMost];
  bool decays[kMost];
};

template <class T>
struct Step {
  static constexpr int kThreads = kElementThreads;
  RangeEnds ranges;
  bool adam;
  StepFactors factors;
  const float* scale;  // may be null
  OptimizerState state;
  const float* gradients;
  std::int64_t count;
  T* new_weights;

  SLUICE_DEVICE void operator()() const {
    const float scale_here = factors.gradient_scale * (scale == nullptr ? 1.0F : *scale);
    const bool skips = scale_here != scale_here;
    int range = 0;
    for_each_element(count, [&](std::int64_t i) {
      while (i >= ranges.ends[range]) ++range;
      float weight = state.master[i];
      if (!skips) {
        const float gradient = gradients[i] * scale_here;
        float change = factors.rate * gradient;
        if (adam) {
          const float first = factors.beta1 * state.first[i] + (1.0F - factors.beta1) * gradient;
          const float second = factors.beta2 * state.second[i] + (1.0F - factors.beta2) * gradient * gradient;
          state.first[i] = first;
          state.second[i] = second;
          change = factors.rate * first / (sqrtf(second * factors.inverse2) + factors.epsilon);
        }
        weight = weight - change - (ranges.decays[range] ? factors.decay : 0.0F) * weight;
        state.master[i] = weight;
      }
      new_weights[i] = from_float<T>(weight);
    });
  }
};

template <class T>
struct SetWeights {
  static constexpr int kThreads = kElementThreads;
  const float* from;
  std::int64_t count;
  float* master;
  T* weights;
  SLUICE_DEVICE void operator()() const {
    for_each_element(count, [&](std::int64_t i) {
      const float weight = from[i];
      master[i] = weight;
      weights[i] = from_float<T>(weight);
    });
  }
};

}  // namespace

std::vector<WeightRange> step_ranges(const WeightOffsets& offsets) {
  std::vector<WeightRange> out;
  for (std::size_t i = 0; i < offsets.parameters.size(); ++i) {
    const Parameter& parameter = offsets.parameters[i];
    const bool last = i + 1 == offsets.parameters.size();
    const std::int64_t end = last ? offsets.elements : offsets.parameters[i + 1].offset;
    if (!out.empty() && out.back().decays == parameter.decays) {
      out.back().end = end;
    } else {
      out.push_back({.begin = parameter.offset, .end = end, .decays = parameter.decays});
    }
  }
  return out;
}

std::vector<WeightRange> counted_ranges(const WeightOffsets& offsets) {
  std::vector<WeightRange> out;
  bool follows = false;
  for (const Parameter& parameter : offsets.parameters) {
    const std::int64_t end = parameter.offset + parameter.size();
    if (parameter.counted && follows) {
      out.back().end = end;
    } else if (parameter.counted) {
      out.push_back({.begin = parameter.offset, .end = end});
    }
    follows = parameter.counted;
  }
  return out;
}

void add_squares(Stream& stream, const std::vector<WeightRange>& ranges, const float* gradients, float* squares) {
  for (const WeightRange& range : ranges) {
    if (range.begin == range.end) continue;
    Grid grid = element_grid(range.end - range.begin);
    grid.shared_bytes = grid.threads / kWarp * static_cast<int>(sizeof(float));
    launch(stream, grid, AddSquares{gradients + range.begin, range.end - range.begin, squares});
  }
}

void optimizer_step(Stream& stream, Element element, const std::vector<WeightRange>& ranges, const OptimizerStep& step,
                    const OptimizerState& state, const float* gradients, Half* new_weights) {
  const bool adam = step.kind == OptimizerStep::Kind::adam;
  const double number = static_cast<double>(step.number);
  StepFactors factors;
  factors.gradient_scale = static_cast<float>(step.gradient_scale);
  factors.beta1 = static_cast<float>(step.beta1);
  factors.beta2 = static_cast<float>(step.beta2);
  factors.epsilon = static_cast<float>(step.epsilon);
  factors.rate =
      static_cast<float>(adam ? step.learning_rate / (1 - std::pow(step.beta1, number)) : step.learning_rate);
  factors.inverse2 = static_cast<float>(adam ? 1 / (1 - std::pow(step.beta2, number)) : 1);
  factors.decay = static_cast<float>(step.learning_rate * step.weight_decay);
  for (std::size_t first = 0; first < ranges.size(); first += RangeEnds::kMost) {
    const std::size_t last = std::min(ranges.size(), first + RangeEnds::kMost);
    const std::int64_t begin = ranges[first].begin;
    const std::int64_t count = ranges[last - 1].end - begin;
    if (count == 0) continue;
    RangeEnds ends{};
    for (std::size_t i = first; i < last; ++i) {
      ends.ends[i - first] = ranges[i].end - begin;
      ends.decays[i - first] = ranges[i].decays;
    }
    const OptimizerState here{state.master + begin, state.first + begin, state.second + begin};
    with_half(element, [&]<class T>(HalfType<T>) {
      launch(stream, element_grid(count),
             Step<T>{ends, adam, factors, step.scale_on_device, here, gradients + begin, count,
                     as<T>(new_weights + begin)});
    });
  }
}

void set_weights(Stream& stream, Element element, std::int64_t elements, const float* from, float* master,
                 Half* weights) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, element_grid(elements), SetWeights<T>{from, elements, master, as<T>(weights)});
  });
}

}  // namespace sluice::kernels::cuda
