// The most frequent operations of the search for automatic schedules: timing of orders and full evaluations, compared
// with lowering and sweeping a graph; and the lower bound and a list schedule.

#include <benchmark/benchmark.h>

#include "sim/planner/auto_bounds.h"
#include "sim/planner/auto_schedule.h"
#include "sim/planner/list_scheduling.h"
#include "sim/planner/order_times.h"

namespace sluice::bench {
namespace {

// V placement, latencies, the memory of ZB-V.
PlacedProblem problem_of(int ranks, int microbatches) {
  PlacedProblem problem;
  problem.num_ranks = ranks;
  problem.num_microbatches = microbatches;
  for (int r = 0; r < ranks; ++r) problem.rank_of.push_back(r);
  for (int r = ranks - 1; r >= 0; --r) problem.rank_of.push_back(r);
  const std::size_t stages = problem.rank_of.size();
  problem.times.assign(stages, {.forward = Duration(5'000'000),
                                .input_gradient = Duration(6'000'000),
                                .weight_gradient = Duration(4'000'000),
                                .backward = Duration(10'000'000)});
  problem.bytes.assign(stages, {.activations_to_weight_gradient = 1});
  problem.limit.assign(ranks, 2 * ranks);
  problem.after.assign(ranks, Duration{});
  problem.forward_hop.assign(stages, Duration(500'000));
  problem.backward_hop.assign(stages, Duration(500'000));
  return problem;
}

Orders zb_v(const PlacedProblem& problem, const OpTable& table) {
  for (const auto& [name, schedule] : families_of(problem)) {
    if (name == "zb-v") return orders_of(table, schedule);
  }
  return sequential_orders(problem);
}

void evaluate(benchmark::State& state) {
  const PlacedProblem problem = problem_of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  const OpTable table(problem);
  const Orders orders = zb_v(problem, table);
  OrderTimes times(problem, table);
  for (auto _ : state) benchmark::DoNotOptimize(times.run(orders));
  state.counters["ops"] = 3.0 * table.cells;
  state.SetItemsProcessed(state.iterations() * 3 * table.cells);
}
BENCHMARK(evaluate)->Args({4, 8})->Args({8, 32})->Args({8, 64})->Args({16, 128})->Unit(benchmark::kMicrosecond);

void simulate_anew(benchmark::State& state) {
  const PlacedProblem problem = problem_of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  const OpTable table(problem);
  const Schedule schedule = schedule_of(problem, zb_v(problem, table));
  for (auto _ : state) benchmark::DoNotOptimize(simulated_makespan(problem, schedule));
}
BENCHMARK(simulate_anew)->Args({8, 64})->Unit(benchmark::kMicrosecond);

void bound(benchmark::State& state) {
  const PlacedProblem problem = problem_of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  const OpTable table(problem);
  for (auto _ : state) benchmark::DoNotOptimize(auto_bounds(problem, table).makespan);
}
BENCHMARK(bound)->Args({8, 32})->Args({8, 64})->Unit(benchmark::kMillisecond);

void list(benchmark::State& state) {
  const PlacedProblem problem = problem_of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  const OpTable table(problem);
  const AutoBounds bounds = auto_bounds(problem, table);
  for (auto _ : state) benchmark::DoNotOptimize(list_schedule(problem, table, bounds.tail, {}));
}
BENCHMARK(list)->Args({8, 32})->Args({8, 64})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sluice::bench
