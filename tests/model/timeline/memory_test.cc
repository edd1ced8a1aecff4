#include "model/timeline/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/cost/uniform.h"
#include "model/graph/lowering.h"
#include "model/schedule/pytorch_csv.h"
#include "model/timeline/held_tensors.h"
#include "model/timeline/metrics.h"
#include "sim/engine/engine.h"
#include "tests/support/all_schedules.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

// Random bytes per stage and slice.
class RandomFootprint : public Footprint {
 public:
  explicit RandomFootprint(std::uint32_t seed) : seed_(seed) {}

  StageBytes stage(int stage) const override {
    std::mt19937 random(seed_ + 1000U * static_cast<std::uint32_t>(stage));
    return {.weights = draw(random), .gradients = draw(random), .optimizer = draw(random)};
  }
  SliceBytes slice(int stage, const MicrobatchShape&, int slice) const override {
    std::mt19937 random(seed_ + 1000U * static_cast<std::uint32_t>(stage) + 7U * static_cast<std::uint32_t>(slice + 1));
    SliceBytes bytes;
    for (std::int64_t* field : {&bytes.activations_to_input_gradient, &bytes.activations_to_weight_gradient,
                                &bytes.gradients_to_weight_gradient, &bytes.keys_values, &bytes.keys_values_gradient,
                                &bytes.forward_workspace, &bytes.backward_workspace, &bytes.transfer_forward,
                                &bytes.transfer_backward, &bytes.vocabulary}) {
      *field = draw(random);
    }
    return bytes;
  }

  // Three tensors of a third each and the rest.
  std::vector<SliceTensor> tensors(int stage, const MicrobatchShape& shape, int slice) const override {
    const SliceBytes whole = this->slice(stage, shape, slice);
    std::vector<SliceTensor> out;
    for (std::int64_t SliceBytes::*field :
         {&SliceBytes::activations_to_input_gradient, &SliceBytes::activations_to_weight_gradient,
          &SliceBytes::gradients_to_weight_gradient, &SliceBytes::keys_values, &SliceBytes::keys_values_gradient,
          &SliceBytes::forward_workspace, &SliceBytes::backward_workspace, &SliceBytes::vocabulary}) {
      out.push_back({field, "a", "x", 3, whole.*field / 3});
      out.push_back({field, "b", "y", 1, whole.*field % 3});
    }
    return out;
  }

 private:
  static std::int64_t draw(std::mt19937& random) { return random() % 100 + 1; }
  std::uint32_t seed_;
};

struct Change {
  Duration time;
  VertexId vertex;
  int phase;  // at the same instant: 0 ops end, 1 transfers arrive, 2 ops start
  std::int64_t bytes;
};

// The straightforward way: every change of a rank's memory, sorted.
std::vector<Change> changes_of(const OpGraph& graph, const Timeline& timeline, int rank) {
  const Schedule& schedule = graph.schedule();
  std::vector<Change> changes;
  const auto op_changes = [&](const Vertex& op, VertexId v) {
    const SliceBytes& bytes = graph.slice_bytes(op.stage, op.microbatch, op.slice);
    const auto at_start = [&](std::int64_t b) { changes.push_back({timeline.start[v], v, 2, b}); };
    const auto at_end = [&](std::int64_t b) { changes.push_back({timeline.end[v], v, 0, b}); };
    if (op.op == OpKind::S) {
      const int last = schedule.num_stages() - 1;
      const bool sent = schedule.rank_of(last, op.microbatch) != rank;
      if (sent) at_start(-graph.slice_bytes(last, op.microbatch, op.slice).transfer_forward);
      at_start(bytes.vocabulary);
    }
    if (op.op == OpKind::T) at_end(-bytes.vocabulary);
    if (op.op == OpKind::S || op.op == OpKind::T) return;
    const int from = op.stage + (op.op == OpKind::F ? -1 : 1);
    if (op.op != OpKind::W && from >= 0 && from < schedule.num_stages() &&
        schedule.rank_of(from, op.microbatch) != schedule.rank_of(op.stage, op.microbatch)) {
      const SliceBytes& sent = graph.slice_bytes(from, op.microbatch, op.slice);
      at_start(-(op.op == OpKind::F ? sent.transfer_forward : sent.transfer_backward));
    }
    if (op.op == OpKind::F) {
      at_start(bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient + bytes.keys_values +
               bytes.forward_workspace);
      at_end(-bytes.forward_workspace);
    }
    if (op.op == OpKind::I) at_start(bytes.gradients_to_weight_gradient);
    if (op.op == OpKind::B || op.op == OpKind::I) {
      at_start(bytes.backward_workspace);
      at_end(-bytes.backward_workspace - bytes.activations_to_input_gradient - bytes.keys_values);
      std::int64_t accumulator = 0;
      for (int i = 0; i < schedule.num_slices(op.microbatch); ++i) {
        accumulator += graph.slice_bytes(op.stage, op.microbatch, i).keys_values_gradient;
      }
      if (op.slice + 1 == schedule.num_slices(op.microbatch)) at_start(accumulator);
      if (op.slice == 0) at_end(-accumulator);
    }
    if (op.op == OpKind::B) at_end(-bytes.activations_to_weight_gradient);
    if (op.op == OpKind::W) at_end(-bytes.activations_to_weight_gradient - bytes.gradients_to_weight_gradient);
  };
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    const Lane& lane = graph.lanes()[vertex.lane];
    if (vertex.kind == VertexKind::transfer && lane.peer == rank) {
      const bool in_place = vertex.op == OpKind::S || vertex.op == OpKind::T;  // reductions
      changes.push_back({timeline.start[v], v, 1, in_place ? 0 : graph.transfer_bytes(vertex)});
    }
    if (lane.rank != rank || (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint)) continue;
    op_changes(vertex, v);
    if (vertex.kind == VertexKind::joint) op_changes(graph.joint_partner(vertex), v);
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tuple(a.time, a.phase, a.vertex) < std::tuple(b.time, b.phase, b.vertex);
  });
  return changes;
}

TEST(Memory, AgreesWithSortedChangesAndReturnsToItsStart) {
  std::uint32_t seed = 0;
  test::for_each_schedule({.ranks = 4, .microbatches = 5, .chunks = 2, .slices = 3}, [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    const RandomFootprint footprint(++seed);
    const OpGraph graph = lower(schedule, {.footprint = &footprint});
    const UniformCost cost({.forward = {2}, .input_gradient = {3}, .weight_gradient = {1}, .hop = seed % 3 * 0.5},
                           schedule);
    const Timeline timeline = simulate(graph, price(graph, cost));
    const std::vector<RankMemory> memory = memory_over_time(graph, timeline, true);
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const RankMemory& of = memory[rank];
      std::int64_t held = 0;
      for (const int stage : schedule.stages_of(rank)) {
        const StageBytes bytes = footprint.stage(stage);
        held += bytes.weights * num_weight_versions(schedule, rank) + bytes.gradients + bytes.optimizer;
      }
      BytesByClass explained{};
      for (const HeldTensor& tensor : held_at_peak(graph, timeline, footprint, of, rank)) {
        explained[static_cast<std::size_t>(tensor.memory_class)] += tensor.bytes;
        EXPECT_GT(tensor.bytes, 0) << tensor.name;
      }
      EXPECT_EQ(explained, of.at_peak);
      const std::int64_t standing = held;
      std::int64_t peak = held;
      Duration peak_time{};
      const std::vector<Change> changes = changes_of(graph, timeline, rank);
      for (std::size_t i = 0; i < changes.size(); ++i) {
        held += changes[i].bytes;
        // Changes of one op at the same instant count together.
        if (i + 1 < changes.size() && changes[i + 1].time == changes[i].time &&
            changes[i + 1].vertex == changes[i].vertex && changes[i + 1].phase == changes[i].phase) {
          continue;
        }
        if (held > peak) {
          peak = held;
          peak_time = changes[i].time;
        }
      }
      EXPECT_EQ(held, standing);
      EXPECT_EQ(of.peak_bytes, peak);
      EXPECT_EQ(of.peak_time, peak_time);
      EXPECT_EQ(total(of.at_peak), peak);
      ASSERT_FALSE(of.samples.empty());
      EXPECT_EQ(total(of.samples.front().bytes) >= standing, true);
      EXPECT_EQ(total(of.samples.back().bytes), standing);
      for (std::size_t i = 1; i < of.samples.size(); ++i) {
        EXPECT_LT(of.samples[i - 1].time, of.samples[i].time);
        for (const std::int64_t bytes : of.samples[i].bytes) EXPECT_GE(bytes, 0);
      }
    }
  });
}

// One rank with two stages, two microbatches, F of 1 s, B of 3 s, and a reduction of 4 s after each B, which no op
// waits for: F00 0-1, F10 1-2, B10 2-5, F01 5-6, B00 6-9, F11 9-10, B11 10-13, B01 13-16; reductions of stages 1, 0, 1,
// 0 end at 9, 13, 17 and 21. Gradients, 100 per stage, exist from the end of a B until that of its reduction, whose
// first leaves the stage's shard, 1; what an F keeps, 10, stays.
TEST(Memory, GradientsExistUntilTheyAreReduced) {
  class Sharded : public Footprint {
   public:
    StageBytes stage(int) const override { return {.gradients = 1, .accumulated_gradients = 100}; }
    SliceBytes slice(int, const MicrobatchShape&, int) const override { return {.kept = 10}; }
    std::vector<SliceTensor> tensors(int, const MicrobatchShape&, int) const override {
      return {{&SliceBytes::kept, "a", "x", 1, 10}};
    }
  };
  class Reduced : public UniformCost {
   public:
    using UniformCost::UniformCost;
    double collective_s(CollectiveKind, int, std::int64_t) const override { return 4; }
  };
  const Schedule schedule = test::make("interleaved-1f1b", {.p = 1, .m = 2, .v = 2});
  const Sharded footprint;
  const OpGraph graph =
      lower(schedule, {.footprint = &footprint, .data_parallel = 2, .overlap_grad_reduce = true, .reduce_runs = true});
  const Reduced cost({.forward = {2}, .input_gradient = {4}, .weight_gradient = {2}}, schedule);
  const Timeline timeline = simulate(graph, price(graph, cost));
  const auto memory = memory_over_time(graph, timeline, true);
  std::vector<std::pair<int, std::int64_t>> totals;
  for (const MemorySample& sample : memory[0].samples) {
    totals.emplace_back(static_cast<int>(to_seconds(sample.time)), total(sample.bytes));
  }
  using Totals = std::vector<std::pair<int, std::int64_t>>;
  EXPECT_EQ(totals, (Totals{{0, 10}, {1, 20}, {5, 130}, {9, 141}, {13, 142}, {16, 242}, {17, 142}, {21, 42}}));
  EXPECT_EQ(memory[0].peak_bytes, 242);
  EXPECT_EQ(memory[0].at_peak[static_cast<std::size_t>(MemoryClass::gradients)], 202);
  BytesByClass explained{};
  for (const HeldTensor& tensor : held_at_peak(graph, timeline, footprint, memory[0], 0)) {
    explained[static_cast<std::size_t>(tensor.memory_class)] += tensor.bytes;
  }
  EXPECT_EQ(explained, memory[0].at_peak);
}

TEST(Memory, SplitBackwardHasThreeLifetimes) {
  // One rank, one microbatch: F 0-1, I 1-2, W 2-3. Peak while I runs: what is freed at I's end (5) and at W's (3), the
  // output gradients for W (2), keys and values (1), and the workspace (4); with the permanent 10 + 20 + 30: 75.
  class Plain : public Footprint {
   public:
    StageBytes stage(int) const override { return {.weights = 10, .gradients = 20, .optimizer = 30}; }
    SliceBytes slice(int, const MicrobatchShape&, int) const override {
      return {.activations_to_input_gradient = 5,
              .activations_to_weight_gradient = 3,
              .gradients_to_weight_gradient = 2,
              .keys_values = 1,
              .backward_workspace = 4};
    }
  };
  const Plain footprint;
  const Schedule schedule = test::make("zb-h1", {.p = 1, .m = 1});
  const OpGraph graph = lower(schedule, {.footprint = &footprint});
  const auto memory = memory_over_time(graph, simulate(graph, price(graph, UniformCost({}, schedule))), true);
  EXPECT_EQ(memory[0].peak_bytes, 75);
  EXPECT_EQ(memory[0].peak_time, std::chrono::seconds(1));
  std::vector<std::int64_t> totals;
  for (const MemorySample& sample : memory[0].samples) totals.push_back(total(sample.bytes));
  EXPECT_EQ(totals, (std::vector<std::int64_t>{69, 75, 65, 60}));  // F, I, W, after
}

TEST(PeakInFlight, ABlockStoresBothOpsInEitherOrder) {
  // The B frees when the block ends, the F allocates when it starts: two at the same time.
  const Schedule backward_first = schedule_from_csv("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n", "s.csv");
  const Schedule forward_first = schedule_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "s.csv");
  EXPECT_DOUBLE_EQ(model::peak_in_flight(backward_first, 0), 2);
  EXPECT_DOUBLE_EQ(model::peak_in_flight(forward_first, 0), 2);
  // Separately, the B is complete before the F starts.
  EXPECT_DOUBLE_EQ(model::peak_in_flight(schedule_from_csv("0F0,0B0,0F1,0B1\n", "s.csv"), 0), 1);
}

TEST(Metrics, StepsCountAsWorkButNotAsSpan) {
  // One rank, F 1 s and B 2 s, then a step of 4 s.
  class Stepping : public CostModel {
   public:
    double compute_s(OpKind kind, int, const MicrobatchShape&, int) const override { return kind == OpKind::F ? 1 : 2; }
    TransferTime transfer(int, int, std::int64_t) const override { return {}; }
    double optimizer_s(int) const override { return 4; }
  };
  const Schedule schedule = test::make("1f1b", {.p = 1, .m = 1});
  const OpGraph graph = lower(schedule);
  const Metrics metrics = measure(graph, simulate(graph, price(graph, Stepping{})));
  EXPECT_EQ(metrics.makespan, std::chrono::seconds(7));
  EXPECT_EQ(metrics.ideal, std::chrono::seconds(7));
  EXPECT_EQ(metrics.span, std::chrono::seconds(3));
  EXPECT_DOUBLE_EQ(metrics.bubble_fraction, 0);
}

}  // namespace
}  // namespace sluice::test
