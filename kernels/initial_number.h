#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#ifdef __CUDACC__
#define SLUICE_ANYWHERE __host__ __device__
#else
#define SLUICE_ANYWHERE
#endif

namespace sluice::kernels {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of x.
SLUICE_ANYWHERE inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// In (0, 1].
SLUICE_ANYWHERE inline double unit_number(std::uint64_t bits) {
  return static_cast<double>((bits >> 11) + 1) * 0x1p-53;
}

// Returns a standard normal number, a function of the key and the index (Box and Muller 1958). On a GPU, logarithm and
// cosine may differ from the host's in the last place of a double.
SLUICE_ANYWHERE inline double normal_number(std::uint64_t key, std::int64_t index) {
  const std::uint64_t first = mixed(key ^ mixed(2 * static_cast<std::uint64_t>(index)));
  const std::uint64_t second = mixed(key ^ mixed(2 * static_cast<std::uint64_t>(index) + 1));
  return std::sqrt(-2 * std::log(unit_number(first))) * std::cos(2 * std::numbers::pi * unit_number(second));
}

}  // namespace sluice::kernels
