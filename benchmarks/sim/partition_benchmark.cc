// The best partition of the 126 layers of Llama 3.1 405B over 128 virtual stages, and over 16.

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "sim/planner/partition.h"

namespace sluice::bench {
namespace {

Scenario llama_405b(int chunks) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"num_layers": 126, "hidden_size": 16384, "ffn_hidden_size": 53248, "num_attention_heads": 128,
              "num_query_groups": 8, "vocab_size": 128256, "swiglu": true, "normalization": "RMSNorm",
              "disable_bias_linear": true, "untie_embeddings_and_output_weights": true,
              "position_embedding_type": "rope"},
    "cluster": {"name": "dgx-h100", "nodes": 128},
    "parallelism": {"tp": 8, "cp": 2, "pp": 16, "dp": 4, "sequence_parallel": true, "distributed_optimizer": true},
    "batch": {"global_batch": 512, "sequence_length": 8192}})");
  if (chunks > 1) {
    document["schedule"] = {{"name", "interleaved-1f1b"}};
    document["parallelism"]["vpp"] = chunks;
    document["parallelism"]["stage_layers"] = std::vector<int>(static_cast<std::size_t>(16 * chunks), 0);
    auto& layers = document["parallelism"]["stage_layers"];
    for (int layer = 0; layer < 126; ++layer) layers[static_cast<std::size_t>(1 + layer % (16 * chunks - 2))] = 1;
    if (chunks < 8) document["parallelism"].erase("stage_layers");
  }
  return scenario_from_json(document, "benchmark", "");
}

void partition_126_layers(benchmark::State& state) {
  const Scenario scenario = llama_405b(static_cast<int>(state.range(0)));
  Partition found;
  for (auto _ : state) {
    found = best_partition(scenario);
    benchmark::DoNotOptimize(found);
  }
  state.counters["simulated"] = static_cast<double>(found.simulated);
  state.counters["iteration_s"] = to_seconds(found.result.iteration);
  state.counters["above_bound_percent"] = 100 * (to_seconds(found.result.iteration) / to_seconds(found.bound) - 1);
}
BENCHMARK(partition_126_layers)
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Arg(7)
    ->Arg(8)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

}  // namespace
}  // namespace sluice::bench
