#include "model/schedule/building_block.h"
#include "model/schedule/families/families.h"

namespace sluice::model::families {
namespace {

// A microbatch passes from rank to rank without a pause.
orders::BlockSlots v_min_block(int ranks, int rank) {
  const int shift = ranks % 3 == 0 ? 2 : 0;  // keeps the four slots of a rank apart
  return {.f0 = rank, .f1 = 2 * ranks - rank - 1, .i1 = 2 * ranks + shift + rank, .i0 = 4 * ranks + shift - rank - 1};
}

}  // namespace

// Stores floor((p + 4) / 3) microbatches until W, on some rank. Where F, I and W differ, some idle time occurs with
// every microbatch, since its ops are as close together as they can be.
Family v_min() {
  return {.name = "v-min",
          .aliases = {"VMin"},
          .summary =
              "a third of 1f1b's memory, two thirds of its bubble, two chunks per rank in a V, if F, I and W take "
              "equally long",
          .source = "Qi et al. 2024, arXiv:2405.15362",
          .fixed_chunks = 2,
          .split_backward = true,
          .make = [](const FamilyParams& params) { return orders::repeated_block(v_min(), params, v_min_block); }};
}

}  // namespace sluice::model::families
