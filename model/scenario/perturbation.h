// Public header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

class JsonReader;

// Independent random factors, with mean 1, on the time of every op, transfer, collective and step, and on the latency
// of every link.
struct Jitter {
  enum class Kind : std::uint8_t {
    none,
    lognormal,  // spread is the standard deviation of the logarithm
    normal,     // spread is the standard deviation; draws below 0 or above 2 are repeated
    uniform,    // from 1 - spread to 1 + spread
  };
  Kind kind = Kind::none;
  double spread = 0;
};

// Stragglers and noise, applied to the times of the cost model.
struct Perturbation {
  struct SlowRank {
    int rank = 0;
    double factor = 1;  // on the time of all compute of the rank
  };
  struct SlowLink {
    int a = 0;
    int b = 0;
    double factor = 1;  // on the time of every transfer between the two, on the wire and latency, in both directions
  };
  std::string source;  // of the scenario, in errors
  std::vector<SlowRank> slow_ranks;
  std::vector<SlowLink> slow_links;
  Jitter jitter;
  int trials = 0;
  std::uint64_t seed = 1;

  bool slows() const { return !slow_ranks.empty() || !slow_links.empty(); }
};

inline constexpr double kMostSlowdown = 1e6;
inline constexpr int kMostTrials = 1'000'000;

// Parses "lognormal:0.05". Throws InputError with a message that starts with `place`.
Jitter parse_jitter(const std::string& text, const std::string& place);
std::string to_string(const Jitter& jitter);

// Reads {"slow_ranks": [{"rank", "factor"}], "slow_links": [{"between": [a, b], "factor"}], "jitter": "lognormal:0.05",
// "trials", "seed"}, all optional; trials default to 1000 with jitter. Throws InputError.
Perturbation perturbation_from_json(JsonReader& reader);

}  // namespace sluice::model
