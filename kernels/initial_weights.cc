#include <algorithm>
#include <cmath>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/initial_number.h"
#include "kernels/weights.h"

namespace sluice::kernels {
namespace {

// FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
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

InitialValues initial_values(const StageSpec& spec, const Parameter& parameter, std::uint64_t seed) {
  constexpr double kDeviation = 0.02;
  if (is_bias(parameter)) return {};
  if (is_gain(parameter)) return {.constant = 1};
  const double layers = static_cast<double>(spec.model.layers);
  return {.deviation = into_residual(parameter) ? kDeviation / std::sqrt(2 * layers) : kDeviation,
          .key = mixed(seed ^ hash_of(parameter.name))};
}

template <class T>
void initialise_weights(const StageSpec& spec, const WeightOffsets& offsets, std::uint64_t seed, T* weights) {
  std::fill_n(weights, offsets.elements, T{0});
  for (const Parameter& parameter : offsets.parameters) {
    T* const block = weights + parameter.offset;
    const InitialValues values = initial_values(spec, parameter, seed);
    if (values.deviation == 0) {
      std::fill_n(block, parameter.size(), static_cast<T>(values.constant));
      continue;
    }
    over_rows(parameter.rows, parameter.columns, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first * parameter.columns; i < end * parameter.columns; ++i) {
        block[i] = static_cast<T>(values.deviation * normal_number(values.key, parameter.index_in_whole(i)));
      }
    });
  }
}

template void initialise_weights(const StageSpec&, const WeightOffsets&, std::uint64_t, float*);
template void initialise_weights(const StageSpec&, const WeightOffsets&, std::uint64_t, double*);

}  // namespace sluice::kernels
