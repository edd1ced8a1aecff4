#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "benchmarks/claims/claim.h"

namespace sluice::bench::claims {

// What was predicted for a run.
struct Ran {
  Json scenario;           // sluice.scenario/1, with every change laid over it
  int combinations = 1;    // that were predicted to find it
  double iteration_s = 0;  // makespan, or the period of schedules without a flush
  double rate = 0;         // tokens (sequences, where nobody says how long they are) a second and device
  double tokens_per_s = 0;
  double model_tflops = 0;  // a device
  double hardware_tflops = 0;
  double devices = 1;
  std::int64_t peak_bytes = 0;       // allocated on the rank that needs most
  double transfer_bytes = 0;         // between ranks in an iteration, all replicas together
  double formula_s = 0;              // (m + p - 1)(t_f + t_b) of the slowest stage
  std::optional<bool> fits;          // with a model and a cluster
  std::vector<std::int64_t> slices;  // tokens
};

// Predicts all runs of all claims, in parallel: one list a claim, by run. Throws InputError naming file and run.
std::vector<std::vector<Ran>> run_all(std::span<const Claim> claims);

// The time of one op of a run, recomputation included.
double op_seconds(const Claim& claim, std::size_t run, const Ran& ran, const Op& op);

}  // namespace sluice::bench::claims
