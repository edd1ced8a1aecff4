#pragma once

#include "model/schedule/family.h"

// Schedules that repeat one building block (Qi et al. 2024, arXiv:2405.15362): two chunks a rank in a V, chunk 0 on the
// way down, chunk 1 on the way up.
namespace sluice::model::orders {

// The slots, one op long each, in which a rank runs its four ops of microbatch 0 that other ranks wait for; those of
// microbatch j stand 6·j slots later, and the two W in the slots still free. Digits: the chunk.
struct BlockSlots {
  int f0 = 0;
  int f1 = 0;
  int i1 = 0;
  int i0 = 0;
};

// The block of `slots(ranks, rank)`, repeated for every microbatch and then pushed together from the end, so that
// warm-up and cool-down shrink. A rank never holds more, from F to W, than the most that any rank holds while the block
// repeats; while it does, no rank idles if F, I and W take alike. Precondition: on a rank the four slots rise from f0
// to i0 and differ modulo 6, and each op stands after those of other ranks that it needs. Takes time in
// proportion to the ops and the square of the ranks.
ScheduleParts repeated_block(const Family& family, const FamilyParams& params,
                             BlockSlots (*slots)(int ranks, int rank));

}  // namespace sluice::model::orders
