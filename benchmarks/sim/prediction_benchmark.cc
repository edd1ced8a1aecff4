// From a family to its prediction: graph vertices per second on one core, and the time of each step.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <memory>
#include <string>

#include "model/blocks/model_files.h"
#include "model/cost/analytic.h"
#include "model/cost/uniform.h"
#include "model/cost/woven_blocks.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "sim/engine/engine.h"
#include "sim/engine/period.h"
#include "sim/engine/predict.h"
#include "sim/engine/shortened.h"

namespace sluice::bench {
namespace {

// Bytes for every op, so that the memory pass does its full work.
class PlainFootprint : public Footprint {
 public:
  StageBytes stage(int) const override { return {.weights = 2, .gradients = 4, .optimizer = 12}; }
  SliceBytes slice(int, const MicrobatchShape&, int) const override {
    return {.activations_to_input_gradient = 5,
            .activations_to_weight_gradient = 3,
            .gradients_to_weight_gradient = 2,
            .keys_values = 1,
            .transfer_forward = 1,
            .transfer_backward = 1};
  }
};

struct Shape {
  const char* family;
  int ranks;
  int chunks;
  int slices;
  int ops_per_unit;  // compute vertices and transfers of one microbatch, slice and stage
};
constexpr Shape kShapes[] = {
    {"1f1b", 16, 0, 1, 4}, {"interleaved-1f1b", 16, 4, 1, 4}, {"zb-h1", 16, 0, 1, 5},    {"seq1f1b", 16, 0, 8, 4},
    {"zb-v", 16, 0, 1, 5}, {"v-half", 16, 0, 1, 5},           {"dualpipe", 16, 0, 1, 4},
};

FamilyParams params_for(const Shape& shape, std::int64_t vertices) {
  FamilyParams params{.ranks = shape.ranks, .chunks = shape.chunks};
  params.shape.slice_lengths.assign(shape.slices, 1);
  const Family& family = find_family(shape.family);
  const std::int64_t stages =
      shape.ranks * std::max<std::int64_t>(1, family.fixed_chunks == 0 ? shape.chunks : family.fixed_chunks);
  const std::int64_t per_microbatch = stages * shape.slices * shape.ops_per_unit;
  const std::int64_t microbatches = vertices / per_microbatch / 32 * 32;  // groups of ranks, pairs
  params.microbatches = static_cast<int>(std::max<std::int64_t>(32, microbatches));
  return params;
}

void family_to_result(benchmark::State& state) {
  const Shape& shape = kShapes[state.range(0)];
  const FamilyParams params = params_for(shape, state.range(1));
  std::int64_t vertices = 0;
  for (auto _ : state) {
    const Schedule schedule = make_schedule(find_family(shape.family), params);
    const PlainFootprint footprint;
    const OpGraph graph = lower(schedule, {.footprint = &footprint});
    const Prices prices = price(graph, UniformCost({}, schedule));
    const Timeline timeline = simulate(graph, prices);
    const Metrics metrics = measure(graph, timeline);
    const auto memory = memory_over_time(graph, timeline, false);
    benchmark::DoNotOptimize(metrics.makespan);
    benchmark::DoNotOptimize(memory.front().peak_bytes);
    vertices = graph.size();
  }
  state.SetLabel(shape.family);
  state.SetComplexityN(vertices);
  state.counters["vertices"] = static_cast<double>(vertices);  // for tools/instructions.sh
  state.counters["vertices/s"] = benchmark::Counter(
      static_cast<double>(vertices) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

// A mixture of experts on H100s, whose joint blocks are woven of parts on two lanes: with the costs of its model, and
// the communication of every rank that compute hides.
void parts_to_result(benchmark::State& state, const char* name, int chunks) {
  const Transformer model =
      read_model(SLUICE_SOURCE_DIR "/examples/models/qwen3-30b-a3b/config.json").transformer("a benchmark");
  Training training;
  training.pp = 16;
  training.dp = training.ep = 8;
  training.sequence_length = 4096;
  FamilyParams params = params_for({name, training.pp, chunks, 1, 4}, state.range(0));
  params.shape.slice_lengths = {training.sequence_length};
  std::int64_t vertices = 0;
  for (auto _ : state) {
    const Schedule schedule = make_schedule(find_family(name), params);
    const AnalyticCost cost(model, training, split_layers(model, schedule.num_stages(), {}, 0, 0),
                            load_cluster("dgx-h100", 16), load_software("megatron-lm"));
    const PlainFootprint footprint;
    const OpGraph graph = lower(schedule, {.footprint = &footprint});
    const Timeline timeline = simulate(graph, price(graph, cost));
    const Metrics metrics = measure(graph, timeline);
    const auto memory = memory_over_time(graph, timeline, false);
    const auto communication = WovenBlocks(graph, cost).by_rank();
    benchmark::DoNotOptimize(metrics.makespan);
    benchmark::DoNotOptimize(memory.front().peak_bytes);
    benchmark::DoNotOptimize(communication.front().exposed_s);
    vertices = graph.size();
  }
  state.counters["vertices/s"] = benchmark::Counter(
      static_cast<double>(vertices) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Each step separately, on 1F1B with 10^6 vertices.
template <typename Step>
void one_step(benchmark::State& state, Step&& step) {
  const Schedule schedule = make_schedule(find_family("1f1b"), params_for(kShapes[0], 1'000'000));
  const PlainFootprint footprint;
  const OpGraph graph = lower(schedule, {.footprint = &footprint});
  const Prices prices = price(graph, UniformCost({}, schedule));
  const Timeline timeline = simulate(graph, prices);
  for (auto _ : state) step(schedule, footprint, graph, prices, timeline);
  state.counters["vertices/s"] = benchmark::Counter(
      static_cast<double>(graph.size()) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void step_make_and_check(benchmark::State& state) {
  one_step(state, [](auto&&...) {
    benchmark::DoNotOptimize(make_schedule(find_family("1f1b"), params_for(kShapes[0], 1'000'000)).num_ops());
  });
}
void step_lower(benchmark::State& state) {
  one_step(state, [](const Schedule& schedule, const Footprint& footprint, auto&&...) {
    benchmark::DoNotOptimize(lower(schedule, {.footprint = &footprint}).size());
  });
}
void step_price(benchmark::State& state) {
  one_step(state, [](const Schedule& schedule, const Footprint&, const OpGraph& graph, auto&&...) {
    benchmark::DoNotOptimize(price(graph, UniformCost({}, schedule)).duration.data());
  });
}
void step_simulate(benchmark::State& state) {
  one_step(state, [](const Schedule&, const Footprint&, const OpGraph& graph, const Prices& prices, auto&&...) {
    benchmark::DoNotOptimize(simulate(graph, prices).end.data());
  });
}
void step_period(benchmark::State& state) {
  one_step(state, [](const Schedule&, const Footprint&, const OpGraph& graph, const Prices& prices, auto&&...) {
    benchmark::DoNotOptimize(repeated_period(graph, prices));
  });
}
void step_measure(benchmark::State& state) {
  one_step(state, [](const Schedule&, const Footprint&, const OpGraph& graph, const Prices&, const Timeline& timeline) {
    benchmark::DoNotOptimize(measure(graph, timeline).makespan);
  });
}
void step_memory(benchmark::State& state) {
  one_step(state, [](const Schedule&, const Footprint&, const OpGraph& graph, const Prices&, const Timeline& timeline) {
    benchmark::DoNotOptimize(memory_over_time(graph, timeline, false).front().peak_bytes);
  });
}

// A scenario of 8 ranks and a number of microbatches with its results, as `sluice simulate` computes them without an
// output of ops: the time that the whole simulation takes for 64 should also suffice for 8,192.
void scenario_to_result(benchmark::State& state, const char* family, int chunks, int slices) {
  Scenario scenario;
  scenario.schedule = family;
  scenario.chunks = chunks;
  scenario.training.pp = 8;
  scenario.microbatches = static_cast<int>(state.range(0));
  scenario.shape.slice_lengths.assign(static_cast<std::size_t>(slices), 1);
  bool shortened = false;
  for (auto _ : state) {
    const auto brief = sim::predict_shortened(scenario);
    shortened = brief.has_value();
    const auto setup = shortened ? nullptr : std::make_unique<Setup>(scenario);
    benchmark::DoNotOptimize(shortened ? brief->prediction.iteration : sim::predict(*setup).iteration);
  }
  state.SetLabel(shortened ? "shortened" : "whole");
}

BENCHMARK(family_to_result)
    ->ArgsProduct({benchmark::CreateDenseRange(0, std::size(kShapes) - 1, 1), {100'000, 1'000'000}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(family_to_result)
    ->ArgsProduct({{0}, benchmark::CreateRange(100'000, 10'000'000, 10)})
    ->Unit(benchmark::kMillisecond)
    ->Name("family_to_result/1f1b")
    ->MinTime(3)  // several rounds of the largest, as the first one includes page faults
    ->Complexity(benchmark::oN);
BENCHMARK_CAPTURE(parts_to_result, combined_1f1b, "combined-1f1b", 3)->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(parts_to_result, dualpipe, "dualpipe", 0)->Arg(1'000'000)->Unit(benchmark::kMillisecond);
#define SLUICE_SCENARIO(name, ...) \
  BENCHMARK_CAPTURE(scenario_to_result, name, __VA_ARGS__)->Arg(64)->Arg(8192)->Unit(benchmark::kMillisecond)
SLUICE_SCENARIO(1f1b, "1f1b", 0, 1);
SLUICE_SCENARIO(zb_v, "zb-v", 0, 1);
SLUICE_SCENARIO(seq1f1b_interleaved, "seq1f1b-interleaved", 2, 4);
SLUICE_SCENARIO(dualpipe, "dualpipe", 0, 1);
BENCHMARK(step_make_and_check)->Unit(benchmark::kMillisecond);
BENCHMARK(step_lower)->Unit(benchmark::kMillisecond);
BENCHMARK(step_price)->Unit(benchmark::kMillisecond);
BENCHMARK(step_simulate)->Unit(benchmark::kMillisecond);
BENCHMARK(step_period)->Unit(benchmark::kMillisecond);
BENCHMARK(step_measure)->Unit(benchmark::kMillisecond);
BENCHMARK(step_memory)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
