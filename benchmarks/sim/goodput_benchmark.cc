// Simulated training runs per second, on one thread: 16,384 GPUs that fail every 3.09 h for 54 days, and 100,000 that
// fail every 18 min for 90 days. 10,000 trials take 10,000 times the time of one.

#include <benchmark/benchmark.h>

#include "sim/goodput/trial.h"

namespace sluice::bench {
namespace {

GoodputRun run_of(double gpus, double mtbf_s, double days) {
  constexpr int kComponents = 12;
  GoodputRun run;
  for (int i = 0; i < kComponents; ++i) {
    FailureCause cause;
    cause.units = gpus;
    cause.between = {RandomTime::Kind::exponential, mtbf_s * kComponents * gpus, 0};
    cause.detection.mean_s = 60;
    cause.repair = {RandomTime::Kind::exponential, 7200, 0};
    run.causes.push_back(cause);
  }
  run.horizon = from_seconds(days * 86400, "days");
  run.interval = from_seconds(600, "interval");
  run.stall = run.durable = from_seconds(5, "stall");
  run.init = from_seconds(300, "init");
  run.load = from_seconds(10, "load");
  run.spares = static_cast<int>(2 * 7200 / mtbf_s) + 4;
  return run;
}

void simulate_trials(benchmark::State& state, const GoodputRun& run) {
  std::uint64_t trial = 0;
  std::int64_t failures = 0;
  for ([[maybe_unused]] auto _ : state) failures += simulate_trial(run, 1, trial++).failures;
  state.counters["failures_per_s"] = benchmark::Counter(static_cast<double>(failures), benchmark::Counter::kIsRate);
}

void llama3(benchmark::State& state) { simulate_trials(state, run_of(16384, 3.09 * 3600, 54)); }
void hundred_thousand(benchmark::State& state) { simulate_trials(state, run_of(100'000, 1080, 90)); }
BENCHMARK(llama3)->Unit(benchmark::kMicrosecond);
BENCHMARK(hundred_thousand)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sluice::bench
