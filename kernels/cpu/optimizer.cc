#include "kernels/cpu/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "kernels/cpu/vectors.h"

namespace sluice::cpu {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of x.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// In (0, 1].
double unit(std::uint64_t bits) { return static_cast<double>((bits >> 11) + 1) * 0x1p-53; }

// Box and Muller 1958.
double normal(std::uint64_t key, std::int64_t index) {
  const std::uint64_t first = mixed(key ^ mixed(2 * static_cast<std::uint64_t>(index)));
  const std::uint64_t second = mixed(key ^ mixed(2 * static_cast<std::uint64_t>(index) + 1));
  return std::sqrt(-2 * std::log(unit(first))) * std::cos(2 * std::numbers::pi * unit(second));
}

struct SumOfSquares {
  template <class T>
  [[gnu::always_inline]] static void run(const T* x, std::int64_t count, double* out) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    *out = sum;
  }
};

// Of one step, in the precision of the weights.
template <class T>
struct StepFactors {
  T gradient_scale = 1;
  T beta1 = 0;
  T beta2 = 0;
  T rate = 0;      // of SGD; of Adam over the first moment's bias correction
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

// Vectors that are called weights.
bool is_gain(const Parameter& parameter) { return parameter.all_columns == 1 && parameter.name.ends_with(".weight"); }
bool is_bias(const Parameter& parameter) { return parameter.name.ends_with(".bias"); }
bool into_residual(const Parameter& parameter) {
  return parameter.name.ends_with("attention.output.weight") || parameter.name.ends_with("mlp.down.weight");
}

}  // namespace

template <class T>
void initialise_weights(const StageSpec& spec, const WeightOffsets& offsets, std::uint64_t seed, T* weights) {
  constexpr double kDeviation = 0.02;
  std::fill_n(weights, offsets.elements, T{0});
  for (const Parameter& parameter : offsets.parameters) {
    T* const block = weights + parameter.offset;
    if (is_bias(parameter)) continue;
    if (is_gain(parameter)) {
      std::fill_n(block, parameter.size(), T{1});
      continue;
    }
    const double deviation =
        into_residual(parameter) ? kDeviation / std::sqrt(2.0 * static_cast<double>(spec.model.layers)) : kDeviation;
    const std::uint64_t key = mixed(seed ^ hash_of(parameter.name));
    for (std::int64_t row = 0; row < parameter.rows; ++row) {
      for (std::int64_t column = 0; column < parameter.columns; ++column) {
        const std::int64_t index =
            (parameter.first_row + row) * parameter.all_columns + parameter.first_column + column;
        block[row * parameter.columns + column] = static_cast<T>(deviation * normal(key, index));
      }
    }
  }
}

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
                    T* moments, const T* gradients) {
  const bool adam = step.kind == OptimizerStep::Kind::adam;
  const double number = static_cast<double>(step.number);
  StepFactors<T> factors;
  factors.gradient_scale = static_cast<T>(step.gradient_scale);
  factors.beta1 = static_cast<T>(step.beta1);
  factors.beta2 = static_cast<T>(step.beta2);
  factors.epsilon = static_cast<T>(step.epsilon);
  factors.rate = static_cast<T>(adam ? step.learning_rate / (1 - std::pow(step.beta1, number)) : step.learning_rate);
  factors.inverse2 = static_cast<T>(adam ? 1 / (1 - std::pow(step.beta2, number)) : 1);

  std::int64_t end = 0;  // of the parameter before: what lies between is padding
  for (const Parameter& parameter : offsets.parameters) {
    const std::int64_t at = parameter.offset;
    if (new_weights != weights) std::copy(weights + end, weights + at, new_weights + end);
    end = at + parameter.size();
    factors.decay = static_cast<T>(parameter.decays ? step.learning_rate * step.weight_decay : 0);
    const StepFactors<T>* const f = &factors;
    if (adam) {
      run_vectorised<Adam>(parameter.size(), f, weights + at, gradients + at, moments + at,
                           moments + offsets.elements + at, new_weights + at);
    } else {
      run_vectorised<Sgd>(parameter.size(), f, weights + at, gradients + at, new_weights + at);
    }
  }
  if (new_weights != weights) std::copy(weights + end, weights + offsets.elements, new_weights + end);
}

#define SLUICE_INSTANTIATE(T)                                                                  \
  template void initialise_weights(const StageSpec&, const WeightOffsets&, std::uint64_t, T*); \
  template double squared_norm(const WeightOffsets&, const T*);                                \
  template void optimizer_step(const WeightOffsets&, const OptimizerStep&, const T*, T*, T*, const T*);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(double)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::cpu
