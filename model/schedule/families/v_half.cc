#include "model/schedule/building_block.h"
#include "model/schedule/families/families.h"

namespace sluice::model::families {
namespace {

// One slot between the forwards of neighbors on the way to the last rank and between the gradients on the way back,
// otherwise none.
orders::BlockSlots v_half_block(int ranks, int rank) {
  const int shift = ranks % 2 == 0 ? 3 : 0;  // keeps the four slots of a rank apart
  return {.f0 = 2 * rank,
          .f1 = 3 * ranks - rank - 2,
          .i1 = 3 * ranks + shift + 2 * rank - 1,
          .i0 = 6 * ranks + shift - rank - 2};
}

}  // namespace

// Stores floor((p + 2) / 2) microbatches until W, on some rank.
Family v_half() {
  return {
      .name = "v-half",
      .aliases = {"VHalf"},
      .summary =
          "half of 1f1b's memory and of its bubble, with two chunks per rank in a V, if F, I and W take equally long",
      .source = "Qi et al. 2024, arXiv:2405.15362",
      .fixed_chunks = 2,
      .split_backward = true,
      .leaner = {"v-min"},
      .make = [](const FamilyParams& params) { return orders::repeated_block(v_half(), params, v_half_block); }};
}

Family v_half_vocabulary_1() {
  return {.name = "v-half-vocab-1",
          .aliases = {"vhalf-vocab-1"},
          .summary = "v-half with embedding and output layer split over all ranks, two barriers",
          .source = "Yeung et al. 2024, arXiv:2411.05288",
          .fixed_chunks = 2,
          .split_backward = true,
          .vocabulary_barriers = 2,
          .make = [](const FamilyParams& params) {
            return orders::repeated_block(v_half_vocabulary_1(), params, v_half_block);
          }};
}

Family v_half_vocabulary_2() {
  return {.name = "v-half-vocab-2",
          .aliases = {"vhalf-vocab-2"},
          .summary = "the same with one barrier, and more work in S",
          .source = "Yeung et al. 2024, arXiv:2411.05288",
          .fixed_chunks = 2,
          .split_backward = true,
          .vocabulary_barriers = 1,
          .make = [](const FamilyParams& params) {
            return orders::repeated_block(v_half_vocabulary_2(), params, v_half_block);
          }};
}

}  // namespace sluice::model::families
