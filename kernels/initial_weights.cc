#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/weights.h"

namespace sluice::kernels {
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

// Gains of norms: vectors that are named weights.
bool is_gain(const Parameter& parameter) { return parameter.all_columns == 1 && parameter.name.ends_with(".weight"); }
bool is_bias(const Parameter& parameter) { return parameter.name.ends_with(".bias"); }
bool into_residual(const Parameter& parameter) {
  return parameter.name.ends_with("attention.output.weight") || parameter.name.ends_with(".down.weight");
}

// Calls `work` with ranges of rows that cover all, on all cores if there are many elements.
template <class Work>
void over_rows(std::int64_t rows, std::int64_t columns, const Work& work) {
  constexpr std::int64_t kElementsPerThread = 1 << 20;
  const std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::int64_t threads = std::max<std::int64_t>(1, std::min({rows * columns / kElementsPerThread, cores, rows}));
  std::vector<std::jthread> others;
  for (std::int64_t i = 1; i < threads; ++i) {
    others.emplace_back([&work, first = rows * i / threads, end = rows * (i + 1) / threads] { work(first, end); });
  }
  work(0, rows / threads);
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
    over_rows(parameter.rows, parameter.columns, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t row = first; row < end; ++row) {
        for (std::int64_t column = 0; column < parameter.columns; ++column) {
          const std::int64_t index =
              (parameter.first_row + row) * parameter.all_columns + parameter.first_column + column;
          block[row * parameter.columns + column] = static_cast<T>(deviation * normal(key, index));
        }
      }
    });
  }
}

template void initialise_weights(const StageSpec&, const WeightOffsets&, std::uint64_t, float*);
template void initialise_weights(const StageSpec&, const WeightOffsets&, std::uint64_t, double*);

}  // namespace sluice::kernels
