#include "model/graph/offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "model/cost/uniform.h"
#include "model/graph/lowering.h"
#include "model/timeline/causes.h"
#include "model/timeline/held_tensors.h"
#include "model/timeline/memory.h"
#include "sim/engine/engine.h"
#include "sim/planner/auto_setup.h"
#include "sim/simulator.h"
#include "tests/support/all_schedules.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

// Random times of ops, transfers and copies; a copy takes up to `most_copy` nanoseconds.
class CopyCost : public CostModel {
 public:
  CopyCost(std::uint32_t seed, int most_copy) : random_(seed), most_copy_(most_copy) {}

  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int slice) const override {
    return drawn(static_cast<int>(kind), stage, slice, 50);
  }
  double recompute_s(int stage, const MicrobatchShape&, int slice) const override { return drawn(4, stage, slice, 20); }
  TransferTime transfer(int from, int to, std::int64_t) const override {
    return {.occupied_s = drawn(5, from, to, 9), .latency_s = drawn(6, from, to, 9)};
  }
  double host_copy_s(int stage, const MicrobatchShape&, int slice, std::int64_t) const override {
    return most_copy_ == 0 ? 0 : drawn(7, stage, slice, most_copy_);
  }

 private:
  double drawn(int a, int b, int c, int most) const {
    const auto [found, added] = times_.try_emplace({a, b, c}, 0);
    if (added) found->second = static_cast<double>(1 + random_() % static_cast<unsigned>(most));
    return found->second * 1e-9;
  }
  mutable std::map<std::array<int, 3>, double> times_;
  mutable std::mt19937 random_;
  int most_copy_;
};

// Bytes that differ by stage; tensors are whole fields.
class StoredFootprint : public Footprint {
 public:
  StageBytes stage(int stage) const override { return {.weights = 10 + stage}; }
  SliceBytes slice(int stage, const MicrobatchShape&, int slice) const override {
    return {.activations_to_input_gradient = 100 + 7 * stage,
            .activations_to_weight_gradient = 50 + slice,
            .gradients_to_weight_gradient = 20,
            .keys_values = 30 + stage,
            .keys_values_gradient = 3,
            .transfer_forward = 5,
            .transfer_backward = 4};
  }
  std::vector<SliceTensor> tensors(int stage, const MicrobatchShape& shape, int slice) const override {
    const SliceBytes whole = this->slice(stage, shape, slice);
    std::vector<SliceTensor> out;
    for (std::int64_t SliceBytes::*field :
         {&SliceBytes::activations_to_input_gradient, &SliceBytes::activations_to_weight_gradient,
          &SliceBytes::gradients_to_weight_gradient, &SliceBytes::keys_values, &SliceBytes::keys_values_gradient}) {
      out.push_back({field, "whole", "x", 1, whole.*field});
    }
    return out;
  }
};

OffloadOptions offload_options(const CostModel& cost, std::optional<double> fraction, bool recompute = false,
                               int window = 0) {
  OffloadOptions options{.fraction = fraction, .window = window};
  options.compute_s = [&cost, recompute](const Schedule& of, const Op& op, const Op* partner) {
    const auto shape = [&](const Op& each) -> const MicrobatchShape& { return of.shape(each.microbatch); };
    double again = 0;
    for (const Op* each : {&op, partner}) {
      if (!recompute || each == nullptr || each->kind == OpKind::F || each->kind == OpKind::W) continue;
      again += cost.recompute_s(each->stage, shape(*each), each->slice);
    }
    if (partner == nullptr) return again + cost.compute_s(op.kind, op.stage, shape(op), op.slice);
    const Op& forward = op.kind == OpKind::F ? op : *partner;
    const Op& backward = op.kind == OpKind::F ? *partner : op;
    return again + cost.joint_s(forward.stage, shape(forward), forward.slice, backward.kind, backward.stage,
                                shape(backward), backward.slice);
  };
  options.copy_s = [&cost](const Schedule& of, const Op& op) {
    return cost.host_copy_s(op.stage, of.shape(op.microbatch), op.slice, 0);
  };
  return options;
}

struct OffloadRun {
  OffloadRun(const Schedule& schedule, const CostModel& cost, const OffloadOptions* offload, bool recompute = false)
      : graph(lower(schedule, {.footprint = &footprint(), .recompute = recompute, .offload = offload})),
        timeline(simulate(graph, price(graph, cost))),
        memory(memory_over_time(graph, timeline, false)) {}
  static const StoredFootprint& footprint() {
    static const StoredFootprint kFootprint;
    return kFootprint;
  }
  Duration makespan() const { return *std::max_element(timeline.end.begin(), timeline.end.end()); }
  // The starts of everything but copies, in the order of the graph.
  std::vector<Duration> starts() const {
    std::vector<Duration> out;
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph[v].kind != VertexKind::offload) out.push_back(timeline.start[v]);
    }
    return out;
  }
  OpGraph graph;
  Timeline timeline;
  std::vector<RankMemory> memory;
};

// Copies of a direction do not overlap, follow the forward, and end before what waits for them.
void check_copies(const OffloadRun& run, int window) {
  const OpGraph& graph = run.graph;
  std::map<LaneId, VertexId> last;
  std::map<std::array<int, 4>, VertexId> out;  // by rank, stage, microbatch and slice
  std::map<int, std::vector<VertexId>> forwards;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind != VertexKind::offload) {
      for (const VertexId need : graph.needs(v)) {
        if (graph[need].kind != VertexKind::offload) continue;
        ASSERT_LE(run.timeline.end[need], run.timeline.start[v]) << graph.name(v);
      }
      continue;
    }
    const bool to_host = vertex.op == OpKind::F;
    ASSERT_EQ(graph.lanes()[vertex.lane].kind, to_host ? LaneKind::to_host : LaneKind::from_host);
    const auto before = last.find(vertex.lane);
    if (before != last.end()) {
      ASSERT_LE(run.timeline.end[before->second], run.timeline.start[v]);
    }
    last[vertex.lane] = v;
    const std::array<int, 4> key = {graph.rank_of(v), vertex.stage, vertex.microbatch, vertex.slice};
    if (to_host) {
      const VertexId forward = graph.needs(v).front();
      ASSERT_LE(run.timeline.end[forward], run.timeline.start[v]);
      forwards[graph.rank_of(v)].push_back(forward);
      out[key] = v;
    } else {
      ASSERT_LE(run.timeline.end[out.at(key)], run.timeline.start[v]);
      out.erase(key);
    }
  }
  ASSERT_TRUE(out.empty());
  if (window == 0) return;
  std::map<int, std::vector<Duration>> ends;  // of copies to the host, by rank
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind == VertexKind::offload && graph[v].op == OpKind::F) {
      ends[graph.rank_of(v)].push_back(run.timeline.end[v]);
    }
  }
  for (const auto& [rank, of_rank] : forwards) {
    for (std::size_t i = static_cast<std::size_t>(window); i < of_rank.size(); ++i) {
      ASSERT_LE(ends[rank][i - static_cast<std::size_t>(window)], run.timeline.start[of_rank[i]]);
    }
  }
}

const test::Sizes& offload_sizes() {
  static const test::Sizes kSizes =
      test::small_scope() ? test::Sizes{3, 6, 2, 1, false} : test::Sizes{4, 7, 2, 2, false};
  return kSizes;
}

TEST(Offload, OfNothingChangesNothing) {
  std::uint32_t seed = 1;
  test::for_each_schedule(offload_sizes(), [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    const CopyCost cost(++seed, 40);
    const OffloadOptions nothing = offload_options(cost, 0.0);
    const OffloadRun without(schedule, cost, nullptr);
    const OffloadRun with(schedule, cost, &nothing);
    ASSERT_EQ(with.graph.size(), without.graph.size());
    ASSERT_EQ(with.timeline.start, without.timeline.start);
    for (std::size_t rank = 0; rank < with.memory.size(); ++rank) {
      ASSERT_EQ(with.memory[rank].at_peak, without.memory[rank].at_peak);
    }
  });
}

// Automatic offload copies what ends in time, whatever the speed of the link.
TEST(Offload, OfWhatIsFreeDelaysNoOpAndTakesNoMemory) {
  std::uint32_t seed = 1;
  int copied = 0;
  int smaller = 0;
  test::for_each_schedule(offload_sizes(), [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    ++seed;
    const CopyCost cost(seed, seed % 3 == 0 ? 20 : 90);
    const bool recompute = seed % 4 == 0;
    const OffloadOptions automatic = offload_options(cost, std::nullopt, recompute);
    const OffloadRun without(schedule, cost, nullptr, recompute);
    const OffloadRun with(schedule, cost, &automatic, recompute);
    check_copies(with, 0);
    ASSERT_EQ(with.starts(), without.starts());
    copied += with.graph.size() > without.graph.size() ? 1 : 0;
    for (std::size_t rank = 0; rank < with.memory.size(); ++rank) {
      ASSERT_LE(with.memory[rank].peak_bytes, without.memory[rank].peak_bytes);
      smaller += with.memory[rank].peak_bytes < without.memory[rank].peak_bytes ? 1 : 0;
    }
  });
  EXPECT_GT(copied, 100);
  EXPECT_GT(smaller, 100);
}

TEST(Offload, WithAFastLinkDelaysNoOp) {
  std::uint32_t seed = 1;
  test::for_each_schedule(offload_sizes(), [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    const CopyCost cost(++seed, 0);
    const OffloadOptions all = offload_options(cost, 1.0, false, static_cast<int>(seed % 3));
    const OffloadRun with(schedule, cost, &all);
    const OffloadRun without(schedule, cost, nullptr);
    ASSERT_EQ(with.starts(), without.starts());
  });
}

TEST(Offload, CopiesFollowTheirForwardsAndPrecedeTheirBackwards) {
  std::uint32_t seed = 1;
  test::for_each_schedule(offload_sizes(), [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    const CopyCost cost(++seed, 150);
    const int window = static_cast<int>(seed % 3);
    const OffloadOptions options = offload_options(cost, seed % 2 == 0 ? 1.0 : 0.6, false, window);
    const OffloadRun run(schedule, cost, &options);
    check_copies(run, window);
    const std::vector<IdleByCause> idle = idle_by_cause(run.graph, run.timeline);
    const std::vector<std::int64_t> host = host_peaks(run.graph, run.timeline);
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const RankMemory& memory = run.memory[static_cast<std::size_t>(rank)];
      ASSERT_EQ(idle[static_cast<std::size_t>(rank)][static_cast<std::size_t>(IdleCause::other)], Duration{0});
      ASSERT_GE(host[static_cast<std::size_t>(rank)], 0);
      // The list of what is held adds up to the peak.
      BytesByClass held{};
      for (const HeldTensor& tensor : held_at_peak(run.graph, run.timeline, OffloadRun::footprint(), memory, rank)) {
        held[static_cast<std::size_t>(tensor.memory_class)] += tensor.bytes;
      }
      ASSERT_EQ(held, memory.at_peak);
    }
  });
}

// Two ranks, f = 1, b + w = 2, copies of c = 5: rank 0 copies everything, rank 1 nothing, since there a backward
// follows its forward. Rank 0 runs F0 F1 B0 F2 B1 F3 ...: B0 waits for both copies of microbatch 0, until 1 + 2c, and
// B1 for a copy more, since its copies follow those in their lanes. F2 follows B0, B2 waits for two copies after it,
// and B3 for a third. So two microbatches take f + 2c + (b + w), and the last backward one copy more.
TEST(Offload, Of1F1BWithASlowLinkHasAClosedForm) {
  for (const int n : {1, 2, 5}) {
    const Schedule schedule =
        make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 2 * n, .shape = {.slice_lengths = {1}}});
    const UniformCost cost(parse_uniform("f=1,b=1,w=1,copy=5"), schedule);
    const OffloadOptions all = offload_options(cost, 1.0);
    EXPECT_EQ(OffloadRun(schedule, cost, &all).makespan(), std::chrono::seconds(13 * n + 5)) << n;
  }
}

// The activations of a rank in 1F1B with copies that take less than a forward and a backward: everything but what two
// microbatches need can be in host memory. Rank 0 of 8 holds 8 microbatches without.
TEST(Offload, LeavesFewMicrobatchesOnTheDevice) {
  const Schedule schedule =
      make_schedule(find_family("1f1b"), {.ranks = 8, .microbatches = 32, .shape = {.slice_lengths = {1}}});
  const UniformCost cost(parse_uniform("f=1,b=1,w=1,copy=1"), schedule);
  const OffloadOptions automatic = offload_options(cost, std::nullopt);
  const OffloadRun without(schedule, cost, nullptr);
  const OffloadRun with(schedule, cost, &automatic);
  const auto activations = [](const OffloadRun& run) {
    return run.memory[0].at_peak[static_cast<std::size_t>(MemoryClass::activations)];
  };
  EXPECT_EQ(activations(without), 8 * 150);
  // That of F, that which is copied to the host, and that of B.
  EXPECT_LE(activations(with), 3 * 150);
}

// The window is the narrowest that does not lengthen the iteration of 16 microbatches of 3 s, and 3 ranks more than one
// that fill and drain the pipeline with a chunk each.
TEST(Offload, ForwardsWaitForCopiesWhereThatIsFree) {
  int wider = 0;
  for (const int chunks : {1, 2}) {
    const std::string family = chunks == 1 ? "1f1b" : "interleaved-1f1b";
    for (const char* copy : {"0.5", "1.5", "2.5"}) {
      SCOPED_TRACE(family + " " + copy);
      Scenario scenario = parse_scenario(
          R"({"schema": "sluice.scenario/1", "parallelism": {"pp": 4, "vpp": )" + std::to_string(chunks) +
          R"(, "offload_activations": "auto"}, "batch": {"microbatches": 16},
                                         "schedule": {"name": ")" +
          family + R"("}, "cost": {"kind": "uniform", "f": 1, "b": 1, "w": 1, "copy": )" + copy + "}}");
      const auto makespan = [](const model::Setup& setup) {
        const Timeline timeline = simulate(setup.graph(), price(setup.graph(), setup.cost()));
        return *std::max_element(timeline.end.begin(), timeline.end.end());
      };
      const Duration expected = std::chrono::seconds(48) + std::chrono::milliseconds(9000 / chunks);
      const auto setup = offload_setup(scenario);
      EXPECT_EQ(makespan(*setup), expected);
      const int window = setup->scenario().training.offload_window;
      EXPECT_GT(window, 0);
      if (window <= 1) continue;
      ++wider;
      scenario.training.offload_window = window - 1;
      EXPECT_GT(makespan(model::Setup(scenario)), expected);
    }
  }
  EXPECT_GT(wider, 0);
}

TEST(Offload, BesideVocabularyPassesIsRefused) {
  const CopyCost cost(1, 40);
  const OffloadOptions everything = offload_options(cost, 1.0);
  const Schedule schedule = make_schedule(find_family("1f1b-vocab-1"), {.ranks = 2, .microbatches = 4});
  EXPECT_THROW(OffloadRun(schedule, cost, &everything), ScheduleError);
}

}  // namespace
}  // namespace sluice::test
