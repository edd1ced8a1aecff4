#include <gtest/gtest.h>

#include <string>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "tests/support/shapes.h"

// The orders of small schedules, derived by hand from the rules of their papers. An op is written as stage, kind,
// microbatch and slice, "2F5/1"; a joint block in brackets.
namespace sluice::test {
namespace {

std::string order(const Schedule& schedule, int rank) {
  std::string text;
  bool inside = false;
  for (const Op& op : schedule.ops(rank)) {
    if (!text.empty()) text += ' ';
    if (op.joined) text += '(';
    text += std::to_string(op.stage) + letter(op.kind) + std::to_string(op.microbatch);
    if (schedule.sliced()) text += "/" + std::to_string(op.slice);
    if (inside) text += ')';
    inside = op.joined;
  }
  return text;
}

struct OrderOfRank {
  const char* family;
  Shape shape;
  int rank;
  const char* order;
};

const OrderOfRank kOrders[] = {
    {"gpipe", {.p = 2, .m = 3}, 1, "1F0 1F1 1F2 1B0 1B1 1B2"},
    // Warm-up of p - 1 - r.
    {"1f1b", {.p = 2, .m = 2}, 0, "0F0 0F1 0B0 0B1"},
    {"1f1b", {.p = 2, .m = 2}, 1, "1F0 1B0 1F1 1B1"},  // each B after its F, also on the last rank
    {"1f1b", {.p = 4, .m = 2}, 1, "1F0 1F1 1B0 1B1"},
    // 2(p - r) - 1 forwards, then a backward first: 3 on rank 0, 1 on rank 1.
    {"eager-1f1b", {.p = 2, .m = 4}, 0, "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"},
    {"eager-1f1b", {.p = 2, .m = 4}, 1, "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"},
    // Groups of p = 2; warm-up of (v-1)p + 2(p-1-r): 4 and 2.
    {"interleaved-1f1b",
     {.p = 2, .m = 4, .v = 2},
     0,
     "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"},
    {"interleaved-1f1b",
     {.p = 2, .m = 4, .v = 2},
     1,
     "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"},
    // One more forward of warm-up than interleaved-1f1b; then blocks of F and B.
    {"combined-1f1b",
     {.p = 2, .m = 4, .v = 2},
     0,
     "0F0 0F1 2F0 2F1 0F2 (0F3 2B0) (2F2 2B1) (2F3 0B0) 0B1 2B2 2B3 0B2 0B3"},
    {"combined-1f1b",
     {.p = 2, .m = 4, .v = 2},
     1,
     "1F0 1F1 3F0 (3F1 3B0) (1F2 3B1) (1F3 1B0) (3F2 1B1) (3F3 3B2) 3B3 1B2 1B3"},
    // As Megatron-LM without a pipeline.
    {"combined-1f1b", {.p = 1, .m = 3, .v = 1}, 0, "0F0 (0F1 0B0) (0F2 0B1) 0B2"},
    // A group of 3 and a last one of 2; warm-up of 3 + 2 on rank 0.
    {"interleaved-1f1b",
     {.p = 2, .m = 5, .v = 2, .group = 3},
     0,
     "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4"},
    {"looped-bfs", {.p = 2, .m = 2, .v = 2}, 1, "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0"},
    {"terapipe", {.p = 2, .m = 2, .k = 2}, 0, "0F0/0 0F0/1 0F1/0 0F1/1 0B1/1 0B1/0 0B0/1 0B0/0"},
    // Warm-up of p - 2 - r + k: 2 and 1. The backward takes microbatches in order and slices from the last.
    {"seq1f1b", {.p = 2, .m = 2, .k = 2}, 0, "0F0/0 0F0/1 0F1/0 0B0/1 0F1/1 0B0/0 0B1/1 0B1/0"},
    {"seq1f1b", {.p = 2, .m = 2, .k = 2}, 1, "1F0/0 1F0/1 1B0/1 1F1/0 1B0/0 1F1/1 1B1/1 1B1/0"},
    // The paper's eq. 4 in microbatches would hang here: all k slices of the only microbatch come first.
    {"seq1f1b", {.p = 2, .m = 1, .k = 3}, 0, "0F0/0 0F0/1 0F0/2 0B0/2 0B0/1 0B0/0"},
    {"seq1f1b", {.p = 2, .m = 1, .k = 3}, 1, "1F0/0 1F0/1 1F0/2 1B0/2 1B0/1 1B0/0"},
    // Warm-up of 2(p-1-r) + k - 1: 3 and 1.
    {"eager-seq1f1b", {.p = 2, .m = 2, .k = 2}, 0, "0F0/0 0F0/1 0F1/0 0F1/1 0B0/1 0B0/0 0B1/1 0B1/0"},
    {"eager-seq1f1b", {.p = 2, .m = 2, .k = 2}, 1, "1F0/0 1F0/1 1B0/1 1F1/0 1B0/0 1F1/1 1B1/1 1B1/0"},
    // G = 2 units; warm-up of G + 2(p-1-r) + k-1: 5 (all 4) and 3.
    {"seq1f1b-interleaved", {.p = 2, .m = 1, .v = 2, .k = 2}, 0, "0F0/0 0F0/1 2F0/0 2F0/1 2B0/1 2B0/0 0B0/1 0B0/0"},
    {"seq1f1b-interleaved", {.p = 2, .m = 1, .v = 2, .k = 2}, 1, "1F0/0 1F0/1 3F0/0 3F0/1 3B0/1 3B0/0 1B0/1 1B0/0"},
    // 1f1b's order; W immediately follows its I on rank 0 and the next I on rank 1.
    {"zb-h1", {.p = 2, .m = 3}, 0, "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2"},
    {"zb-h1", {.p = 2, .m = 3}, 1, "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"},
    // eager-1f1b's order; W two Is later on rank 1.
    {"zb-h2", {.p = 2, .m = 4}, 0, "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3"},
    {"zb-h2", {.p = 2, .m = 4}, 1, "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3"},
    // Warm-ups of seq1f1b and eager-seq1f1b on rank 1, 1 slice each; W one and two Is later.
    {"seq1f1b-zb1p", {.p = 2, .m = 1, .k = 2}, 1, "1F0/0 1F0/1 1I0/1 1I0/0 1W0/1 1W0/0"},
    {"seq1f1b-zb1p",
     {.p = 2, .m = 2, .k = 2},
     1,
     "1F0/0 1F0/1 1I0/1 1F1/0 1I0/0 1W0/1 1F1/1 1I1/1 1W0/0 1I1/0 1W1/1 1W1/0"},
    {"seq1f1b-zb2p",
     {.p = 2, .m = 2, .k = 2},
     1,
     "1F0/0 1F0/1 1I0/1 1F1/0 1I0/0 1F1/1 1I1/1 1W0/1 1I1/0 1W0/0 1W1/1 1W1/0"},
    // p = 2, so 3 - 2r forwards of chunk 0 first; one round of the steady state.
    {"zb-v", {.p = 2, .m = 3}, 0, "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2"},
    {"zb-v", {.p = 2, .m = 3}, 1, "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2"},
    // Fewer than 2p - 1 microbatches: the same without the missing ones.
    {"zb-v", {.p = 2, .m = 1}, 1, "1F0 2F0 2I0 2W0 1I0 1W0"},
    // One rank: the slots of the block (v-half: f0 0, f1 1, i1 2, i0 4; v-min: 0, 1, 2, 3), each W in the first free
    // slot after its I. No slot is free to move to.
    {"v-half", {.p = 1, .m = 2}, 0, "0F0 1F0 1I0 1W0 0I0 0W0 0F1 1F1 1I1 1W1 0I1 0W1"},
    {"v-min", {.p = 1, .m = 2}, 0, "0F0 1F0 1I0 0I0 1W0 0W0 0F1 1F1 1I1 0I1 1W1 0W1"},
    // Slots of v-half, p = 2: rank 0 f0 0, f1 4, i1 8, w1 9, i0 13, w0 17; rank 1 f0 2, f1 3, i1 10, w1 11, i0 12,
    // w0 13. Backwards from 17, rank 1 first has its two W ready, of which the one due first runs first, while rank 0
    // runs W and I; then each op as its successor allows.
    {"v-half", {.p = 2, .m = 1}, 0, "0F0 3F0 3I0 3W0 0I0 0W0"},
    {"v-half", {.p = 2, .m = 1}, 1, "1F0 2F0 2I0 1I0 2W0 1W0"},
    // interleaved-1f1b with a warm-up of (v-1)p + p-1-r: 3 and 2; W immediately on rank 0, one I later on rank 1.
    {"interleaved-zb", {.p = 2, .m = 2, .v = 2}, 0, "0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1"},
    {"interleaved-zb", {.p = 2, .m = 2, .v = 2}, 1, "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1"},
    // DeepSeek's steps with 4 microbatches per direction. Ends: (1) two F (2) F F (3) I W F (4) one pair of blocks (5)
    // B and a block (6) B I (7) W I (8) W. Middle ranks: (2) twice, (4) two pairs, the first block separate, (6) B B I
    // I, (8) W W.
    {"dualpipe",
     {.p = 4, .m = 8},
     0,
     "0F0 0F1 0F2 3F4 3I4 3W4 3F5 (0F3 3B5) (3F6 0B0) 3B6 (3F7 0B1) 3B7 0I2 0W2 0I3 0W3"},
    {"dualpipe", {.p = 4, .m = 8}, 1, "1F0 2F4 1F1 2F5 1F2 2B4 (2F6 1B0) (1F3 2B5) (2F7 1B1) 2B6 1B2 2I7 1I3 2W7 1W3"},
    {"dualpipe", {.p = 4, .m = 8}, 2, "1F4 2F0 1F5 2F1 1F6 2B0 (2F2 1B4) (1F7 2B1) (2F3 1B5) 2B2 1B6 2I3 1I7 2W3 1W7"},
    {"dualpipe",
     {.p = 4, .m = 8},
     3,
     "0F4 0F5 0F6 3F0 3I0 3W0 3F1 (0F7 3B1) (3F2 0B4) 3B2 (3F3 0B5) 3B3 0I6 0W6 0I7 0W7"},
    // The same steps with the chunks for the two directions.
    {"dualpipe-v",
     {.p = 2, .m = 4},
     0,
     "0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3 3B1) (3F2 0B0) 3B2 (3F3 0B1) 3B3 0I2 0W2 0I3 0W3"},
    {"dualpipe-v", {.p = 1, .m = 2}, 0, "0F0 1F0 0F1 1B0 (1F1 0B0) 1B1 0I1 0W1"},
    // Slots of rank 0: F of mb 0, 1 in 0, 2, their B in 7, 9; F of mb 2, 3 (stage 3) in 3, 5, their B in 4, 6.
    {"chimera", {.p = 4, .m = 4}, 0, "0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1"},
    {"chimera", {.p = 4, .m = 4}, 1, "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1"},
    // Slots of rank 0: F of stage 0 in 0, 2 and of stage 3 in 3, 5; B of stage 3 in 4, 6 and of stage 0 in 7, 9.
    {"hanayo", {.p = 2, .m = 2, .v = 2}, 0, "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1"},
    {"hanayo", {.p = 2, .m = 2, .v = 2}, 1, "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"},
};

TEST(Orders, OfSmallSchedules) {
  for (const OrderOfRank& each : kOrders) {
    EXPECT_EQ(order(make(each.family, each.shape), each.rank), each.order) << each.family << ", rank " << each.rank;
  }
}

// With fewer microbatches than ranks, all are one group, as PyTorch 2.13 prints its pipeline_order of 4 ranks, 2 stages
// each.
TEST(Orders, InterleavedWithFewerMicrobatchesThanRanks) {
  const Family& family = find_family("interleaved-1f1b");
  const Schedule two = make_schedule(family, {.ranks = 4, .chunks = 2, .microbatches = 2, .group = 2});
  EXPECT_EQ(order(two, 0), "0F0 0F1 4F0 4F1 4B0 4B1 0B0 0B1");
  EXPECT_EQ(order(two, 3), "3F0 3F1 7F0 7B0 7F1 7B1 3B0 3B1");
  const Schedule three = make_schedule(family, {.ranks = 4, .chunks = 2, .microbatches = 3, .group = 3});
  EXPECT_EQ(order(three, 2), "2F0 2F1 2F2 6F0 6F1 6F2 6B0 6B1 6B2 2B0 2B1 2B2");
  EXPECT_EQ(order(three, 3), "3F0 3F1 3F2 7F0 7B0 7F1 7B1 7F2 7B2 3B0 3B1 3B2");
  const Schedule split =
      make_schedule(find_family("interleaved-zb"), {.ranks = 4, .chunks = 2, .microbatches = 3, .group = 3});
  EXPECT_EQ(order(split, 0), "0F0 0F1 0F2 4F0 4F1 4F2 4I0 4W0 4I1 4W1 4I2 4W2 0I0 0W0 0I1 0W1 0I2 0W2");
  EXPECT_EQ(order(split, 2), "2F0 2F1 2F2 6F0 6F1 6I0 6F2 6I1 6I2 6W0 2I0 6W1 2I1 6W2 2I2 2W0 2W1 2W2");
  EXPECT_EQ(order(split, 3), "3F0 3F1 3F2 7F0 7I0 7F1 7I1 7F2 7I2 3I0 7W0 3I1 7W1 3I2 7W2 3W0 3W1 3W2");
}

// PyTorch has as many groups as there are whole multiples of p microbatches: 10 on 4 ranks are 2 groups of 5.
TEST(Orders, PyTorchDividesMicrobatchesIntoGroupsOfItsOwn) {
  Scenario scenario{.source = "test"};
  scenario.schedule = "Interleaved1F1B";
  scenario.training.pp = 4;
  scenario.chunks = 2;
  scenario.microbatches = 10;
  EXPECT_THROW(make_schedule(scenario), InputError);  // 4, 4 and 2 in Megatron-LM's
  scenario.training.torch_pipelining = true;
  EXPECT_EQ(order(make_schedule(scenario), 3),
            "3F0 3F1 3F2 3F3 3F4 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 7F4 7B4 3F5 3B0 3F6 3B1 3F7 3B2 3F8 3B3 3F9 3B4 7F5 "
            "7B5 7F6 7B6 7F7 7B7 7F8 7B8 7F9 7B9 3B5 3B6 3B7 3B8 3B9");
  scenario.microbatches = 3;
  EXPECT_EQ(order(make_schedule(scenario), 3), "3F0 3F1 3F2 7F0 7B0 7F1 7B1 7F2 7B2 3B0 3B1 3B2");
}

// A group larger than the batch: all microbatches chunk by chunk, and a warm-up of (v-1)G + 2(p-1-r) = 3 on rank 1.
TEST(Orders, InterleavedWithAGroupPastTheBatch) {
  const Schedule schedule = make("interleaved-1f1b", {.p = 2, .m = 2, .v = 2, .group = 3});
  EXPECT_EQ(order(schedule, 1), "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1");
  const Schedule huge = make("interleaved-1f1b", {.p = 2, .m = 2, .v = 2, .group = 2'000'000'000});
  EXPECT_EQ(order(huge, 1), "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1");
}

TEST(Orders, Seq1F1BInterleavedTakesTheSmallestLegalGroup) {
  // At least p = 4 units, a multiple of k = 3, a divisor of 27: 9.
  const Shape shape = {.p = 4, .m = 9, .v = 2, .k = 3};
  Shape explicit_group = shape;
  for (explicit_group.group = 1; explicit_group.group < 9; ++explicit_group.group) {
    EXPECT_THROW(make("seq1f1b-interleaved", explicit_group), InputError) << explicit_group.group;
  }
  EXPECT_EQ(make("seq1f1b-interleaved", shape).parts().orders,
            make("seq1f1b-interleaved", explicit_group).parts().orders);
}

// 1f1b over all batches.
TEST(Orders, Pipedream) {
  for (const char* family : {"pipedream", "pipedream-2bw"}) {
    EXPECT_EQ(order(make(family, {.p = 2, .m = 1, .batches = 3}), 0), "0F0 0F1 0B0 0F2 0B1 0B2") << family;
  }
}

// Checks that the slots of the ops of every rank increase in its order.
void expect_slots_rise(const char* family, const auto& slot) {
  const int checked = test::for_shapes(
      family, {.ranks = 8, .microbatches = 24, .chunks = 6}, [](const Shape&) { return true; },
      [&](const Shape& shape, const Schedule& schedule) {
        for (int rank = 0; rank < shape.p; ++rank) {
          int last = -1;
          for (const Op& op : schedule.ops(rank)) {
            ASSERT_LT(last, slot(shape, op)) << "rank " << rank << ", " << to_string(op, false);
            last = slot(shape, op);
          }
        }
      });
  EXPECT_GT(checked, 0);
}

// F in 2j + s + 2pu, B in 2j + 2p-1-s + 2pu: unit u, j-th of its direction, s stages from where that direction enters.
TEST(Slots, Chimera) {
  expect_slots_rise("chimera", [](const Shape& shape, const Op& op) {
    const int unit = op.microbatch / shape.p;
    const int j = op.microbatch % (shape.p / 2);
    return 2 * j + 2 * shape.p * unit + (op.kind == OpKind::F ? op.stage : 2 * shape.p - 1 - op.stage);
  });
}

TEST(Slots, Hanayo) {
  expect_slots_rise("hanayo", [](const Shape& shape, const Op& op) {
    const int stages = shape.p * shape.v;
    return 2 * op.microbatch + (op.kind == OpKind::F ? op.stage : 2 * stages - 1 - op.stage);
  });
}

}  // namespace
}  // namespace sluice::test
