// Overhead of the executor: the time in which a worker's compute thread neither runs a kernel nor waits.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <utility>

#include "exec/plan/run_plan.h"
#include "exec/run/training_run.h"
#include "model/schedule/family.h"

namespace {

using namespace sluice::bench;

constexpr const char* kFamilies[] = {"gpipe", "1f1b", "seq1f1b", "zb-h1", "zb-v", "interleaved-1f1b"};

// With one layer per stage and hidden size 256 a forward takes some 20 us per token, so range(1) tokens per slice give
// ops from a fraction of a millisecond to several. op_ms reports it.
void overhead(benchmark::State& state) {
  const Family& family = find_family(kFamilies[state.range(0)]);
  Transformer model;
  model.name = "benchmark";
  model.layers = 4;
  model.hidden = 256;
  model.heads = model.kv_heads = 4;
  model.head_dim = 64;
  model.ffn_hidden = 1024;
  model.vocab = 256;
  model.positions = 4096;
  model.dropout = false;
  FamilyParams params{.ranks = 2, .microbatches = 8};
  params.shape.slice_lengths.assign(family.sliced ? 4 : 1, state.range(1));
  RunSpec spec{.model = model};
  spec.clip_gradients = 1;
  const RunPlan plan(spec, make_schedule(family, params));
  const TokenSource tokens = TokenSource::synthetic(256, plan.sequence_length(), 1);
  double total = 0;
  double own = 0;
  double kernels = 0;
  std::int64_t ops = 0;
  for (auto _ : state) {
    TrainingReport report;
    TrainingOptions options;
    options.runs = 4;
    train_with_threads(plan, tokens, options, report);
    for (const WorkerReport& worker : report.workers) {
      total += static_cast<double>(worker.times.total);
      own += static_cast<double>(worker.times.overhead());
      kernels += static_cast<double>(worker.times.kernels);
      ops += plan.schedule().num_ops() / 2;
    }
  }
  state.counters["overhead_share"] = own / total;
  state.counters["overhead_us_per_op"] = own / 1e3 / static_cast<double>(ops);
  state.counters["op_ms"] = kernels / 1e6 / static_cast<double>(ops);
  state.SetLabel(std::string(family.name));
}
BENCHMARK(overhead)
    ->ArgNames({"family", "tokens"})
    ->ArgsProduct({{0, 1, 2, 3, 4, 5}, {16, 64, 256}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
