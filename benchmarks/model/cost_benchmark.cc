// Time of evaluating the analytic cost model for every op of a scenario, and of a whole prediction.

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "model/cost/analytic.h"
#include "model/scenario/setup.h"
#include "sim/engine/predict.h"

namespace sluice::bench {
namespace {

// GPT-3 175B on 1,024 A100, interleaved 1F1B, 64 microbatches (Narayanan et al. 2021), and the same with 1F1B and four
// slices.
Scenario gpt3(bool sliced) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "vocab_size": 51200,
              "max_position_embeddings": 2048},
    "cluster": {"name": "dgx-a100-80gb", "nodes": 128},
    "parallelism": {"tp": 8, "pp": 16, "dp": 8, "recompute": "full"},
    "batch": {"micro_batch": 1, "microbatches": 64, "sequence_length": 2048},
    "cost": "analytic"})");
  if (sliced) {
    document["schedule"] = {{"name", "seq1f1b"}, {"slices", 4}};
  } else {
    document["schedule"] = {{"name", "interleaved-1f1b"}};
    document["parallelism"]["vpp"] = 3;
  }
  return scenario_from_json(document, "benchmark", "");
}

// All stages, slices and kinds of ops, transfers, collectives and steps; equal stages are evaluated once, as by price.
void evaluate(benchmark::State& state) {
  const Setup setup(gpt3(state.range(0) != 0));
  const Scenario& scenario = setup.scenario();
  const MicrobatchShape& shape = setup.schedule().shapes()[0];
  std::int64_t ops = 0;
  for (auto _ : state) {
    const AnalyticCost cost(*scenario.model, scenario.training, setup.stages(), *scenario.cluster, scenario.software);
    double sum = 0;
    for (int stage = 0; stage < setup.schedule().num_stages(); ++stage) {
      if (cost.alike(stage) == stage) {
        for (int slice = 0; slice < shape.num_slices(); ++slice) {
          for (const OpKind kind : {OpKind::F, OpKind::B}) sum += cost.compute_s(kind, stage, shape, slice);
          sum += cost.recompute_s(stage, shape, slice);
          ops += 3;
        }
        sum += cost.optimizer_s(stage);
        sum += cost.collective_s(CollectiveKind::gradient_reduce, stage, 1 << 30);
      }
    }
    for (int rank = 0; rank < setup.schedule().num_ranks(); ++rank) {
      sum += cost.transfer(rank, (rank + 1) % setup.schedule().num_ranks(), 1 << 24).occupied_s;
    }
    benchmark::DoNotOptimize(sum);
  }
  state.counters["ops"] = static_cast<double>(ops) / static_cast<double>(state.iterations());
}
BENCHMARK(evaluate)->Arg(0)->Arg(1)->ArgName("sliced")->Unit(benchmark::kMicrosecond);

// From a parsed scenario to its prediction: schedule, checks, graph, prices, timeline, memory, causes.
void predict_whole(benchmark::State& state) {
  const Scenario scenario = gpt3(state.range(0) != 0);
  for (auto _ : state) {
    const Setup setup(scenario);
    benchmark::DoNotOptimize(predict(setup).metrics.makespan);
  }
}
BENCHMARK(predict_whole)->Arg(0)->Arg(1)->ArgName("sliced")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
