// Prints the seconds of predictions of a scenario by direct calls of the library, which benchmarks/python/overhead.py
// compares with those through Python: direct SCENARIO REPETITIONS.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "sim/simulator.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: direct SCENARIO REPETITIONS\n", stderr);
    return 2;
  }
  try {
    const sluice::model::Scenario scenario = sluice::sim::read_scenario(argv[1]);
    for (int i = 0; i < std::atoi(argv[2]); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const sluice::sim::Simulator simulator(scenario);
      const sluice::sim::Prediction prediction = simulator.predict({.keep_memory = true});
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      std::printf("%.9f %u %.9f\n", seconds.count(), simulator.graph().size(), prediction.iteration_s());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "direct: %s\n", error.what());
    return 2;
  }
  return 0;
}
