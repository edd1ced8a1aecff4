#pragma once

#include <benchmark/benchmark.h>

#include <string>

#include "model/namespaces.h"

namespace sluice::bench {

// Common code of the GPU benchmarks: a `main` that prints in one line why there is no device and exits with 0 without
// measurements, and that exits with 1 after a benchmark with wrong results.

// Ends a benchmark with wrong results without measurements.
void fail(benchmark::State& state, const std::string& what);

}  // namespace sluice::bench
