#include <algorithm>
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/vectors.h"

namespace sluice::kernels::cpu {
namespace {

struct SumOfSquares {
  template <class T>
  [[gnu::always_inline]] static void run(const T* x, std::int64_t count, double* out) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    *out = sum;
  }
};

// Coefficients of one step, in the precision of the weights.
template <class T>
struct StepFactors {
  T gradient_scale = 1;
  T beta1 = 0;
  T beta2 = 0;
  T rate = 0;      // learning rate; Adam's is divided by the bias correction of the first moment
  T inverse2 = 0;  // 1 / the second moment's bias correction
  T epsilon = 0;
  T decay = 0;  // learning rate times weight decay
};

struct Adam {
  template <class T>
  [[gnu::always_inline]] static void run(std::int64_t count, const StepFactors<T>* step, const T* weights,
                                         const T* gradients, T* first, T* second, T* new_weights) {
    const StepFactors<T> f = *step;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] * f.gradient_scale;
      first[i] = f.beta1 * first[i] + (T(1) - f.beta1) * gradient;
      second[i] = f.beta2 * second[i] + (T(1) - f.beta2) * gradient * gradient;
      const T change = f.rate * first[i] / (std::sqrt(second[i] * f.inverse2) + f.epsilon);
      new_weights[i] = weights[i] - change - f.decay * weights[i];
    }
  }
};

struct Sgd {
  template <class T>
  [[gnu::always_inline]] static void run(std::int64_t count, const StepFactors<T>* step, const T* weights,
                                         const T* gradients, T* new_weights) {
    const StepFactors<T> f = *step;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      new_weights[i] = weights[i] - f.rate * f.gradient_scale * gradients[i] - f.decay * weights[i];
    }
  }
};

}  // namespace

template <class T>
double squared_norm(const WeightOffsets& offsets, const T* gradients) {
  double sum = 0;
  for (const Parameter& parameter : offsets.parameters) {
    if (!parameter.counted) continue;
    double part = 0;
    run_vectorised<SumOfSquares>(gradients + parameter.offset, parameter.size(), &part);
    sum += part;
  }
  return sum;
}

template <class T>
void optimizer_step(const WeightOffsets& offsets, const OptimizerStep& step, const T* weights, T* new_weights,
                    T* adam_moments, const T* gradients) {
  const bool adam = step.kind == OptimizerStep::Kind::adam;
  const double number = static_cast<double>(step.number);
  StepFactors<T> factors;
  factors.gradient_scale = static_cast<T>(step.gradient_scale);
  factors.beta1 = static_cast<T>(step.beta1);
  factors.beta2 = static_cast<T>(step.beta2);
  factors.epsilon = static_cast<T>(step.epsilon);
  factors.rate = static_cast<T>(adam ? step.learning_rate / (1 - std::pow(step.beta1, number)) : step.learning_rate);
  factors.inverse2 = static_cast<T>(adam ? 1 / (1 - std::pow(step.beta2, number)) : 1);

  std::int64_t end = 0;  // end of the previous parameter; padding follows
  for (const Parameter& parameter : offsets.parameters) {
    const std::int64_t at = parameter.offset;
    if (new_weights != weights) std::copy(weights + end, weights + at, new_weights + end);
    end = at + parameter.size();
    factors.decay = static_cast<T>(parameter.decays ? step.learning_rate * step.weight_decay : 0);
    const StepFactors<T>* const f = &factors;
    if (adam) {
      run_vectorised<Adam>(parameter.size(), f, weights + at, gradients + at, adam_moments + at,
                           adam_moments + offsets.elements + at, new_weights + at);
    } else {
      run_vectorised<Sgd>(parameter.size(), f, weights + at, gradients + at, new_weights + at);
    }
  }
  if (new_weights != weights) std::copy(weights + end, weights + offsets.elements, new_weights + end);
}

// NOLINTBEGIN(bugprone-macro-parentheses): types
#define SLUICE_INSTANTIATE(T)                                   \
  template double squared_norm(const WeightOffsets&, const T*); \
  template void optimizer_step(const WeightOffsets&, const OptimizerStep&, const T*, T*, T*, const T*);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(double)
#undef SLUICE_INSTANTIATE
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sluice::kernels::cpu
