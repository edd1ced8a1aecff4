#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/units.h"

namespace sluice::sim {

// Random numbers of one purpose in one trial: xoshiro256++ (Blackman and Vigna 2018), seeded by splitmix64. The numbers
// depend on the three arguments only, so that the result of a trial is the same on any thread.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t trial, std::uint64_t purpose);

  // Uniform in (0, 1].
  double uniform() { return static_cast<double>((next() >> 11U) + 1) * 0x1p-53; }
  double exponential() { return -std::log(uniform()); }  // of mean 1
  double normal();                                       // of mean 0 and deviation 1

 private:
  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17U;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  std::array<std::uint64_t, 4> state_{};
};

// A time that is fixed or drawn, in seconds.
struct RandomTime {
  enum class Kind : std::uint8_t { fixed, exponential, uniform, lognormal, weibull };
  Kind kind = Kind::fixed;
  double mean_s = 0;
  double shape = 0;  // uniform: half of the width, in seconds; lognormal: sigma; weibull: the exponent k

  double draw(RandomStream& random) const;
  // The same distribution with all times multiplied by `factor`.
  RandomTime scaled(double factor) const;
  // The scale of a Weibull distribution, in seconds.
  double weibull_scale() const;
};

// Parses "300", "300s", "10min", "3.1h" or "54d": without a unit seconds. `what` names the time in the error. Throws
// InputError if it is negative, or above 1e15 s.
double parse_seconds(std::string_view text, const std::string& what);

// Parses a time as above, or "exp:MEAN", "uniform:LOW:HIGH", "lognormal:MEDIAN:MEAN" or "weibull:MEAN:K".
RandomTime parse_random_time(std::string_view text, const std::string& what);

}  // namespace sluice::sim
