// A program outside this repository that predicts an iteration with the installed libraries.

#include <cstdio>

#include "sluice/sim/simulator.h"

int main() {
  const auto scenario = sluice::sim::parse_scenario(R"({
    "schema": "sluice.scenario/1", "parallelism": {"pp": 4}, "batch": {"microbatches": 8}, "schedule": "1f1b",
    "cost": {"kind": "uniform", "f": 1, "b": 1, "w": 1}})");
  const auto prediction = sluice::sim::Simulator(scenario).predict();
  std::printf("1f1b on 4 ranks, 8 microbatches: %g s per iteration\n", prediction.iteration_s());
  // (m + p - 1)(f + b + w) = (8 + 3) x (1 + 1 + 1) s: the first microbatch passes p - 1 ranks before the last rank has
  // work, whose m microbatches then follow without a gap.
  return prediction.iteration_s() == 33 ? 0 : 1;
}
