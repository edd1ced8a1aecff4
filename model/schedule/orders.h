#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/schedule/family.h"

// Helpers for generating the orders and placements of families. As in the papers: p ranks, m microbatches (of all
// batches), v chunks per rank, k slices.
namespace sluice::model::orders {

inline Op op(OpKind kind, int stage, int microbatch, int slice = 0) {
  return Op{.microbatch = microbatch,
            .stage = static_cast<std::int16_t>(stage),
            .slice = static_cast<std::int16_t>(slice),
            .kind = kind};
}

// Stages `first`, `first + step`, ...: those of one rank, in model order.
struct StageList {
  int first = 0;
  int step = 0;
  int count = 1;
};

// Generates the ops of one kind on one rank in sequence: microbatches in groups (the last may be smaller); within a
// group stage by stage, within a stage microbatch by microbatch, within a microbatch slice by slice, ascending for F
// and descending for gradients. The sequence is endless: the caller counts.
class Walk {
 public:
  Walk(OpKind kind, StageList stages, int group, int microbatches, int slices = 1)
      : stages_(stages),
        group_(group),
        group_end_(std::min(group, microbatches)),
        microbatches_(microbatches),
        slices_(slices),
        slices_left_(slices),
        slice_step_(kind == OpKind::F ? 1 : -1),
        next_(op(kind, stages.first, 0, kind == OpKind::F ? 0 : slices - 1)) {}

  Op next() {
    const Op result = next_;
    next_.slice = static_cast<std::int16_t>(next_.slice + slice_step_);
    if (--slices_left_ == 0) next_microbatch();
    return result;
  }

 private:
  void next_microbatch() {
    slices_left_ = slices_;
    next_.slice = static_cast<std::int16_t>(slice_step_ == 1 ? 0 : slices_ - 1);
    if (++next_.microbatch < group_end_) return;
    next_.stage = static_cast<std::int16_t>(next_.stage + stages_.step);
    if (++stage_index_ == stages_.count) {
      stage_index_ = 0;
      next_.stage = static_cast<std::int16_t>(stages_.first);
      group_begin_ = group_end_;
      group_end_ = std::min(group_end_ + group_, microbatches_);
    }
    next_.microbatch = group_begin_;
  }

  StageList stages_;
  int group_;
  int group_begin_ = 0;
  int group_end_;
  int microbatches_;
  int slices_;
  int slices_left_;
  int slice_step_;
  int stage_index_ = 0;
  Op next_;
};

// Calls `forward` `warm` times, then `forward` and `backward` alternately until `forward` was called `count` times,
// then `backward` until it was called `count` times, too. (For w forwards and then a backward first, pass `warm` = w -
// 1.)
template <typename Forward, typename Backward>
void run(int warm, int count, Forward&& forward, Backward&& backward) {
  warm = std::min(warm, count);
  for (int i = 0; i < warm; ++i) forward();
  for (int i = warm; i < count; ++i) {
    forward();
    backward();
  }
  for (int i = 0; i < warm; ++i) backward();
}

// The order of a rank that works on two lists of microbatches ("digits": two chunks, or two directions). Each added op
// is the next one of its kind and digit (an I or B is the next gradient). Microbatches after the last one are skipped.
class TwoLists {
 public:
  struct List {
    int stage = 0;
    int first_microbatch = 0;
    int microbatches = 0;
  };
  TwoLists(std::array<List, 2> lists, std::vector<Op>& order) : lists_(lists), order_(order) {}

  void add(OpKind kind, int digit) {
    const List& list = lists_[digit];
    const OpKind counted_as = kind == OpKind::B ? OpKind::I : kind;
    const int i = next_[static_cast<std::size_t>(counted_as)][digit]++;
    if (i < list.microbatches) order_.push_back(op(kind, list.stage, list.first_microbatch + i));
  }

  // A joint block of an F and a B.
  void add_joint(int forward_digit, int backward_digit) {
    add(OpKind::F, forward_digit);
    order_.back().joined = true;
    add(OpKind::B, backward_digit);
  }

 private:
  std::array<List, 2> lists_;
  std::vector<Op>& order_;
  std::array<std::array<int, 2>, 4> next_ = {};  // by kind and digit
};

// Throws InputError with `reason`, naming the family.
[[noreturn]] void refuse(const Family& family, const std::string& reason);

// Placements: the rank of each stage.
std::vector<int> linear(int ranks);
std::vector<int> mirrored(int ranks);            // linear, from the last rank to the first
std::vector<int> looped(int ranks, int chunks);  // rank r has stages r, r + p, ...
std::vector<int> snake(int ranks, int chunks);   // back and forth: V for two chunks, hanayo's waves for more

// Returns parts with everything but placement and orders filled in from `params`; orders are empty lists with reserved
// memory.
ScheduleParts frame(const Family& family, const FamilyParams& params, int ops_of_a_rank);

// Returns the group size of the interleaved families in microbatches: `params.group`, or p if that is 0. Throws
// InputError if a group, or the smaller last one, has fewer than p microbatches, except one of all microbatches, which
// PyTorch has.
int group_of_microbatches(const Family& family, const FamilyParams& params);
// Returns the units per group of the interleaved schedule of slices where params.group is 0: those of the smallest
// number of microbatches that divides all and has at least as many slices as there are ranks. Precondition: there is
// one.
int default_group_of_slices(const FamilyParams& params);

enum class Blocks : std::uint8_t { none, joint };

// The families with one list of forwards and one of backwards, in looped placement. Rank r warms up with lead·(p-1-r) +
// (v-1)·G + k-1 forwards, then alternates forwards and backwards (`run`). With split backward, the W of the j-th I
// follows the (j + lead·r)-th I, and the remaining W are at the end. `group` is G/k, in microbatches; it matters only
// for v > 1. With joint blocks there is one more forward of warm-up, and each forward after it forms a block with the
// backward that follows.
ScheduleParts alternating(const Family& family, const FamilyParams& params, int lead, int group = 1,
                          Blocks blocks = Blocks::none);

// Forwards stage by stage, then the backwards in reverse order; looped placement.
ScheduleParts forwards_then_backwards(const Family& family, const FamilyParams& params);

// The eight steps of DualPipe for one rank (DeepSeek's `DualPipe.step` and `DualPipeV.step`). `distance` is the number
// of ranks between this one and the end at which list 0 enters, `turn` the number of ranks up to where the two lists
// meet, `microbatches` the number per list.
void dualpipe_steps(int distance, int turn, const std::array<TwoLists::List, 2>& lists, std::vector<Op>& order);

}  // namespace sluice::model::orders
