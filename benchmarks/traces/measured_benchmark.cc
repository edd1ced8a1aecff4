// Speed of reading and analysing measured timelines: 200,000 events in ByteDance's format.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <iterator>
#include <string>

#include "model/cost/uniform.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "sim/engine/engine.h"
#include "traces/measured/causes_of_slowness.h"
#include "traces/measured/read_measured.h"
#include "traces/measured/recognised.h"
#include "traces/measured/slowdown.h"
#include "traces/rows/run_rows.h"

namespace sluice::bench {
namespace {

constexpr int kRanks = 8;

void add_event(std::string& text, std::string_view name, int replica, int rank, Duration start, Duration end, int step,
               int microbatch) {
  fmt::format_to(std::back_inserter(text),
                 R"({{"name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.6f},"ph":"X","args":{{"step":{},)"
                 R"("model_chunk":0,"mb_id":{},"seq_id":0}}}},)",
                 name, name, replica, rank, static_cast<double>(start.count()) / 1e3,
                 static_cast<double>((end - start).count()) / 1e3, step, microbatch);
}

// 1F1B on 8 ranks with 16 microbatches: 704 events per step and replica.
std::string timeline_text(int steps, int replicas) {
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = kRanks, .microbatches = 16});
  const OpGraph graph = lower(schedule);
  const RunRows run = rows_of(graph, simulate(graph, price(graph, UniformCost({.hop = 0.01}, schedule))));
  std::string text = "[";
  for (int step = 0; step < steps; ++step) {
    for (int replica = 0; replica < replicas; ++replica) {
      for (const OpRow& row : run.rows) {
        const bool forward = row.op.kind == OpKind::F;
        if (row.kind == RowKind::transfer) {
          const Duration end = row.end + row.latency;
          add_event(text, forward ? "forward-send" : "backward-send", replica, row.rank, row.start, end, step, -1);
          add_event(text, forward ? "forward-recv" : "backward-recv", replica, row.peer, row.start, end, step, -1);
        } else if (row.kind == RowKind::F || row.kind == RowKind::B) {
          add_event(text, forward ? "forward-compute" : "backward-compute", replica, row.rank, row.start, row.end, step,
                    row.op.microbatch);
        }
      }
    }
  }
  for (int replica = 0; replica < replicas; ++replica) {
    for (int rank = 0; rank < kRanks; ++rank) {
      fmt::format_to(
          std::back_inserter(text),
          R"({{"name":"thread_name","pid":{},"tid":{},"ph":"M","args":{{"name":"PP rank {}, TP rank 0, x"}}}},)",
          replica, rank, rank);
    }
  }
  text.back() = ']';
  return text;
}

MeasuredRun read_text(const std::string& text) {
  TraceSource source(text, "benchmark");
  return read_bytedance_timeline(source);
}

void read_timeline(benchmark::State& state) {
  const std::string text = timeline_text(static_cast<int>(state.range(0)), 16);
  std::size_t events = 0;
  for (auto _ : state) events = read_text(text).ops.size();
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size()) * state.iterations());
  state.counters["events"] = static_cast<double>(events);
}
BENCHMARK(read_timeline)->Arg(18)->Unit(benchmark::kMillisecond);

void analyse_timeline(benchmark::State& state) {
  const MeasuredRun run = read_text(timeline_text(static_cast<int>(state.range(0)), 16));
  for (auto _ : state) {
    benchmark::DoNotOptimize(recognise(run));
    benchmark::DoNotOptimize(slowdown_of(run, step_graphs(run, ReceiveRule::early)));
    const std::vector<StepGraph> graphs = step_graphs(run, ReceiveRule::observed);
    benchmark::DoNotOptimize(slowdown_of(run, graphs));
    benchmark::DoNotOptimize(causes_of_slowness(run, graphs));
  }
  state.counters["events"] = static_cast<double>(run.ops.size());
}
BENCHMARK(analyse_timeline)->Arg(18)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
