#include "model/schedule/building_block.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "model/schedule/orders.h"

// How the blocks are pushed together. Time runs backwards here, from the last slot to the first, in slots of one op: an
// op may run once all that need it have run, a W takes memory and its F gives it back. The repeated block gives every
// op a due slot. In each slot each rank runs, of the ops that may, the one due first, be it early; but a W before its
// due slot only where memory is left for it until then, with all other ops taken as late as they are due.
//
// So no op is ever late, by induction over the slots: what it waits for was not, and a rank has one op due in a slot.
// Hence the rule cannot get stuck, is no longer than the repeated block, and holds no more than it. A rank that has all
// it needs stays as early as it is, so the period of the block survives in the middle.
//
// (From the front, the same rule with F for W would leave v-half's ranks 9, 23 and 37 idle slots for p = 4, 8 and 12,
// and with W last of all 7, 19 and 31, where from the end it leaves 5, 17 and 29.)
namespace sluice::orders {
namespace {

// The ops of one microbatch on one rank.
enum Step : std::size_t { kF0, kF1, kI1, kI0, kW1, kW0 };
constexpr int kSteps = 6;  // hence also the slots from one microbatch to the next
constexpr std::array<Step, kSteps> kAll = {kF0, kF1, kI1, kI0, kW1, kW0};
constexpr OpKind kKind[] = {OpKind::F, OpKind::F, OpKind::I, OpKind::I, OpKind::W, OpKind::W};
constexpr int kChunk[] = {0, 1, 1, 0, 1, 0};
using PerStep = std::array<int, kSteps>;

// Of the microbatch that is the first one backwards, the slots in time's own direction.
PerStep with_free_slots(const BlockSlots& slots) {
  PerStep all = {slots.f0, slots.f1, slots.i1, slots.i0};
  std::array<bool, kSteps> taken = {};
  for (const int slot : {slots.f0, slots.f1, slots.i1, slots.i0}) taken[static_cast<std::size_t>(slot % kSteps)] = true;
  const auto first_free = [&](int after) {
    int slot = after + 1;
    while (taken[static_cast<std::size_t>(slot % kSteps)]) ++slot;
    taken[static_cast<std::size_t>(slot % kSteps)] = true;
    return slot;
  };
  all[kW1] = first_free(slots.i1);
  all[kW0] = first_free(slots.i0);
  return all;
}

// How many multiples of 6 lie in [0, distance].
int repeats(int distance) { return distance < 0 ? 0 : distance / kSteps + 1; }

// One rank, backwards.
class Rank {
 public:
  explicit Rank(const PerStep& first_due) : due_(first_due) {}

  int done(Step step) const { return done_[step]; }
  int due(Step step) const { return due_[step] + kSteps * done_[step]; }  // of the next one
  void run(Step step) { ++done_[step]; }

  // The most that it holds while the block repeats.
  int peak() const {
    const int late = *std::max_element(due_.begin(), due_.end());
    int most = 0;
    for (int slot = late; slot < late + kSteps; ++slot) most = std::max(most, held(slot));
    return most;
  }

  // Whether a W, run in slot `now` and not when it is due, leaves the rank within `memory`. What is held rises only
  // with a W, so it is enough to look at `now` and at the slots in which a W is due; from one of these to the next the
  // rise is the same, and it shrinks only where the ops of an F that have run already end: so of each W's slots, look
  // at the first, the last, and those in which that happens.
  bool has_room(Step w, int now, int memory) const {
    const int end = due(w);
    if (held(now) >= memory) return false;
    for (const Step other : {kW1, kW0}) {
      for (const int from : {now, end - kSteps, due(kF0) - kSteps + 1, due(kF1) - kSteps + 1}) {
        const int low = std::max(from, now);
        const int slot = low + ((due_[other] - low) % kSteps + kSteps) % kSteps;
        if (slot < end && held(slot) >= memory) return false;
      }
    }
    return true;
  }

 private:
  // In `slot`, if all that has not run yet runs when it is due.
  int held(int slot) const {
    int sum = 0;
    for (const Step w : {kW1, kW0}) sum += std::max(done_[w], repeats(slot - due_[w]));
    for (const Step f : {kF0, kF1}) sum -= std::max(done_[f], repeats(slot - 1 - due_[f]));
    return sum;
  }

  PerStep due_;  // of the first microbatch
  PerStep done_ = {};
};

std::vector<Rank> ranks_backwards(int ranks, BlockSlots (*slots)(int ranks, int rank)) {
  std::vector<PerStep> forwards;
  int last = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    forwards.push_back(with_free_slots(slots(ranks, rank)));
    last = std::max(last, *std::max_element(forwards.back().begin(), forwards.back().end()));
  }
  std::vector<Rank> all;
  for (PerStep& due : forwards) {
    for (int& slot : due) slot = last - slot;
    all.emplace_back(due);
  }
  return all;
}

// Whether all that needs the next `step` of `rank` has run. (With two chunks in a V, rank r has stages r, 2p - 1 - r.)
bool is_needed_no_more(const std::vector<Rank>& ranks, std::size_t rank, Step step) {
  const int mine = ranks[rank].done(step);
  const bool first = rank == 0;
  const bool last = rank + 1 == ranks.size();
  const auto ran = [&](std::size_t on, Step other) { return ranks[on].done(other) > mine; };
  switch (step) {
    case kF0: return ran(rank, kI0) && (last ? ran(rank, kF1) : ran(rank + 1, kF0));
    case kF1: return ran(rank, kI1) && (first || ran(rank - 1, kF1));
    case kI1: return ran(rank, kW1) && (last ? ran(rank, kI0) : ran(rank + 1, kI1));
    case kI0: return ran(rank, kW0) && (first || ran(rank - 1, kI0));
    case kW1:
    case kW0: return true;
  }
  return true;
}

}  // namespace

ScheduleParts repeated_block(const Family& family, const FamilyParams& params,
                             BlockSlots (*slots)(int ranks, int rank)) {
  const int p = params.ranks;
  const int m = params.microbatches;
  ScheduleParts parts = frame(family, params, kSteps * m);
  parts.routes = {snake(p, 2)};
  std::vector<Rank> ranks = ranks_backwards(p, slots);
  int memory = 0;
  for (const Rank& rank : ranks) memory = std::max(memory, rank.peak());

  // The next op of each rank, or none: all choose before any runs, since a slot's ops do not see each other.
  std::vector<int> chosen(ranks.size());
  constexpr int kNone = -1;
  std::int64_t left = std::int64_t{kSteps} * p * m;
  for (int now = 0; left > 0; ++now) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const Rank& rank = ranks[r];
      chosen[r] = kNone;
      int earliest = 0;
      for (const Step step : kAll) {
        const int due = rank.due(step);
        if (rank.done(step) == m || (chosen[r] != kNone && due >= earliest)) continue;
        if (!is_needed_no_more(ranks, r, step)) continue;
        if ((step == kW1 || step == kW0) && due > now && !rank.has_room(step, now, memory)) continue;
        chosen[r] = static_cast<int>(step);
        earliest = due;
      }
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (chosen[r] == kNone) continue;
      const auto step = static_cast<Step>(chosen[r]);
      const int stage = kChunk[step] == 0 ? static_cast<int>(r) : 2 * p - 1 - static_cast<int>(r);
      parts.orders[r].push_back(op(kKind[step], stage, m - 1 - ranks[r].done(step)));
      ranks[r].run(step);
      --left;
    }
  }
  for (auto& order : parts.orders) std::reverse(order.begin(), order.end());
  return parts;
}

}  // namespace sluice::orders
