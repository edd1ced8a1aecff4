#include "model/schedule/schedule.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "model/errors.h"
#include "tests/support/errors.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

// Two ranks, two stages, two microbatches of 1f1b: rank 0 has F0 F1 B0 B1, rank 1 has F0 B0 F1 B1.
ScheduleParts good_parts() { return make("1f1b", {.p = 2, .m = 2}).parts(); }

std::string error_after(const std::function<void(ScheduleParts&)>& change) {
  ScheduleParts parts = good_parts();
  change(parts);
  return test::error_from<ScheduleError>([&] { const Schedule schedule(std::move(parts)); });
}

TEST(Schedule, AcceptsAValidOne) {
  const Schedule schedule(good_parts());
  EXPECT_EQ(schedule.num_ops(), 8);  // 2 stages, 2 microbatches, F and B
  EXPECT_EQ(schedule.num_units(), 2);
  EXPECT_EQ(schedule.rank_of(1, 0), 1);
  EXPECT_FALSE(schedule.split_backward());
  EXPECT_FALSE(schedule.has_joint_blocks());
}

TEST(Schedule, NumbersUnitsOverMicrobatchesOfDifferentShapes) {
  ScheduleParts parts = {.num_microbatches = 3,
                         .routes = {{0}},
                         .shapes = {{.slice_lengths = {4}}, {.slice_lengths = {3, 1}}},
                         .shape_of = {1, 0, 1}};
  parts.orders.resize(1);
  for (const OpKind kind : {OpKind::F, OpKind::B}) {
    for (const auto& [mb, slice] : {std::pair{0, 0}, {0, 1}, {1, 0}, {2, 0}, {2, 1}}) {
      parts.orders[0].push_back({.microbatch = mb, .slice = static_cast<std::int16_t>(slice), .kind = kind});
    }
  }
  const Schedule schedule(std::move(parts));
  EXPECT_EQ(schedule.num_units(), 5);
  EXPECT_EQ(schedule.first_unit(1), 2);
  EXPECT_EQ(schedule.first_unit(2), 3);
  EXPECT_EQ(schedule.max_slices(), 2);
  EXPECT_EQ(schedule.shape(0).tokens(), 4);
  EXPECT_EQ(schedule.shape(0).context(1), 3);
}

TEST(Schedule, ListsAReplicatedStageOnBothRanks) {
  const Schedule schedule = make("chimera", {.p = 2, .m = 2});
  EXPECT_EQ(std::vector<int>(schedule.stages_of(0).begin(), schedule.stages_of(0).end()), (std::vector<int>{0, 1}));
  EXPECT_EQ(schedule.rank_of(0, 0), 0);
  EXPECT_EQ(schedule.rank_of(0, 1), 1);
  EXPECT_EQ(schedule.chunk_of(1, 1), 1);
}

TEST(ScheduleErrors, ReplicasNeedAFlush) {
  ScheduleParts parts = make("chimera", {.p = 2, .m = 2}).parts();
  parts.weight_policy = WeightPolicy::stashed;
  EXPECT_EQ(test::error_from<ScheduleError>([&] { const Schedule schedule(std::move(parts)); }),
            "routes: stages on two ranks all-reduce their gradients at a flush, and this schedule has none");
}

TEST(ScheduleErrors, NameTheFirstOpThatIsWrong) {
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[0][2].stage = 2; }),
            "rank 0, position 2: B(stage 2, mb 0): there are stages 0 to 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[0][1].microbatch = 2; }),
            "rank 0, position 1: F(stage 0, mb 2): there are microbatches 0 to 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[1][0].microbatch = -1; }),
            "rank 1, position 0: F(stage 1, mb -1): there are microbatches 0 to 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[0][0].slice = 1; }),
            "rank 0, position 0: F(stage 0, mb 0): there are slices 0 to 0");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[0][3].stage = 1; }),
            "rank 0, position 3: B(stage 1, mb 1): the placement has this stage on rank 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[0][1].microbatch = 0; }),
            "rank 0, position 1: F(stage 0, mb 0): occurs twice, first at rank 0, position 0");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[1].pop_back(); }), "rank 1: B(stage 1, mb 1) is missing");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders[0].erase(parts.orders[0].begin()); }),
            "rank 0: F(stage 0, mb 0) is missing");
  EXPECT_EQ(error_after([](auto& parts) {
              parts.orders[0].clear();
              parts.orders[1].resize(1);
            }),
            "rank 0: F(stage 0, mb 0) is missing");
}

TEST(ScheduleErrors, RejectMixedWholeAndSplitBackwards) {
  const auto split = [](Op op, OpKind kind) {
    op.kind = kind;
    return op;
  };
  EXPECT_EQ(error_after([&](auto& parts) { parts.orders[0].push_back(split(parts.orders[0][2], OpKind::W)); }),
            "rank 0, position 4: W(stage 0, mb 0): both B and I or W for the same stage, microbatch and slice");
  EXPECT_EQ(error_after([&](auto& parts) { parts.orders[0][2].kind = OpKind::I; }),
            "rank 0: W(stage 0, mb 0) is missing");
  EXPECT_EQ(error_after([&](auto& parts) { parts.orders[0][2].kind = OpKind::W; }),
            "rank 0: I(stage 0, mb 0) is missing");
  // One microbatch with a whole and one with a split backward is a valid schedule.
  EXPECT_EQ(error_after([&](auto& parts) {
              parts.orders[0][2].kind = OpKind::I;
              parts.orders[0].push_back(split(parts.orders[0][2], OpKind::W));
            }),
            "no error");
}

TEST(ScheduleErrors, RequireOneForwardAndOneBackwardInABlock) {
  const auto joined = [](std::size_t rank, std::size_t position) {
    return error_after([=](ScheduleParts& parts) { parts.orders[rank][position].joined = true; });
  };
  const std::string rule = ": a joint block is one F and one B or I, next to each other";
  EXPECT_EQ(joined(0, 0), "rank 0, position 0: F(stage 0, mb 0)" + rule);  // F F
  EXPECT_EQ(joined(0, 1), "no error");                                     // F1 B0
  EXPECT_EQ(joined(0, 2), "rank 0, position 2: B(stage 0, mb 0)" + rule);  // B B
  EXPECT_EQ(joined(0, 3), "rank 0, position 3: B(stage 0, mb 1)" + rule);  // the last
  EXPECT_EQ(joined(1, 1), "no error");                                     // B0 F1
  EXPECT_EQ(error_after([](ScheduleParts& parts) { parts.orders[1][1].joined = parts.orders[1][2].joined = true; }),
            "rank 1, position 1: B(stage 1, mb 0)" + rule);  // three in a row
}

TEST(ScheduleErrors, NameTheFieldOfTheFrame) {
  EXPECT_EQ(error_after([](auto& parts) { parts.num_ranks = 0; }), "ranks: expected 1 to 8192, got 0");
  EXPECT_EQ(error_after([](auto& parts) { parts.num_stages = 40000; }), "stages: expected 1 to 32767, got 40000");
  EXPECT_EQ(error_after([](auto& parts) { parts.num_batches = 0; }), "microbatches and batches: expected at least 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.routes = {}; }), "routes: expected 1 to 255");
  EXPECT_EQ(error_after([](auto& parts) { parts.routes = {{0}}; }),
            "placement: expected a rank for each of 2 stages, got 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.routes = {{0, 2}}; }), "placement: stage 1 is on rank 2, of 2 ranks");
  EXPECT_EQ(error_after([](auto& parts) { parts.route_of = {0}; }),
            "route_of: expected one entry for each of 2 microbatches, got 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.route_of = {0, 1}; }), "route_of: there is no route 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.shape_of = {0, 1}; }), "shape_of: there is no shape 1");
  EXPECT_EQ(error_after([](auto& parts) { parts.shapes[0].slice_lengths = {0}; }),
            "shapes: a slice has 1 to 2^40 tokens");
  EXPECT_EQ(error_after([](auto& parts) { parts.orders.pop_back(); }),
            "orders: expected one list for each of 2 ranks, got 1");
}

// A simulation of a rank: it executes its list, with `version_of` the weights of a forward, given its microbatch and
// the number of optimizer steps so far; a step follows every `batch`-th backward.
struct Played {
  std::vector<int> version;  // by microbatch
  int most_held = 0;         // distinct versions that a started or future microbatch needs, or that are newest
  bool in_time = true;       // every version was available when it was read
};
Played play(const Schedule& schedule, int rank, int batch, const std::function<int(int mb, int steps)>& version_of,
            bool known_ahead) {
  const int total = schedule.total_microbatches();
  Played played{.version = std::vector<int>(static_cast<std::size_t>(total), -1)};
  std::set<int> done;
  int steps = 0;
  for (const Op& op : schedule.ops(rank)) {
    if (op.kind == OpKind::F) {
      const int version = version_of(op.microbatch, steps);
      played.version[op.microbatch] = version;
      played.in_time = played.in_time && version <= steps;
    } else {
      done.insert(op.microbatch);
      if (std::ssize(done) % batch == 0) ++steps;
    }
    std::set<int> held = {steps};
    for (int mb = 0; mb < total; ++mb) {
      int version = played.version[mb];
      if (version < 0 && known_ahead) version = version_of(mb, steps);
      if (version >= 0 && version <= steps && !done.contains(mb)) held.insert(version);
    }
    played.most_held = std::max(played.most_held, static_cast<int>(held.size()));
  }
  return played;
}

TEST(WeightVersions, OfPipedreamFollowFromItsOrder) {
  test::for_shapes(
      "pipedream", {.ranks = 6, .microbatches = 5, .batches = 4}, [](const Shape&) { return true; },
      [](const Shape& shape, const Schedule& schedule) {
        for (int rank = 0; rank < shape.p; ++rank) {
          const Played played = play(
              schedule, rank, 1, [](int, int steps) { return steps; }, false);
          for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
            EXPECT_EQ(weight_version(schedule, mb, rank), played.version[mb]);
          }
          EXPECT_EQ(num_weight_versions(schedule, rank), played.most_held) << "rank " << rank;
        }
      });
}

TEST(WeightVersions, OfPipedream2bwAreTwo) {
  test::for_shapes(
      "pipedream-2bw", {.ranks = 6, .microbatches = 8, .batches = 5}, [](const Shape&) { return true; },
      [](const Shape& shape, const Schedule& schedule) {
        // m from 1 over batches of M: max(floor((m-1)/M) - 1, 0)
        const auto version_of = [&](int mb, int) { return std::max(mb / shape.m - 1, 0); };
        for (int rank = 0; rank < shape.p; ++rank) {
          const Played played = play(schedule, rank, shape.m, version_of, true);
          EXPECT_TRUE(played.in_time);
          EXPECT_EQ(num_weight_versions(schedule, rank), played.most_held) << "rank " << rank;
          for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
            EXPECT_EQ(weight_version(schedule, mb, rank), played.version[mb]);
          }
        }
      });
}

// The rule needs m >= p - 1: with one microbatch less, some version is read before it is available, so it is rejected.
TEST(WeightVersions, OfPipedream2bwAreTooLateInSmallerBatches) {
  for (int p = 3; p <= 6; ++p) {
    const Shape shape = {.p = p, .m = p - 2, .batches = 3};
    const Schedule schedule = make("pipedream", shape);  // the same order
    const auto version_of = [&](int mb, int) { return std::max(mb / shape.m - 1, 0); };
    EXPECT_FALSE(play(schedule, 0, shape.m, version_of, true).in_time) << "p=" << p;
  }
}

TEST(WeightVersions, WithAFlushAreOnePerBatch) {
  const Schedule schedule = make("1f1b", {.p = 2, .m = 3});
  EXPECT_EQ(weight_version(schedule, 2, 1), 0);
  EXPECT_EQ(num_weight_versions(schedule, 0), 1);
}

}  // namespace
}  // namespace sluice::test
