// Speed of writing traces, plain and gzipped, and of reading them: about a million events of 1F1B on 16 ranks.

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/cost/uniform.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "sim/engine/engine.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/chrome/gzip.h"
#include "traces/read/trace_read.h"

namespace sluice::bench {
namespace {

Schedule schedule_of(const benchmark::State& state) {
  return make_schedule(find_family("1f1b"), {.ranks = 16, .microbatches = static_cast<int>(state.range(0))});
}

void write_trace(benchmark::State& state, bool gzipped) {
  const Schedule schedule = schedule_of(state);
  const OpGraph graph = lower(schedule);
  const Timeline timeline = simulate(graph, price(graph, UniformCost({}, schedule)));
  std::int64_t events = 0;
  std::int64_t bytes = 0;
  const ByteSink count = [&bytes](std::string_view text) { bytes += std::ssize(text); };
  for (auto _ : state) {
    bytes = 0;
    if (gzipped) {
      GzipStream gzip(count);
      events = write_chrome_trace([&gzip](std::string_view text) { gzip.write(text); }, graph, timeline, {});
      gzip.finish();
    } else {
      events = write_chrome_trace(count, graph, timeline, {});
    }
  }
  state.counters["events/s"] = benchmark::Counter(static_cast<double>(events) * static_cast<double>(state.iterations()),
                                                  benchmark::Counter::kIsRate);
  state.counters["bytes/event"] = static_cast<double>(bytes) / static_cast<double>(events);
}

void read_trace(benchmark::State& state) {
  const Schedule schedule = schedule_of(state);
  const OpGraph graph = lower(schedule);
  std::string text;
  write_chrome_trace([&text](std::string_view bytes) { text += bytes; }, graph,
                     simulate(graph, price(graph, UniformCost({}, schedule))), {});
  for (auto _ : state) {
    std::vector<std::unique_ptr<TraceSource>> sources;
    sources.push_back(std::make_unique<TraceSource>(text, "benchmark"));
    benchmark::DoNotOptimize(read_trace_run(std::move(sources), {.causes = false}));
  }
  state.SetBytesProcessed(std::ssize(text) * state.iterations());
}

BENCHMARK_CAPTURE(write_trace, plain, false)->Arg(650)->Arg(6500)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_trace, gzipped, true)->Arg(650)->Arg(6500)->Unit(benchmark::kMillisecond);

BENCHMARK(read_trace)->Arg(650)->Arg(6500)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
