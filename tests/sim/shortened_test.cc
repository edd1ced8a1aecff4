#include "sim/engine/shortened.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "sim/engine/predict.h"
#include "sim/simulator.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

// Everything that a prediction reports without ops, with the names and times of the whole critical path.
std::string path_text(const Setup& setup, const Prediction& prediction) {
  std::string out;
  for (std::size_t i = 0; i < path_length(prediction); ++i) {
    const PathStep step = path_step(prediction, i);
    const auto microbatch_of = [&](int microbatch) {
      return later_microbatch(setup.schedule(), setup.scenario().microbatches, microbatch, step.microbatches);
    };
    out += fmt::format("{} {} {}\n", setup.graph().name(step.vertex, microbatch_of),
                       (prediction.timeline.start[step.vertex] + step.later).count(),
                       (prediction.timeline.end[step.vertex] + step.later).count());
  }
  return out;
}

void expect_equal_path(const CriticalPath& brief, const CriticalPath& whole) {
  EXPECT_EQ(brief.compute, whole.compute);
  EXPECT_EQ(brief.transfer, whole.transfer);
  EXPECT_EQ(brief.latency, whole.latency);
  EXPECT_EQ(brief.collective, whole.collective);
  EXPECT_EQ(brief.optimizer, whole.optimizer);
  EXPECT_EQ(brief.idle, whole.idle);
}

void expect_equal_ranks(const Prediction& brief, const Prediction& whole) {
  ASSERT_EQ(brief.metrics.ranks.size(), whole.metrics.ranks.size());
  for (std::size_t rank = 0; rank < whole.metrics.ranks.size(); ++rank) {
    EXPECT_EQ(brief.metrics.ranks[rank].busy, whole.metrics.ranks[rank].busy);
    EXPECT_EQ(brief.metrics.ranks[rank].first_start, whole.metrics.ranks[rank].first_start);
    EXPECT_EQ(brief.metrics.ranks[rank].last_end, whole.metrics.ranks[rank].last_end);
    EXPECT_EQ(brief.metrics.ranks[rank].peak_in_flight, whole.metrics.ranks[rank].peak_in_flight);
    EXPECT_EQ(brief.memory[rank].peak_bytes, whole.memory[rank].peak_bytes);
    EXPECT_EQ(brief.memory[rank].peak_time, whole.memory[rank].peak_time);
    EXPECT_EQ(brief.memory[rank].at_peak, whole.memory[rank].at_peak);
    EXPECT_EQ(brief.idle[rank], whole.idle[rank]);
  }
}

void expect_equal(const ShortenedPrediction& brief, const Setup& setup, const Prediction& whole) {
  const Prediction& found = brief.prediction;
  EXPECT_EQ(found.metrics.makespan, whole.metrics.makespan);
  EXPECT_EQ(found.metrics.ideal, whole.metrics.ideal);
  EXPECT_EQ(found.metrics.span, whole.metrics.span);
  EXPECT_EQ(found.metrics.bubble_fraction, whole.metrics.bubble_fraction);
  EXPECT_EQ(found.metrics.bubble_over_ideal, whole.metrics.bubble_over_ideal);
  EXPECT_EQ(found.period, whole.period);
  EXPECT_EQ(found.iteration, whole.iteration);
  EXPECT_EQ(found.throughput.tokens_per_s, whole.throughput.tokens_per_s);
  EXPECT_EQ(found.throughput.mfu, whole.throughput.mfu);
  ASSERT_EQ(found.fit.has_value(), whole.fit.has_value());
  if (whole.fit) {
    EXPECT_EQ(found.fit->needed_bytes, whole.fit->needed_bytes);
  }
  expect_equal_ranks(found, whole);
  expect_equal_path(found.critical_path, whole.critical_path);
  EXPECT_EQ(path_text(*brief.setup, found), path_text(setup, whole));
  const auto roots = idle_by_root(setup.graph(), whole.timeline);
  ASSERT_EQ(found.repetition->idle_roots.size(), roots.size());
  for (std::size_t i = 0; i < roots.size(); ++i) {
    EXPECT_EQ(found.repetition->idle_roots[i].root, roots[i].root);
    EXPECT_EQ(found.repetition->idle_roots[i].idle, roots[i].idle);
  }
}

// The times and sizes of a scenario, drawn at random: uniform, with slow stages and latencies, or of a model.
Scenario drawn(std::mt19937& random, int stages) {
  std::uniform_int_distribution<int> time(1, 12);
  std::uniform_int_distribution<int> choice(0, 3);
  const int kind = choice(random);
  if (kind == 0) {
    constexpr const char* kTraining[] = {
        "", R"(, "dp": 2)", R"(, "dp": 2, "distributed_optimizer": true, "overlap_grad_reduce": true)",
        R"(, "dp": 2, "distributed_optimizer": true, "overlap_grad_reduce": true, "overlap_param_gather": true, "recompute": "full")"};
    return parse_scenario(fmt::format(
        R"({{"model": {{"num_layers": {}, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 64}},
             "cluster": {{"name": "dgx-h100", "nodes": 16}}, "batch": {{"sequence_length": 64}},
             "parallelism": {{"pp": 1{}}}}})",
        2 * stages, kTraining[choice(random)]));
  }
  Scenario out = parse_scenario(R"({"cost": {"kind": "uniform"}, "parallelism": {"pp": 1}})");
  const auto draw = [&] { return 1e-6 * time(random); };
  out.uniform.forward = {draw()};
  out.uniform.input_gradient = {draw()};
  out.uniform.weight_gradient = {draw()};
  if (kind > 1) out.uniform.hop = draw();
  if (kind < 3) return out;
  for (int stage = 0; stage < stages; ++stage) out.uniform.stage_weights.push_back(time(random));
  return out;
}

struct RunCount {
  int runs = 0;
  int proven = 0;
};

RunCount compare_runs(const Family& family, int ranks, std::mt19937& random) {
  RunCount count;
  for (const int chunks : {1, 2, 3}) {
    if (family.fixed_chunks != 0 && chunks > 1) continue;
    for (const int slices : {1, 2, 4}) {
      if (slices > 1 && !family.sliced) continue;
      for (const int microbatches : {ranks * 48, ranks * 96 + 2}) {
        const int per_rank = family.fixed_chunks != 0 ? family.fixed_chunks : chunks;
        Scenario scenario = drawn(random, ranks * per_rank);
        scenario.schedule = family.name;
        scenario.training.pp = ranks;
        scenario.chunks = per_rank;
        scenario.microbatches = microbatches;
        scenario.shape.slice_lengths.assign(static_cast<std::size_t>(slices),
                                            scenario.model ? scenario.training.sequence_length / slices : 1);
        SCOPED_TRACE(fmt::format("{} p {} v {} k {} m {}", family.name, ranks, chunks, slices, microbatches));
        const auto brief = predict_shortened(scenario);
        try {
          const Setup setup(scenario);
          ++count.runs;
          if (!brief) continue;
          ++count.proven;
          expect_equal(*brief, setup, predict(setup));
        } catch (const InputError& error) {
          EXPECT_FALSE(brief) << error.what();
        }
        if (testing::Test::HasFailure()) return count;
      }
    }
  }
  return count;
}

// Every result of a run that is proven from short ones is that of the whole run.
TEST(Shortened, PredictsAsTheWholeRunDoes) {
  std::mt19937 random(1);
  int families = 0;
  for (const Family& family : all_families()) {
    RunCount sum;
    for (const int ranks : {1, 2, 4, 6}) {
      if (small_scope() && ranks > 4) continue;
      const RunCount count = compare_runs(family, ranks, random);
      ASSERT_FALSE(HasFailure());
      sum.runs += count.runs;
      sum.proven += count.proven;
    }
    families += sum.proven > 0 ? 1 : 0;
    std::printf("%-20s %d of %d runs proven\n", std::string(family.name).c_str(), sum.proven, sum.runs);
  }
  EXPECT_EQ(families, 26);  // all with a flush but hanayo
}

// Schedules of phases with slow stages, latencies and bytes of all kinds: of many drawn at random.
TEST(Shortened, PhasesRepeatToo) {
  std::mt19937 random(7);
  for (const char* name : {"gpipe", "terapipe", "looped-bfs"}) {
    const Family& family = find_family(name);
    RunCount sum;
    for (int times = 0; times < (small_scope() ? 4 : 60); ++times) {
      for (const int ranks : {1, 2, 3, 4, 6}) {
        const RunCount count = compare_runs(family, ranks, random);
        ASSERT_FALSE(HasFailure());
        sum.runs += count.runs;
        sum.proven += count.proven;
      }
    }
    std::printf("%-20s %d of %d runs proven\n", name, sum.proven, sum.runs);
    EXPECT_GT(sum.proven, sum.runs / 2) << name;
  }
}

// With groups the first lists are too short to repeat, and without latencies the critical path stays on one rank, which
// need not be that of its last op before the cut.
TEST(Shortened, GroupsRepeatToo) {
  for (const char* family : {"interleaved-1f1b", "combined-1f1b", "seq1f1b-interleaved", "interleaved-zb"}) {
    for (const int ranks : {4, 8}) {
      Scenario scenario = parse_scenario(fmt::format(
          R"({{"cost": {{"kind": "uniform"}}, "parallelism": {{"pp": {}, "vpp": 2}}, "batch": {{"microbatches": 1024}},
               "schedule": {{"name": "{}"}}}})",
          ranks, family));
      SCOPED_TRACE(fmt::format("{} p {}", family, ranks));
      const auto brief = predict_shortened(scenario);
      ASSERT_TRUE(brief);
      EXPECT_LE(brief->setup->schedule().num_microbatches(), 72);
      const model::Setup setup(scenario);
      expect_equal(*brief, setup, predict(setup));
    }
  }
}

// What disturbs the steady state, or has no family, is simulated whole.
TEST(Shortened, LeavesOtherRunsToTheWholeSimulation) {
  const Scenario plain = parse_scenario(
      R"({"cost": {"kind": "uniform"}, "parallelism": {"pp": 4}, "batch": {"microbatches": 1024},
          "schedule": {"name": "1f1b"}})");
  const auto brief = predict_shortened(plain);
  ASSERT_TRUE(brief);
  EXPECT_LT(brief->setup->schedule().num_microbatches(), 64);
  Scenario other = plain;
  other.perturbation.slow_ranks = {{.rank = 1, .factor = 2}};
  EXPECT_FALSE(predict_shortened(other));
  other = plain;
  other.perturbation.trials = 3;
  EXPECT_FALSE(predict_shortened(other));
  other = plain;
  other.schedule = "pipedream";
  EXPECT_FALSE(predict_shortened(other));
  other = plain;
  other.microbatches = 64;  // too few to be worth it
  EXPECT_FALSE(predict_shortened(other));
}

}  // namespace
}  // namespace sluice::test
