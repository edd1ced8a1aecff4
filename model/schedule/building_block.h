#pragma once

#include "model/schedule/family.h"

// Schedules that repeat one building block (Qi et al. 2024, arXiv:2405.15362): two chunks per rank, placed in a V.
// Chunk 0 is on the way from rank 0 to the last rank, chunk 1 on the way back.
namespace sluice::model::orders {

// Returns the time slots, each as long as one op, in which a rank runs the four ops F and I of microbatch 0. Those of
// microbatch j are 6·j slots later; the two W take the slots that remain. Digits denote the chunk.
struct BlockSlots {
  int f0 = 0;
  int f1 = 0;
  int i1 = 0;
  int i0 = 0;
};

// Builds the schedule of the block `slots(ranks, rank)`: repeated for every microbatch, then compacted from the end,
// which shortens warm-up and cool-down. No rank stores more, from F to W, than the maximum over the ranks while the
// block repeats; in that phase no rank is idle if F, I and W take equally long. Preconditions: on a rank the four slots
// increase from f0 to i0 and differ modulo 6, and each op is later than the ops of other ranks that it depends on. Time
// is proportional to the number of ops and the square of the number of ranks.
//
// With vocabulary passes, each barrier delays the two slots of I by one microbatch. S of a microbatch, and with two
// barriers T, are in the slots between its last forward and its first I, in equal parts of this time; with one barrier
// T follows that I by two slots.
ScheduleParts repeated_block(const Family& family, const FamilyParams& params,
                             BlockSlots (*slots)(int ranks, int rank));

}  // namespace sluice::model::orders
