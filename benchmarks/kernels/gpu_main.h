#pragma once

#include <benchmark/benchmark.h>

#include <string>

#include "model/namespaces.h"

namespace sluice::bench {

// What all benchmarks of a GPU share, and none of the CPU: a `main` that says in one line why there is no device and
// exits with 0, having timed nothing; and that exits with 1 after a benchmark whose results were wrong.

// Ends a benchmark whose results are wrong: nothing of it is timed.
void fail(benchmark::State& state, const std::string& what);

}  // namespace sluice::bench
