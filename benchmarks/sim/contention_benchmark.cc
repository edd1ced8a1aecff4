// Shared links: graph vertices per second of the event-driven engine, compared with the sweep.

#include <benchmark/benchmark.h>

#include <string>

#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "sim/engine/engine.h"
#include "sim/engine/period.h"

namespace sluice::bench {
namespace {

// Transfers take a third of a forward, so that both directions overlap all the time.
class Linked : public CostModel {
 public:
  explicit Linked(double transfer_s) : transfer_s_(transfer_s) {}
  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int) const override {
    return (kind == OpKind::F ? 1e-3 : 2e-3) * (1 + 0.01 * stage);
  }
  TransferTime transfer(int, int, std::int64_t) const override { return {.occupied_s = transfer_s_}; }

 private:
  double transfer_s_;
};

// One card per rank and direction.
LinkSharing cards(const OpGraph& graph, Sharing policy) {
  const int ranks = graph.schedule().num_ranks();
  LinkSharing sharing{.num_resources = 2 * ranks};
  for (const Lane& lane : graph.lanes()) {
    if (lane.kind != LaneKind::link) continue;
    sharing.links.push_back({.policy = policy, .uses = {{lane.rank, 1}, {ranks + lane.peer, 1}}});
  }
  return sharing;
}

struct Case {
  const char* family;
  int ranks;
  Sharing policy;
  double transfer_s;
  const char* label;
};
constexpr Case kCases[] = {
    {"1f1b", 16, Sharing::none, 0.3e-3, "1f1b p=16, sweep"},
    {"1f1b", 16, Sharing::fair, 0.3e-3, "1f1b p=16, fair"},
    {"1f1b", 16, Sharing::queue, 0.3e-3, "1f1b p=16, queue"},
    {"1f1b", 64, Sharing::fair, 0.3e-3, "1f1b p=64, fair"},
    {"1f1b", 16, Sharing::fair, 3e-3, "1f1b p=16, fair, links the bottleneck"},
    {"zb-h1", 16, Sharing::fair, 0.3e-3, "zb-h1 p=16, fair"},
};

template <typename Step>
void run_case(benchmark::State& state, const Step& step) {
  const Case& shape = kCases[state.range(0)];
  FamilyParams params{.ranks = shape.ranks};
  params.microbatches = static_cast<int>(state.range(1) / 4 / shape.ranks);
  const Schedule schedule = make_schedule(find_family(shape.family), params);
  const OpGraph graph = lower(schedule);
  Prices prices = price(graph, Linked(shape.transfer_s));
  if (shape.policy != Sharing::none) prices.sharing = cards(graph, shape.policy);
  for (auto _ : state) step(graph, prices);
  state.SetLabel(shape.label);
  state.SetComplexityN(graph.size());
  state.counters["vertices/s"] = benchmark::Counter(
      static_cast<double>(graph.size()) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void contended_simulate(benchmark::State& state) {
  run_case(state, [](const OpGraph& graph, const Prices& prices) {
    benchmark::DoNotOptimize(simulate(graph, prices).end.data());
  });
}
void contended_period(benchmark::State& state) {
  run_case(state, [](const OpGraph& graph, const Prices& prices) {
    benchmark::DoNotOptimize(repeated_period(graph, prices));
  });
}

BENCHMARK(contended_simulate)
    ->ArgsProduct({benchmark::CreateDenseRange(0, std::size(kCases) - 1, 1), {100'000, 1'000'000}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(contended_simulate)
    ->ArgsProduct({{1}, benchmark::CreateRange(10'000, 10'000'000, 10)})
    ->Unit(benchmark::kMillisecond)
    ->Name("contended_simulate/1f1b")
    ->Complexity(benchmark::oN);
BENCHMARK(contended_period)->ArgsProduct({{0, 1, 2}, {10'000, 100'000}})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
