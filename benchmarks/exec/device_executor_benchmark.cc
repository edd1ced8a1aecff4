// Overhead of the executor on a GPU: the time in which a compute stream neither runs an op nor waits for a message,
// with ops so small that they do not hide the host's work.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/kernels/gpu_main.h"
#include "exec/device/provider.h"
#include "exec/plan/run_plan.h"
#include "exec/run/training_run.h"
#include "kernels/device_kernels.h"
#include "model/errors.h"
#include "model/schedule/family.h"

namespace sluice::bench {
namespace {

constexpr const char* kFamilies[] = {"1f1b", "seq1f1b", "zb-h1"};

Transformer small_model() {
  Transformer model{.name = "small", .layers = 2, .hidden = 256, .heads = 4, .kv_heads = 4, .head_dim = 64};
  model.ffn_hidden = 1024;
  model.vocab = 256;
  model.positions = 4096;
  model.dropout = false;
  return model;
}

// family: index in kFamilies; tokens: per slice.
void overhead(benchmark::State& state, DeviceRequest::Kind kind, int ranks) {
  const Family& family = find_family(kFamilies[state.range(0)]);
  state.SetLabel(std::string(family.name));
  std::vector<std::unique_ptr<Device>> opened;
  try {
    opened = device_provider()->open({.kind = kind, .count = ranks});
  } catch (const InputError& error) {
    state.SkipWithError(error.what());  // a GPU that cannot be partitioned
    return;
  }
  RunDevices devices{.kernels = device_kernels()};
  for (const auto& device : opened) devices.devices.push_back(device.get());

  FamilyParams params{.ranks = ranks, .microbatches = 16};
  params.shape.slice_lengths.assign(family.sliced ? 4 : 1, state.range(1));
  RunSpec spec{.model = small_model(), .kernels = devices.kernels};
  spec.precision = opened.front()->has_bfloat16() ? Precision::bfloat16 : Precision::float16;
  spec.clip_gradients = 1;
  const RunPlan plan(spec, make_schedule(family, params));
  const TokenSource tokens = TokenSource::synthetic(256, plan.sequence_length(), 1);
  TrainingOptions options;
  options.runs = 8;  // all but the last one are warm-up
  options.devices = &devices;
  std::vector<double> us_per_op;
  double in_ops = 0;
  double waiting = 0;
  double total = 0;
  for ([[maybe_unused]] const auto& _ : state) {
    TrainingReport report;
    train_with_threads(plan, tokens, options, report);
    std::int64_t own = 0;
    for (const WorkerReport& worker : report.workers) {
      own += worker.times.overhead();
      in_ops += static_cast<double>(worker.times.kernels);
      waiting += static_cast<double>(worker.times.waiting);
      total += static_cast<double>(worker.times.total);
    }
    us_per_op.push_back(static_cast<double>(own) / 1e3 / static_cast<double>(plan.schedule().num_ops()));
  }
  std::sort(us_per_op.begin(), us_per_op.end());
  const double ops = static_cast<double>(plan.schedule().num_ops()) * static_cast<double>(us_per_op.size());
  state.counters["overhead_us_per_op"] = us_per_op[us_per_op.size() / 2];
  state.counters["most_us_per_op"] = us_per_op.back();
  state.counters["op_us"] = in_ops / 1e3 / ops;
  state.counters["waiting_us_per_op"] = waiting / 1e3 / ops;
  state.counters["overhead_share"] = 1 - (in_ops + waiting) / total;
}

void families(benchmark::internal::Benchmark* rows) {
  rows->ArgNames({"family", "tokens"})
      ->ArgsProduct({{0, 1, 2}, {64, 512}})
      ->Iterations(5)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}
BENCHMARK_CAPTURE(overhead, stream_1, DeviceRequest::stream, 1)->Apply(families);
BENCHMARK_CAPTURE(overhead, green_2, DeviceRequest::green, 2)->Apply(families);

}  // namespace
}  // namespace sluice::bench
