#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "benchmarks/claims/claim.h"

namespace sluice::bench::claims {

// The prediction of a run.
struct RunResult {
  Json scenario;           // sluice.scenario/1, with all changes applied
  int combinations = 1;    // number of combinations that were predicted
  double iteration_s = 0;  // makespan, or the period of schedules without a flush
  double rate = 0;         // tokens (sequences if there is no sequence length) per second and device
  double tokens_per_s = 0;
  double model_tflops = 0;  // per device
  double hardware_tflops = 0;
  double devices = 1;
  std::int64_t peak_bytes = 0;       // allocated on the rank with the highest memory use
  double transfer_bytes = 0;         // between ranks per iteration, over all replicas
  double formula_s = 0;              // (m + p - 1)(t_f + t_b) of the slowest stage
  std::optional<bool> fits;          // with a model and a cluster
  std::vector<std::int64_t> slices;  // tokens
};

// Predicts all runs of all claims in parallel. Returns a list of runs per claim. Throws InputError naming file and run.
std::vector<std::vector<RunResult>> run_all(std::span<const Claim> claims);

// Returns the time in seconds of one op of a run, including recomputation.
double op_seconds(const Claim& claim, std::size_t run, const RunResult& result, const Op& op);

}  // namespace sluice::bench::claims
