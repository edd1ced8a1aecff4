#include <benchmark/benchmark.h>

#include "benchmarks/accuracy/zero_bubble_schedule.h"

namespace sluice::bench::accuracy {
namespace {

// A model with tens of layers per rank: unequal times, latency, and two thirds of the memory of zb-h2.
void plan(benchmark::State& state) {
  const auto ranks = static_cast<std::size_t>(state.range(0));
  const RankBudget budget{.forward = Duration(10'400'000),
                          .input_gradient = Duration(10'200'000),
                          .weight_gradient = Duration(7'700'000),
                          .activation = 100,
                          .kept = 43,
                          .limit = static_cast<std::int64_t>(ranks) * 400 / 3};
  const ZeroBubbleProblem problem{.num_microbatches = static_cast<int>(state.range(1)),
                                  .ranks = std::vector<RankBudget>(ranks, budget),
                                  .hop = Duration(400'000)};
  for (auto _ : state) benchmark::DoNotOptimize(plan_zero_bubble(problem));
  state.SetItemsProcessed(state.iterations() * 3 * state.range(0) * state.range(1));
}
BENCHMARK(plan)->Args({8, 32})->Args({16, 128})->Args({32, 256})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench::accuracy
