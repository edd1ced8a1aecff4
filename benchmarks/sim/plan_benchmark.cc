// Configurations of GPT-3 175B on 1,024 A100s with batch 1,536 per second: simulated as by `sluice plan`, and predicted
// one by one as by `sluice simulate`.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/engine/predict.h"
#include "sim/planner/plan.h"

namespace sluice::bench {
namespace {

Scenario gpt3() {
  return scenario_from_json(nlohmann::json::parse(R"({
    "model": {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "vocab_size": 51200,
              "max_position_embeddings": 2048},
    "cluster": {"name": "dgx-a100-80gb", "nodes": 128},
    "batch": {"global_batch": 1536, "sequence_length": 2048}})"),
                            "benchmark", "");
}

// Families to search; not `deep`: only pipelines of up to 16 ranks.
struct Search {
  std::vector<std::string> families;
  bool deep = true;

  PlanSpace space() const {
    PlanSpace out{.families = families};
    if (!deep) out.pp = {1, 2, 4, 8, 16};
    return out;
  }
};
const Search kSearches[] = {
    {.families = {}},
    {.families = {"1f1b", "interleaved-1f1b"}},
    {.families = {"1f1b", "interleaved-1f1b"}, .deep = false},
    {.families = {"zb-h1", "zb-v", "seq1f1b", "dualpipe-v"}, .deep = false},
};
constexpr const char* kNames[] = {"all families", "megatron", "megatron, pp <= 16",
                                  "zb-h1 zb-v seq1f1b dualpipe-v, pp <= 16"};

void search(benchmark::State& state) {
  const Search& of = kSearches[state.range(0)];
  state.SetLabel(kNames[state.range(0)]);
  std::int64_t points = 0;
  for (auto _ : state) {
    Plan plan(gpt3(), of.space(), 10);
    for (auto work = plan.next(); !work.empty(); work = plan.next()) {
      plan.take(work, plan.work_out(work));
      plan.end_round();
    }
    points += std::ssize(plan.points());
  }
  state.counters["configurations"] = benchmark::Counter(static_cast<double>(points), benchmark::Counter::kIsRate);
}
BENCHMARK(search)->Arg(0)->Arg(1)->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kSecond)->Iterations(1);

// All configurations of a plan that may fit, by structure.
std::vector<Plan::Work> all_open(Plan& plan) {
  const auto assessed = plan.next();
  plan.take(assessed, plan.work_out(assessed));
  plan.end_round();
  std::vector<Plan::Work> all;
  for (auto work = plan.next(); !work.empty(); work = plan.next()) all.insert(all.end(), work.begin(), work.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const Plan::Work& a, const Plan::Work& b) { return a.structure < b.structure; });
  return all;
}

void simulate_all(benchmark::State& state) {
  const Search& of = kSearches[state.range(0)];
  state.SetLabel(kNames[state.range(0)]);
  std::int64_t simulated = 0;
  for (auto _ : state) {
    state.PauseTiming();
    Plan plan(gpt3(), of.space(), 10, true);
    const std::vector<Plan::Work> all = all_open(plan);
    state.ResumeTiming();
    benchmark::DoNotOptimize(plan.work_out(all));
    simulated += std::ssize(all);
  }
  state.counters["simulated"] = benchmark::Counter(static_cast<double>(simulated), benchmark::Counter::kIsRate);
}
BENCHMARK(simulate_all)
    ->Arg(1)
    ->Arg(2)
    ->Arg(3)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

// Every twentieth of them separately on one core: schedule, graph, prices and simulation of all microbatches.
void predict_each(benchmark::State& state) {
  const Search& of = kSearches[state.range(0)];
  state.SetLabel(kNames[state.range(0)]);
  Plan plan(gpt3(), of.space(), 10, true);
  const std::vector<Plan::Work> all = all_open(plan);
  std::int64_t predicted = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < all.size(); i += 20) {
      const Setup setup(scenario_of(plan.base(), plan.space(), plan.points()[all[i].point]));
      benchmark::DoNotOptimize(predict(setup));
      ++predicted;
    }
  }
  state.counters["predicted"] = benchmark::Counter(static_cast<double>(predicted), benchmark::Counter::kIsRate);
}
BENCHMARK(predict_each)
    ->Arg(1)
    ->Arg(2)
    ->Arg(3)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

}  // namespace
}  // namespace sluice::bench
