#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "model/schedule/family.h"

// The building blocks of the families' rules and of their placements. p ranks, m microbatches (of all batches), v
// chunks a rank, k slices, as in the papers.
namespace sluice::model::orders {

inline Op op(OpKind kind, int stage, int microbatch, int slice = 0) {
  return Op{.microbatch = microbatch,
            .stage = static_cast<std::int16_t>(stage),
            .slice = static_cast<std::int16_t>(slice),
            .kind = kind};
}

// Stages `first`, `first + step`, ...: those that one rank works on in turn.
struct StageList {
  int first = 0;
  int step = 0;
  int count = 1;
};

// Names the ops of one kind on one rank, one after the other: microbatches in groups (the last may be shorter), in a
// group stage by stage, in a stage microbatch by microbatch, in a microbatch slice by slice: ascending for F,
// descending for the gradients. An endless list: the caller counts.
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

// Calls `forward` `warm` times, then `forward` and `backward` in turn until forward was called `count` times, then
// `backward` until it was, too. (A rule of w forwards, then a backward first, is a warm of w - 1.)
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

// One rank's order where it works on two lists of microbatches ("digits": two chunks, or two directions). Each op is
// the next one of its kind and digit (an I or B is the next gradient); microbatches past the end are left out.
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

// Refuses what `family` cannot do. Throws InputError, naming the family.
[[noreturn]] void refuse(const Family& family, const std::string& reason);

// Placements: the rank of each stage.
std::vector<int> linear(int ranks);
std::vector<int> mirrored(int ranks);            // linear, from the last rank to the first
std::vector<int> looped(int ranks, int chunks);  // rank r has stages r, r + p, ...
std::vector<int> snake(int ranks, int chunks);   // back and forth: V for two chunks, hanayo's waves for more

// Parts with everything but placement and orders filled in from `params`; orders are empty lists with room.
ScheduleParts frame(const Family& family, const FamilyParams& params, int ops_of_a_rank);

// G of the interleaved families, in microbatches: `params.group`, or p if that is 0. Throws InputError for a group, or
// a shorter last one, of fewer than p microbatches.
int group_of_microbatches(const Family& family, const FamilyParams& params);

// The families of one list of forwards and one of backwards, in looped placement. Rank r warms up with
// lead·(p-1-r) + (v-1)·G + k-1 forwards, then a forward and a backward in turn (`run`). With split backward, the W of
// the j-th I follows the (j + lead·r)-th I, and at the end come the Ws still missing. `group` is G/k, in microbatches;
// it matters for v > 1 only.
ScheduleParts alternating(const Family& family, const FamilyParams& params, int lead, int group = 1);

// Forwards stage by stage, then their backwards in exactly the reverse order; looped placement.
ScheduleParts there_and_back(const Family& family, const FamilyParams& params);

// DualPipe's eight steps for one rank (DeepSeek's `DualPipe.step` and `DualPipeV.step`). `distance` is how many ranks
// lie between it and the end at which list 0 enters, `turn` how many there are up to where the two lists meet,
// `microbatches` those of a list.
void dualpipe_steps(int distance, int turn, const std::array<TwoLists::List, 2>& lists, std::vector<Op>& order);

}  // namespace sluice::model::orders
