#include "model/graph/lowering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "model/errors.h"
#include "model/schedule/pytorch_csv.h"
#include "tests/support/all_schedules.h"
#include "tests/support/errors.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

// Bytes that distinguish stages, slices and directions.
class TellingFootprint : public Footprint {
 public:
  StageBytes stage(int stage) const override { return {.reduced = 1000 + stage, .gathered = 2000 + stage}; }
  SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const override {
    const std::int64_t tokens = shape.slice_lengths[slice];
    return {.transfer_forward = 10 * tokens + stage, .transfer_backward = 10'000 * tokens + stage};
  }
  std::int64_t tied_embedding_bytes() const override { return 77; }
};

using OpKey = std::tuple<bool, int, int, int, int>;  // gradient of weights?, F?, stage, microbatch, slice

// Finds the vertex of each op: F, I or B (the same key), W.
class Ops {
 public:
  explicit Ops(const OpGraph& graph) {
    for (VertexId v = 0; v < graph.size(); ++v) {
      const Vertex& vertex = graph[v];
      if (vertex.kind == VertexKind::compute || vertex.kind == VertexKind::joint) add(vertex, v);
      if (vertex.kind == VertexKind::joint) add(graph.joint_partner(vertex), v);
      if (vertex.kind == VertexKind::transfer)
        transfers_[key(vertex.op, vertex.stage, vertex.microbatch, vertex.slice)] = v;
    }
  }
  VertexId at(OpKind kind, int stage, int mb, int slice) const { return ops_.at(key(kind, stage, mb, slice)); }
  // The vertex that sends the op's result to another stage: its transfer, if there is one.
  VertexId handed_over(OpKind kind, int stage, int mb, int slice) const {
    const auto found = transfers_.find(key(kind, stage, mb, slice));
    return found == transfers_.end() ? at(kind, stage, mb, slice) : found->second;
  }
  std::size_t num_transfers() const { return transfers_.size(); }

 private:
  static OpKey key(OpKind kind, int stage, int mb, int slice) {
    return {kind == OpKind::W, kind == OpKind::F, stage, mb, slice};
  }
  void add(const Vertex& x, VertexId v) { ops_[key(x.op, x.stage, x.microbatch, x.slice)] = v; }

  std::map<OpKey, VertexId> ops_;
  std::map<OpKey, VertexId> transfers_;
};

bool needs(const OpGraph& graph, VertexId v, VertexId need) {
  const auto all = graph.needs(v);
  return std::find(all.begin(), all.end(), need) != all.end();
}

TEST(Lowering, HasExactlyTheDocumentedDependencies) {
  const TellingFootprint footprint;
  test::for_each_schedule({.ranks = 4, .microbatches = 5, .chunks = 2, .slices = 3}, [&](const Schedule& schedule) {
    if (schedule.vocabulary_barriers() > 0) return;  // vocabulary_test.cc
    SCOPED_TRACE(test::describe(schedule));
    const OpGraph graph = lower(schedule, {.footprint = &footprint});
    const Ops ops(graph);
    const int stages = schedule.num_stages();
    std::map<VertexId, std::set<VertexId>> expected;
    std::size_t remote = 0;
    for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
      const int slices = schedule.num_slices(mb);
      for (int s = 0; s < stages; ++s) {
        for (int i = 0; i < slices; ++i) {
          const VertexId f = ops.at(OpKind::F, s, mb, i);
          const VertexId g = ops.at(OpKind::I, s, mb, i);
          if (s > 0) expected[f].insert(ops.handed_over(OpKind::F, s - 1, mb, i));
          if (i > 0) expected[f].insert(ops.at(OpKind::F, s, mb, i - 1));
          expected[g].insert(f);
          if (s + 1 < stages) expected[g].insert(ops.handed_over(OpKind::I, s + 1, mb, i));
          if (i + 1 < slices) expected[g].insert(ops.at(OpKind::I, s, mb, i + 1));
          if (s + 1 < stages && schedule.rank_of(s, mb) != schedule.rank_of(s + 1, mb)) {
            remote += 2;
            for (const auto& [kind, from, to] : {std::tuple(OpKind::F, s, s + 1), std::tuple(OpKind::I, s + 1, s)}) {
              const VertexId transfer = ops.handed_over(kind, from, mb, i);
              expected[transfer].insert(ops.at(kind, from, mb, i));
              const Lane& lane = graph.lanes()[graph[transfer].lane];
              EXPECT_EQ(lane.rank, schedule.rank_of(from, mb));
              EXPECT_EQ(lane.peer, schedule.rank_of(to, mb));
              const std::int64_t tokens = schedule.shape(mb).slice_lengths[i];
              EXPECT_EQ(graph.transfer_bytes(graph[transfer]), (kind == OpKind::F ? 10 : 10'000) * tokens + from);
            }
          }
        }
      }
    }
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      for (const Op& op : schedule.ops(rank)) {
        if (op.kind != OpKind::W) continue;
        expected[ops.at(OpKind::W, op.stage, op.microbatch, op.slice)].insert(
            ops.at(OpKind::I, op.stage, op.microbatch, op.slice));
      }
    }
    EXPECT_EQ(ops.num_transfers(), remote);
    std::map<LaneId, VertexId> last;
    for (VertexId v = 0; v < graph.size(); ++v) {
      const Vertex& vertex = graph[v];
      if (vertex.kind == VertexKind::optimizer || vertex.kind == VertexKind::collective) {
        if (vertex.kind == VertexKind::optimizer) last[vertex.lane] = v;
        continue;
      }
      std::set<VertexId> wanted = expected[v];
      wanted.erase(v);  // the halves of a block do not wait for each other
      if (last.contains(vertex.lane)) wanted.insert(last[vertex.lane]);
      last[vertex.lane] = v;
      const auto all = graph.needs(v);
      EXPECT_EQ(std::set<VertexId>(all.begin(), all.end()), wanted) << graph.name(v);
    }
  });
}

TEST(Lowering, BlockingTransfersDelayOnlyTheNextOpOfTheSender) {
  test::for_each_schedule({.ranks = 4, .microbatches = 5, .chunks = 2, .slices = 3}, [&](const Schedule& schedule) {
    if (schedule.vocabulary_barriers() > 0) return;  // vocabulary_test.cc
    SCOPED_TRACE(test::describe(schedule));
    const OpGraph free = lower(schedule);
    const OpGraph blocking = lower(schedule, {.blocking_transfers = true});
    ASSERT_EQ(free.size(), blocking.size());
    // The last transfer of each lane since the rank's last op: earlier ones on the lane end before it.
    std::vector<std::map<LaneId, VertexId>> sent(static_cast<std::size_t>(schedule.num_ranks()));
    for (VertexId v = 0; v < blocking.size(); ++v) {
      const auto without = free.needs(v);
      const auto with = blocking.needs(v);
      std::set<VertexId> added(with.begin(), with.end());
      for (const VertexId need : without) added.erase(need);
      const auto rank = static_cast<std::size_t>(blocking.rank_of(v));
      if (blocking[v].kind == VertexKind::transfer) {
        EXPECT_TRUE(added.empty()) << blocking.name(v);
        sent[rank][blocking[v].lane] = v;
      } else if (blocking[v].kind == VertexKind::compute || blocking[v].kind == VertexKind::joint) {
        std::set<VertexId> expected;
        for (const auto& [lane, transfer] : sent[rank]) expected.insert(transfer);
        EXPECT_EQ(added, expected) << blocking.name(v);
        sent[rank].clear();
      } else {
        EXPECT_TRUE(added.empty()) << blocking.name(v);
      }
    }
  });
}

TEST(Lowering, TransfersOfALaneAreInTheOrderOfTheirProducers) {
  test::for_each_schedule({.ranks = 4, .microbatches = 6, .chunks = 2, .slices = 2}, [&](const Schedule& schedule) {
    if (schedule.vocabulary_barriers() > 0) return;  // vocabulary_test.cc
    const OpGraph graph = lower(schedule);
    const Ops ops(graph);
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      std::map<LaneId, VertexId> last;
      for (const Op& op : schedule.ops(rank)) {
        if (op.kind == OpKind::W) continue;
        const VertexId transfer = ops.handed_over(op.kind, op.stage, op.microbatch, op.slice);
        if (graph[transfer].kind != VertexKind::transfer) continue;
        const auto before = last.find(graph[transfer].lane);
        if (before != last.end()) {
          EXPECT_LT(before->second, transfer);
        }
        last[graph[transfer].lane] = transfer;
      }
    }
  });
}

// The vertices of one kind of collective, in order.
std::vector<VertexId> collectives(const OpGraph& graph, CollectiveKind kind) {
  std::vector<VertexId> found;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind == VertexKind::collective && graph.collective(graph[v]).kind == kind) found.push_back(v);
  }
  return found;
}

std::vector<VertexId> optimizers(const OpGraph& graph) {
  std::vector<VertexId> found;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind == VertexKind::optimizer) found.push_back(v);
  }
  return found;
}

TEST(Lowering, GradientsAreReducedAfterTheirStageOrAfterTheList) {
  const TellingFootprint footprint;
  const Schedule schedule = test::make("interleaved-1f1b", {.p = 2, .m = 4, .v = 2});
  for (const bool overlap : {false, true}) {
    const OpGraph graph =
        lower(schedule,
              {.footprint = &footprint, .data_parallel = 4, .overlap_grad_reduce = overlap, .gather_parameters = true});
    const Ops ops(graph);
    const auto reductions = collectives(graph, CollectiveKind::gradient_reduce);
    ASSERT_EQ(reductions.size(), 4U);
    for (const VertexId reduction : reductions) {
      const Collective collective = graph.collective(graph[reduction]);
      EXPECT_EQ(collective.bytes, 1000 + collective.stage);
      const int rank = collective.stage % 2;
      ASSERT_EQ(std::vector<int>(collective.ranks.begin(), collective.ranks.end()), std::vector<int>{rank});
      // The last backward of a stage is that of the last of 4 microbatches; the list of a rank ends with its first
      // chunk's.
      const int after = overlap ? collective.stage : rank;
      EXPECT_TRUE(needs(graph, reduction, ops.at(OpKind::B, after, 3, 0))) << graph.name(reduction);
    }
    const auto steps = optimizers(graph);
    ASSERT_EQ(steps.size(), 4U);
    for (const VertexId step : steps) {
      bool reduced = false;
      for (const VertexId need : graph.needs(step)) {
        reduced |=
            graph[need].kind == VertexKind::collective && graph.collective(graph[need]).stage == graph[step].stage;
      }
      EXPECT_TRUE(reduced) << graph.name(step);
    }
    for (const VertexId gather : collectives(graph, CollectiveKind::parameter_gather)) {
      EXPECT_EQ(graph.collective(graph[gather]).bytes, 2000 + graph[gather].stage);
      EXPECT_EQ(graph[graph.needs(gather).front()].kind, VertexKind::optimizer);
    }
    EXPECT_EQ(collectives(graph, CollectiveKind::parameter_gather).size(), 4U);
  }
}

// The bytes of the footprint in three buckets.
class BucketFootprint : public TellingFootprint {
 public:
  StageBytes stage(int stage) const override {
    StageBytes bytes = TellingFootprint::stage(stage);
    bytes.buckets = 3;
    return bytes;
  }
};

TEST(Lowering, BucketsAreReducedAndGatheredBesideOps) {
  const BucketFootprint footprint;
  const Schedule schedule = test::make("1f1b", {.p = 2, .m = 4});
  OpGraph graph = lower(schedule, {.footprint = &footprint,
                                   .data_parallel = 4,
                                   .overlap_grad_reduce = true,
                                   .buckets = true,
                                   .gather_parameters = true,
                                   .overlap_param_gather = true});
  const Ops ops(graph);
  const auto check = [&] {
    const auto reductions = collectives(graph, CollectiveKind::gradient_reduce);
    ASSERT_EQ(reductions.size(), 4U);
    for (const VertexId reduction : reductions) {
      const Collective collective = graph.collective(graph[reduction]);
      const std::int64_t one = (1000 + collective.stage) / 3;
      const VertexId last = ops.at(OpKind::B, collective.stage, 3, 0);
      const bool rest = collective.buckets == Buckets::rest;
      EXPECT_EQ(collective.bytes, rest ? 1000 + collective.stage - one : one);
      EXPECT_EQ(needs(graph, reduction, last), !rest) << graph.name(reduction);
      if (!rest) continue;
      for (const VertexId need : graph.needs(last)) EXPECT_TRUE(needs(graph, reduction, need)) << graph.name(need);
    }
    for (const VertexId gather : collectives(graph, CollectiveKind::parameter_gather)) {
      const Collective collective = graph.collective(graph[gather]);
      const bool rest = collective.buckets == Buckets::rest;
      const std::int64_t one = (2000 + collective.stage) / 3;
      EXPECT_EQ(collective.bytes, rest ? 2000 + collective.stage - one : one);
      EXPECT_EQ(needs(graph, ops.at(OpKind::F, collective.stage, 0, 0), gather), !rest);
      const Op second = schedule.ops(collective.stage)[1];
      EXPECT_EQ(needs(graph, ops.at(second.kind, second.stage, second.microbatch, 0), gather), rest);
    }
  };
  check();
  const OpGraph alone = lower(schedule, {.footprint = &footprint,
                                         .overlap_grad_reduce = true,
                                         .buckets = true,
                                         .gather_parameters = true,
                                         .overlap_param_gather = true});
  EXPECT_TRUE(collectives(alone, CollectiveKind::parameter_gather).empty()) << "one replica";
  graph.refill(nullptr);
  graph.refill(&footprint);
  check();
}

TEST(Lowering, EveryStepWaitsForTheGlobalNormAndThatForEveryStage) {
  const Schedule schedule = test::make("1f1b", {.p = 3, .m = 4});
  const OpGraph graph = lower(schedule, {.global_norm = true});
  const Ops ops(graph);
  const auto norms = collectives(graph, CollectiveKind::global_norm);
  ASSERT_EQ(norms.size(), 1U);
  EXPECT_EQ(graph.collective(graph[norms[0]]).ranks.size(), 3U);
  for (int stage = 0; stage < 3; ++stage) EXPECT_TRUE(needs(graph, norms[0], ops.at(OpKind::B, stage, 3, 0)));
  for (const VertexId step : optimizers(graph)) EXPECT_TRUE(needs(graph, step, norms[0]));
}

TEST(Lowering, ATiedEmbeddingIsReducedOnlyIfItsStagesAreOnDifferentRanks) {
  const TellingFootprint footprint;
  const auto tied = [&](const char* family, test::Shape shape) {
    const Schedule schedule = test::make(family, shape);
    const OpGraph graph = lower(schedule, {.footprint = &footprint, .tied_embedding = true});
    std::vector<std::vector<int>> ranks;
    for (const VertexId v : collectives(graph, CollectiveKind::tied_embedding)) {
      const Collective collective = graph.collective(graph[v]);
      EXPECT_EQ(collective.bytes, 77);
      ranks.emplace_back(collective.ranks.begin(), collective.ranks.end());
    }
    return ranks;
  };
  using Ranks = std::vector<std::vector<int>>;
  EXPECT_EQ(tied("1f1b", {.p = 4, .m = 4}), (Ranks{{0, 3}}));
  EXPECT_EQ(tied("1f1b", {.p = 1, .m = 4}), Ranks{});
  EXPECT_EQ(tied("zb-v", {.p = 4, .m = 8}), Ranks{});  // both ends on rank 0
  EXPECT_EQ(tied("dualpipe", {.p = 4, .m = 8}),
            Ranks{});  // both ends on both ranks: included in the replicas' reduction
  EXPECT_EQ(tied("pipedream-2bw", {.p = 2, .m = 4, .batches = 3}), (Ranks{{0, 1}, {0, 1}, {0, 1}}));
  EXPECT_THROW(tied("pipedream", {.p = 2, .m = 4, .batches = 3}), InputError);
}

// Embedding and head of one rank add to the same gradient: its reduction also waits for the head's last W.
TEST(Lowering, ReductionOfAnEmbeddingWaitsForTheHeadOfItsRank) {
  ScheduleParts parts{.family = "custom", .num_stages = 2, .routes = {{0, 0}}};
  parts.orders = {{{.stage = 0, .kind = OpKind::F},
                   {.stage = 1, .kind = OpKind::F},
                   {.stage = 1, .kind = OpKind::I},
                   {.stage = 0, .kind = OpKind::I},
                   {.stage = 0, .kind = OpKind::W},
                   {.stage = 1, .kind = OpKind::W}}};
  const Schedule schedule(parts);
  for (const bool tied : {true, false}) {
    const OpGraph graph = lower(schedule, {.data_parallel = 2, .overlap_grad_reduce = true, .tied_embedding = tied});
    const Ops ops(graph);
    int sums = 0;
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph[v].kind != VertexKind::collective || graph[v].stage != 0) continue;
      ++sums;
      EXPECT_TRUE(needs(graph, v, ops.at(OpKind::W, tied ? 1 : 0, 0, 0)));
    }
    EXPECT_EQ(sums, 1);
  }
}

TEST(Lowering, ReplicasOfAStageReduceTheirGradients) {
  const Schedule schedule = test::make("dualpipe", {.p = 4, .m = 8});
  const OpGraph graph = lower(schedule);
  const auto sums = collectives(graph, CollectiveKind::replica_reduce);
  ASSERT_EQ(sums.size(), 4U);  // one per stage, between ranks s and p-1-s
  for (const VertexId v : sums) {
    const Collective sum = graph.collective(graph[v]);
    const int low = std::min(sum.stage, 3 - sum.stage);
    EXPECT_EQ(std::vector<int>(sum.ranks.begin(), sum.ranks.end()), (std::vector<int>{low, 3 - low}));
  }
  EXPECT_EQ(optimizers(graph).size(), 8U);
}

TEST(Lowering, WithoutAFlushAForwardFollowsTheStepOfItsVersion) {
  for (const char* family : {"pipedream", "pipedream-2bw"}) {
    for (int p = 1; p <= 4; ++p) {
      const Schedule schedule = test::make(family, {.p = p, .m = 4, .batches = 4});
      const OpGraph graph = lower(schedule, {.data_parallel = 2});
      std::vector<int> steps(static_cast<std::size_t>(p), 0);
      for (VertexId v = 0; v < graph.size(); ++v) {
        const Vertex& vertex = graph[v];
        if (vertex.kind == VertexKind::optimizer) ++steps[vertex.lane];
        if (vertex.kind != VertexKind::compute || vertex.op != OpKind::F) continue;
        EXPECT_EQ(steps[vertex.lane], weight_version(schedule, vertex.microbatch, vertex.lane))
            << family << " p=" << p << " " << graph.name(v);
      }
      for (const int count : steps) EXPECT_EQ(count, schedule.weight_policy() == WeightPolicy::stashed ? 16 : 4);
    }
  }
}

TEST(Lowering, AStepPrecedesABlockWhoseForwardReadsIt) {
  // 2BW on one rank, batches of one microbatch; the forward of the third reads version 1 from within a block.
  ScheduleParts parts{.family = "custom",
                      .num_batches = 3,
                      .weight_policy = WeightPolicy::double_buffered,
                      .routes = {{0}},
                      .orders = {{{.microbatch = 0},
                                  {.microbatch = 0, .kind = OpKind::B},
                                  {.microbatch = 1},
                                  {.microbatch = 1, .kind = OpKind::B, .joined = true},
                                  {.microbatch = 2},
                                  {.microbatch = 2, .kind = OpKind::B}}}};
  const Schedule schedule(parts);
  const OpGraph graph = lower(schedule);
  const auto steps = optimizers(graph);
  ASSERT_EQ(steps.size(), 3U);
  const Ops ops(graph);
  EXPECT_LT(steps[0], ops.at(OpKind::F, 0, 2, 0));
  EXPECT_GT(steps[1], ops.at(OpKind::F, 0, 2, 0));
}

TEST(Lowering, RecomputationWaitsForTheGradientAndPrecedesItsOp) {
  const Schedule schedule = test::make("1f1b", {.p = 2, .m = 3});
  const OpGraph graph = lower(schedule, {.recompute = true});
  const Ops ops(graph);
  int count = 0;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind != VertexKind::recompute) continue;
    ++count;
    EXPECT_TRUE(needs(graph, ops.at(OpKind::B, vertex.stage, vertex.microbatch, 0), v));
    if (vertex.stage == 0) {
      EXPECT_TRUE(needs(graph, v, ops.handed_over(OpKind::B, 1, vertex.microbatch, 0)));
    }
  }
  EXPECT_EQ(count, 6);
}

// A graph that is refilled with other sizes equals one that is lowered for them.
TEST(Lowering, RefilledGraphEqualsAFreshOneOfItsSizes) {
  const TellingFootprint footprint;
  for (const auto& [family, shape] : {std::pair("seq1f1b-interleaved", test::Shape{.p = 2, .m = 4, .v = 2, .k = 2}),
                                      {"dualpipe", {.p = 4, .m = 8}},
                                      {"gpipe", {.p = 3, .m = 2}}}) {
    LoweringOptions options{.footprint = &footprint,
                            .data_parallel = 2,
                            .gather_parameters = true,
                            .tied_embedding = true,
                            .global_norm = true};
    Schedule schedule = test::make(family, shape);
    MicrobatchShape larger = schedule.shapes()[0];
    larger.sequences = 3;
    larger.slice_lengths.back() = 5;
    Schedule other = test::make(family, shape);
    other.resize({larger});
    const OpGraph fresh = lower(other, options);
    options.footprint = nullptr;
    OpGraph graph = lower(schedule, options);
    EXPECT_FALSE(graph.has_bytes());
    schedule.resize({larger});
    graph.refill(&footprint);
    EXPECT_TRUE(graph.has_bytes());
    ASSERT_EQ(graph.size(), fresh.size());
    int collectives = 0;
    for (VertexId v = 0; v < graph.size(); ++v) {
      EXPECT_EQ(graph.name(v), fresh.name(v));
      if (graph[v].kind == VertexKind::transfer) {
        EXPECT_EQ(graph.transfer_bytes(graph[v]), fresh.transfer_bytes(fresh[v]));
      }
      if (graph[v].kind != VertexKind::collective) continue;
      ++collectives;
      EXPECT_GT(graph.collective(graph[v]).bytes, 0);
      EXPECT_EQ(graph.collective(graph[v]).bytes, fresh.collective(fresh[v]).bytes);
    }
    EXPECT_GT(collectives, 0);
    EXPECT_THROW(schedule.resize({larger, larger}), ScheduleError);
    larger.slice_lengths.push_back(1);
    EXPECT_THROW(schedule.resize({larger}), ScheduleError);
    larger.slice_lengths.assign(shape.k, 0);
    EXPECT_THROW(schedule.resize({larger}), ScheduleError);
  }
}

// Related to a finding of the fuzzer: a rank's memory would overflow although no slice does.
TEST(Lowering, MoreBytesThanFitIn64BitsAreRejected) {
  struct Heavy : public Footprint {
    explicit Heavy(std::int64_t bytes) : bytes_(bytes) {}
    StageBytes stage(int) const override { return {}; }
    SliceBytes slice(int, const MicrobatchShape&, int) const override { return {.keys_values = bytes_}; }
    std::int64_t bytes_;
  };
  // 2 stages x 4 microbatches x 10^18 bytes = 8e18, above 4e18; half of that is accepted.
  const Schedule schedule = test::make("gpipe", {.p = 2, .m = 4});
  const Heavy one(1'000'000'000'000'000'000);
  const Heavy half(500'000'000'000'000'000);
  EXPECT_EQ(test::error_from([&] { lower(schedule, {.footprint = &one}); }),
            "gpipe: up to 8e+18 bytes of memory: more than fit in 64 bits");
  EXPECT_NO_THROW(lower(schedule, {.footprint = &half}));
}

// The gathers and reductions of a graph in its order, with the first of the ops that each waits for.
std::vector<std::string> sharding_of(const OpGraph& graph) {
  std::vector<std::string> out;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::collective) continue;
    const bool waits = !graph.needs(v).empty() && graph[graph.needs(v)[0]].kind == VertexKind::compute;
    out.push_back(graph.name(v) + (waits ? " after " + graph.name(graph.needs(v)[0]) : ""));
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Lowering, TakesTheActionsOfAScheduleOnShardedParameters) {
  const auto graph_of = [](const Schedule& schedule, bool actions = true) {
    return lower(schedule, {.data_parallel = 4,
                            .overlap_grad_reduce = true,
                            .gather_parameters = true,
                            .sharded_actions = actions,
                            .overlap_param_gather = true});
  };
  const std::string second = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  const Schedule schedule = schedule_from_csv(
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RESHARD,0RECV_B0,0UNSHARD,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n" + second,
      "s.csv");
  const OpGraph graph = graph_of(schedule);
  // Stage 1 has no actions: it is gathered at the start, and reduced after its last backward.
  const std::vector<std::string> expected = {
      "gradient reduce(stage 0, step 0) after B(stage 0, mb 1)",
      "gradient reduce(stage 1, step 0) after B(stage 1, mb 1)", "parameter gather(stage 0, step 0)",
      "parameter gather(stage 0, step 0) after F(stage 0, mb 1)", "parameter gather(stage 1, step 0)"};
  EXPECT_EQ(sharding_of(graph), expected);
  const Ops ops(graph);
  const auto waits_for_gather = [&](VertexId v) {
    const auto needs = graph.needs(v);
    return std::any_of(needs.begin(), needs.end(), [&](VertexId need) {
      return graph[need].kind == VertexKind::collective && graph[need].stage == graph[v].stage;
    });
  };
  EXPECT_TRUE(waits_for_gather(ops.at(OpKind::F, 0, 0, 0)));
  EXPECT_FALSE(waits_for_gather(ops.at(OpKind::F, 0, 1, 0)));
  EXPECT_TRUE(waits_for_gather(ops.at(OpKind::B, 0, 0, 0)));
  EXPECT_TRUE(waits_for_gather(ops.at(OpKind::F, 1, 0, 0)));
  EXPECT_FALSE(waits_for_gather(ops.at(OpKind::B, 1, 0, 0)));
  // Without sharded parameters the actions have no effect.
  EXPECT_EQ(sharding_of(graph_of(schedule, false)).size(), 4u);
  const Schedule early =
      schedule_from_csv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0REDUCE_GRAD,0RECV_B1,0B1\n" + second, "s.csv");
  EXPECT_EQ(test::error_from<ScheduleError>([&] { graph_of(early); }),
            "row 1, cell 7: 0REDUCE_GRAD: precedes the last backward of its stage");
}

// ZeRO 2: interleaved ranks switch stages after the microbatches of a group, here 2 of 4. With one stage per rank there
// is one run, and with W the run ends with it.
TEST(Lowering, ReducesGradientsAfterEachRunOfBackwards) {
  const auto reductions = [](const std::string& family, int chunks) {
    const Schedule schedule = test::make(family, {.p = 2, .m = 4, .v = chunks});
    const OpGraph graph = lower(schedule, {.data_parallel = 4, .overlap_grad_reduce = true, .reduce_runs = true});
    return sharding_of(graph);
  };
  const std::vector<std::string> interleaved = reductions("interleaved-1f1b", 3);
  EXPECT_EQ(interleaved.size(), 12u);
  EXPECT_EQ(interleaved[0], "gradient reduce(stage 0, step 0) after B(stage 0, mb 1)");
  EXPECT_EQ(interleaved[1], "gradient reduce(stage 0, step 0) after B(stage 0, mb 3)");
  EXPECT_EQ(reductions("1f1b", 1).size(), 2u);
  EXPECT_EQ(reductions("zb-h1", 1).size(), 2u);
}

}  // namespace
}  // namespace sluice::test
