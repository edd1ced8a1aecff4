#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"
#include "model/schedule/schedule_file.h"
#include "tests/support/errors.h"
#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

// Families with vocabulary passes: S and T of every microbatch on every rank (Yeung et al. 2024, arXiv:2411.05288).
namespace sluice::test {
namespace {

using testing::HasSubstr;

std::string text_of(const Schedule& schedule, int rank) {
  std::string text;
  for (const Op& op : schedule.ops(rank)) text += letter(op.kind) + std::to_string(op.microbatch) + ' ';
  return text;
}

int peak_of(const Schedule& schedule, int rank) { return peak_in_flight(schedule, rank, OpKind::W); }

struct Times {
  std::int64_t f = 1, b = 1, s = 1, t = 1;
  std::int64_t block() const { return f + b + s + t; }
};

OracleTimes run(const Schedule& schedule, const Times& times, std::int64_t hop = 0) {
  const auto of = [times](const Op& op) {
    return op.kind == OpKind::F ? times.f : op.kind == OpKind::S ? times.s : op.kind == OpKind::T ? times.t : times.b;
  };
  return longest_path(schedule, {.op = of, .joint = {}, .hop = hop});
}

// The error of constructing and lowering `parts`; "" without one.
std::string error_of(ScheduleParts parts) {
  return test::error_from<ScheduleError>([&] { static_cast<void>(lower(Schedule(std::move(parts)))); }, "");
}

// With p = 3, the inputs of S arrive 1, 1 and 0 blocks after the forward of the same microbatch on ranks 0, 1, 2; the
// backward is 3, 2 and 1 blocks after it.
TEST(Vocabulary, OrderOfOneBarrier) {
  const Schedule schedule = make("1f1b-vocab-2", {.p = 3, .m = 4});
  EXPECT_EQ(text_of(schedule, 0), "F0 F1 S0 F2 S1 T0 F3 S2 B0 T1 S3 B1 T2 B2 T3 B3 ");
  EXPECT_EQ(text_of(schedule, 2), "F0 S0 F1 S1 B0 T0 F2 S2 B1 T1 F3 S3 B2 T2 B3 T3 ");
}

TEST(Vocabulary, OrderOfTwoBarriers) {
  const Schedule schedule = make("1f1b-vocab-1", {.p = 2, .m = 4});
  EXPECT_EQ(text_of(schedule, 0), "F0 F1 S0 F2 S1 T0 F3 S2 T1 B0 S3 T2 B1 T3 B2 B3 ");
  EXPECT_EQ(text_of(schedule, 1), "F0 S0 F1 S1 T0 F2 S2 T1 B0 F3 S3 T2 B1 T3 B2 B3 ");
}

// 1F1B's p - r microbatches in flight and one more per barrier (section 5.2 of the paper): half of them more with
// interlaced passes, one more per barrier for the two chunks of V-half.
TEST(Vocabulary, MicrobatchesInFlightGrowByOnePerBarrier) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      const Schedule two = make("1f1b-vocab-1", {.p = p, .m = m});
      const Schedule one = make("1f1b-vocab-2", {.p = p, .m = m});
      const Schedule together = make("interlaced", {.p = p, .m = m});
      const Schedule v_one = make("v-half-vocab-2", {.p = p, .m = m});
      const Schedule v_two = make("v-half-vocab-1", {.p = p, .m = m});
      const Schedule v = make("v-half", {.p = p, .m = m});
      for (int rank = 0; rank < p; ++rank) {
        EXPECT_EQ(peak_of(one, rank), std::min(m, p - rank + 1));
        EXPECT_EQ(peak_of(two, rank), std::min(m, p - rank + 2));
        const int d = p - 1 - rank;
        EXPECT_EQ(peak_of(together, rank), std::min(m, d % 2 == 0 ? d + d / 2 + 1 : d + d / 2 + 2));
        int most = 0;
        for (int of = 0; of < p; ++of) most = std::max(most, peak_of(v, of));
        EXPECT_LE(peak_of(v_one, rank), most + 2);
        EXPECT_LE(peak_of(v_two, rank), most + 4);
      }
    }
  }
}

// Each rank works without a gap while the block repeats, where f is a third of the block or less and b two thirds or
// less; so does the interlaced block where b is at least f.
TEST(Vocabulary, BlockRepeatsWithoutIdleTime) {
  const std::vector<Times> all = {{10, 20, 1, 1}, {10, 20, 8, 1}, {10, 20, 1, 8}, {10, 20, 5, 5},
                                  {7, 13, 3, 2},  {5, 11, 4, 3},  {10, 22, 2, 1}};
  for (const char* family : {"1f1b-vocab-1", "1f1b-vocab-2", "interlaced"}) {
    for (int p = 1; p <= 8; ++p) {
      for (const Times& times : all) {
        SCOPED_TRACE(testing::Message() << family << " p=" << p << " f=" << times.f << " s=" << times.s);
        const auto makespan = [&](int m) { return run(make(family, {.p = p, .m = m}), times).makespan(); };
        const int m = 3 * p + 8;
        const std::int64_t long_one = makespan(m + 1);
        EXPECT_EQ(long_one - makespan(m), times.block());
        // Nothing starts before the first forwards, and nothing ends after the last backwards, of rank 0's list.
        EXPECT_GE(long_one, (m + 1) * times.block());
        EXPECT_LE(long_one, (p - 1) * (times.f + times.b) + (m + 1 + 2) * times.block());
      }
    }
  }
}

// The list of every rank is complete, ends, and takes at least the time of one microbatch's chain.
TEST(Vocabulary, SmallShapesEndAndTakeAtLeastTheChainOfAMicrobatch) {
  for (const char* family : {"1f1b-vocab-1", "1f1b-vocab-2", "interlaced", "v-half-vocab-1", "v-half-vocab-2"}) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 16; ++m) {
        SCOPED_TRACE(testing::Message() << family << " p=" << p << " m=" << m);
        const Schedule schedule = make(family, {.p = p, .m = m});
        const Times times{4, 5, 3, 2};
        const std::int64_t hop = 7;
        const OracleTimes of = run(schedule, times, hop);
        ASSERT_FALSE(of.deadlock);
        EXPECT_NO_THROW(static_cast<void>(lower(schedule)));
        const bool two = schedule.vocabulary_barriers() == 2;
        // Every transfer of the chain that leaves a rank costs a hop: between stages, and to and from each shard.
        const int stages = schedule.num_stages();
        std::int64_t hops = p > 1 ? (two ? 4 : 2) : 0;
        for (int stage = 1; stage < stages; ++stage) {
          hops += schedule.rank_of(stage, 0) != schedule.rank_of(stage - 1, 0) ? 2 : 0;
        }
        const std::int64_t passes = times.s + (two ? times.t : 0);
        EXPECT_GE(of.makespan(), stages * (times.f + times.b) + passes + hops * hop);
      }
    }
  }
}

// The ops whose results `v` waits for, through transfers.
std::set<std::string> sources_of(const OpGraph& graph, VertexId v) {
  std::set<std::string> out;
  const auto needs = graph.needs(v);
  for (std::size_t i = 0; i < needs.size(); ++i) {
    // The last edge is the order of the lane.
    if (graph[v].kind == VertexKind::compute && i + 1 == needs.size() && i > 0) continue;
    if (graph[v].kind == VertexKind::transfer && i > graph[v].extra) continue;
    if (graph[needs[i]].kind == VertexKind::compute) {
      out.insert(graph.name(needs[i]));
    } else {
      const std::set<std::string> before = sources_of(graph, needs[i]);
      out.insert(before.begin(), before.end());
    }
  }
  return out;
}

class HiddenBytes : public Footprint {
 public:
  StageBytes stage(int /*stage*/) const override { return {}; }
  SliceBytes slice(int stage, const MicrobatchShape& /*shape*/, int /*slice*/) const override {
    return {.transfer_forward = 100 + stage, .transfer_backward = 200 + stage};
  }
};

TEST(Vocabulary, PassesWaitForWhatTheirBarriersSay) {
  const HiddenBytes footprint;
  for (const char* family : {"1f1b-vocab-1", "1f1b-vocab-2", "interlaced", "v-half-vocab-2"}) {
    for (int p = 1; p <= 4; ++p) {
      const Schedule schedule = make(family, {.p = p, .m = 5});
      const OpGraph graph = lower(schedule, {.footprint = &footprint});
      const int last = schedule.num_stages() - 1;
      const bool two = schedule.vocabulary_barriers() == 2;
      std::map<int, std::int64_t> gradients;  // by microbatch: bytes of hidden states to the last stage's rank
      for (VertexId v = 0; v < graph.size(); ++v) {
        const Vertex& vertex = graph[v];
        const auto name = [&](OpKind kind, int stage) {
          return to_string(Op{.microbatch = vertex.microbatch, .stage = static_cast<std::int16_t>(stage), .kind = kind},
                           false);
        };
        if (vertex.kind == VertexKind::transfer && vertex.op >= OpKind::S) {
          gradients[vertex.microbatch] += graph.transfer_bytes(vertex);
        }
        if (vertex.kind != VertexKind::compute) continue;
        std::set<std::string> expected;
        const bool backward = vertex.op == OpKind::B || vertex.op == OpKind::I;
        if (vertex.op == OpKind::S) expected.insert(name(OpKind::F, last));
        if (backward && vertex.stage == last) expected.insert(name(OpKind::F, last));
        for (int rank = 0; rank < p; ++rank) {
          const int first = schedule.stages_of(rank).front();
          if (vertex.op == OpKind::T) expected.insert(name(OpKind::S, first));
          if (backward && vertex.stage == last) expected.insert(name(two ? OpKind::T : OpKind::S, first));
        }
        if (vertex.op < OpKind::S && (!backward || vertex.stage != last)) continue;
        const std::set<std::string> all = sources_of(graph, v);
        for (const std::string& each : expected) EXPECT_TRUE(all.contains(each)) << graph.name(v) << ": " << each;
        for (const std::string& each : all) EXPECT_TRUE(expected.contains(each)) << graph.name(v) << ": " << each;
      }
      for (int mb = 0; mb < 5 && p > 1; ++mb) EXPECT_EQ(gradients[mb], std::int64_t{p - 1} * (100 + last));
    }
  }
}

TEST(Vocabulary, WrongOrdersPrintTheirCycle) {
  const ScheduleParts good = make("1f1b-vocab-2", {.p = 2, .m = 2}).parts();
  EXPECT_EQ(error_of(good), "");
  const auto swapped = [&](int rank, OpKind a, OpKind b) {
    ScheduleParts parts = good;
    auto& list = parts.orders[static_cast<std::size_t>(rank)];
    const auto find = [&](OpKind kind) {
      return std::find_if(list.begin(), list.end(),
                          [&](const Op& op) { return op.kind == kind && op.microbatch == 0; });
    };
    std::iter_swap(find(a), find(b));
    return parts;
  };
  // The backward of the last stage waits for all S; T waits for the S of its own rank.
  EXPECT_THAT(error_of(swapped(1, OpKind::S, OpKind::B)),
              HasSubstr("B(stage 1, mb 0) -> S(stage 1, mb 0) -> B(stage 1, mb 0)"));
  EXPECT_THAT(error_of(swapped(0, OpKind::S, OpKind::T)),
              HasSubstr("T(stage 0, mb 0) -> S(stage 0, mb 0) -> T(stage 0, mb 0)"));
  // S of rank 0 after its T and its backward, which waits for that of the last rank.
  EXPECT_THAT(error_of(swapped(0, OpKind::S, OpKind::B)), HasSubstr("deadlock, each waits for the next: "));
}

TEST(Vocabulary, IncompleteAndMisplacedPassesAreRefused) {
  const ScheduleParts good = make("1f1b-vocab-2", {.p = 2, .m = 2}).parts();
  const auto without = [&](OpKind kind) {
    ScheduleParts parts = good;
    std::erase_if(parts.orders[1], [&](const Op& op) { return op.kind == kind && op.microbatch == 1; });
    return parts;
  };
  EXPECT_THAT(error_of(without(OpKind::S)), HasSubstr("rank 1: S(stage 1, mb 1) is missing"));
  EXPECT_THAT(error_of(without(OpKind::T)), HasSubstr("rank 1: T(stage 1, mb 1) is missing"));
  ScheduleParts none = good;
  none.vocabulary_barriers = 0;
  EXPECT_THAT(error_of(none), HasSubstr("S(stage 0, mb 0): needs a schedule with vocabulary_barriers"));
  ScheduleParts other = make("v-half-vocab-2", {.p = 2, .m = 2}).parts();
  for (Op& op : other.orders[0]) {
    if (op.kind == OpKind::S) op.stage = 3;
  }
  EXPECT_THAT(error_of(other), HasSubstr("S(stage 3, mb 0): S and T of this rank have stage 0"));
  ScheduleParts sliced = good;
  sliced.shapes[0].slice_lengths = {1, 1};
  EXPECT_THAT(error_of(sliced), HasSubstr("vocabulary_barriers: S and T need a schedule with"));
}

TEST(Vocabulary, SchedulesAreReadAsTheyAreWritten) {
  for (const char* family : {"1f1b-vocab-1", "1f1b-vocab-2", "v-half-vocab-1"}) {
    const Schedule schedule = make(family, {.p = 3, .m = 5});
    const Schedule again = schedule_from_json(schedule_to_json(schedule), "test");
    EXPECT_EQ(again.parts().orders, schedule.parts().orders);
    EXPECT_EQ(again.vocabulary_barriers(), schedule.vocabulary_barriers());
  }
}

// The shards are the whole embedding and output layer, with a final norm on each rank; together they take as long, but
// for launches and smaller GEMMs, and hold no more logits.
TEST(Vocabulary, ShardsAddUpToEmbeddingAndOutputLayer) {
  const auto setup_of = [](const std::string& family) {
    const nlohmann::json document = {{"model",
                                      {{"num_layers", 8},
                                       {"hidden_size", 2048},
                                       {"num_attention_heads", 16},
                                       {"max_position_embeddings", 2048},
                                       {"vocab_size", 65536},
                                       {"untie_embeddings_and_output_weights", true}}},
                                     {"cluster", "dgx-a100-80gb"},
                                     {"parallelism", {{"pp", 4}}},
                                     {"batch", {{"microbatches", 8}, {"sequence_length", 2048}}},
                                     {"schedule", {{"name", family}}}};
    return std::make_unique<model::Setup>(model::scenario_from_json(document, "test", ""));
  };
  const auto plain = setup_of("1f1b");
  const auto seconds = [](const model::Setup& setup, std::initializer_list<OpKind> kinds, int stage) {
    double sum = 0;
    for (const OpKind kind : kinds) sum += setup.cost().compute_s(kind, stage, setup.schedule().shapes()[0], 0);
    return sum;
  };
  const auto layers = [&](const model::Setup& setup, int stage) {
    return seconds(setup, {OpKind::F, OpKind::B}, stage);
  };
  const double outer = layers(*plain, 0) + layers(*plain, 3) - 2 * layers(*plain, 1);
  const auto weights = [](const model::Setup& setup) {
    std::int64_t sum = 0;
    for (int stage = 0; stage < 4; ++stage) sum += setup.graph().stage_bytes(stage).weights;
    return sum;
  };
  for (const char* family : {"1f1b-vocab-1", "1f1b-vocab-2"}) {
    const auto split = setup_of(family);
    const std::int64_t norm = 2 * 2 * 2048;  // bytes of a weight and a bias in 16 bits
    EXPECT_EQ(weights(*split), weights(*plain) + 3 * norm);
    EXPECT_EQ(layers(*split, 3), layers(*plain, 1));
    const double shards = 4 * seconds(*split, {OpKind::S, OpKind::T}, 2);
    EXPECT_GT(shards, 0.95 * outer);
    EXPECT_LT(shards, 1.15 * outer);
    const std::int64_t logits = std::int64_t{2048} * 65536;  // 4 bytes of softmax and 2 of its gradient
    const std::int64_t hidden = std::int64_t{2048} * 2048;
    EXPECT_EQ(split->graph().slice_bytes(2, 0, 0).vocabulary,
              6 * logits / 4 + 2 * hidden * (split->schedule().vocabulary_barriers() == 1 ? 2 : 1));
  }
}

}  // namespace
}  // namespace sluice::test
