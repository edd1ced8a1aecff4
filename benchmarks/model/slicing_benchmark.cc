// Time of computing TeraPipe's optimum: exactly, for the forward alone and for both directions, compared with Algorithm
// 1 of the paper with its epsilon of 0.1 ms. Includes the tabulation of t_fwd. 96 cells, granularity 1. The backward
// takes twice as long and has another shape, so that the longest f and the longest x belong to different slices.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "model/slicing/algorithm1.h"
#include "model/slicing/terapipe.h"

namespace sluice::bench {
namespace {

enum Shape : std::int64_t { v100, smooth };

// Row by row: t(i, 0) and the context term per token are computed once.
SliceTimes times_of(std::int64_t tokens, std::vector<double> alone, double pair_s) {
  auto row = [alone = std::move(alone), pair_s](std::int64_t context, std::span<Duration> out) {
    const double slope = pair_s * static_cast<double>(context);
    for (std::size_t n = 0; n < out.size(); ++n) {
      const double seconds = alone[n] + slope * static_cast<double>(n + 1);
      out[n] = Duration{static_cast<std::int64_t>(seconds * 1e9 + 0.5)};
    }
  };
  return {.tokens = tokens, .granularity = 1, .row = std::move(row), .grows = true};
}

// One layer of GPT-3 175B on 8 V100 (12 x 12288^2 parameters, 0.4 of 125 TFLOP/s). Either as measured in the paper:
// constant up to 256 tokens (figure 3), then linear, with a context term a3 i j; or smooth: a launch time and FLOPs at
// one rate.
SliceTimes cell_times(std::int64_t shape, std::int64_t tokens, double scale) {
  std::vector<double> alone(static_cast<std::size_t>(tokens));
  for (std::size_t n = 0; n < alone.size(); ++n) {
    const double i = static_cast<double>(n + 1);
    const double linear = shape == v100 ? std::max(2.3e-3, 9e-6 * i) : 1e-4 + 9e-6 * i;
    alone[n] = scale * (linear + 1.2e-10 * i * i);
  }
  return times_of(tokens, std::move(alone), scale * 2.4e-10);
}

SlicingProblem problem_of(const benchmark::State& state, bool backward) {
  SlicingProblem problem{.forward = cell_times(state.range(0), state.range(1), 1), .num_cells = 96};
  if (backward) problem.backward = cell_times(1 - state.range(0), state.range(1), 2);
  return problem;
}

double seconds_of(const auto& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs the exact one and Algorithm 1 alternately; the reported time is that of the exact one.
void exact(benchmark::State& state, bool backward) {
  const SlicingProblem problem = problem_of(state, backward);
  SlicePlan best, printed;
  double exact_s = 0, printed_s = 0;
  for (auto _ : state) {
    const double seconds = seconds_of([&] { best = best_slices(problem); });
    state.SetIterationTime(seconds);
    exact_s += seconds;
  }
  if (!backward) {
    printed_s = seconds_of([&] { printed = algorithm1_slices(problem, std::chrono::microseconds(100)); });
    state.counters["algorithm1_s"] = printed_s;
    state.counters["times_faster"] = printed_s / (exact_s / static_cast<double>(state.iterations()));
    state.counters["algorithm1_excess"] = to_seconds(printed.latency) / to_seconds(best.latency) - 1;
    state.counters["algorithm1_sweeps"] = static_cast<double>(printed.sweeps);
  }
  state.counters["sweeps"] = static_cast<double>(best.sweeps);
  state.counters["slices"] = static_cast<double>(best.lengths.size());
  state.counters["latency_s"] = to_seconds(best.latency);
}

void forward(benchmark::State& state) { exact(state, false); }
void forward_backward(benchmark::State& state) { exact(state, true); }
BENCHMARK(forward)
    ->ArgNames({"shape", "tokens"})
    ->ArgsProduct({{v100, smooth}, {2048, 8192}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(forward_backward)
    ->ArgNames({"shape", "tokens"})
    ->ArgsProduct({{v100, smooth}, {2048, 8192}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
