#include "model/schedule/building_block.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "model/schedule/orders.h"

// How the blocks are compacted. Time runs backwards here, from the last slot to the first, in slots of one op: an op
// may run once all ops that depend on it have run; a W allocates memory and its F frees it. The repeated block gives
// every op a due slot. In each slot each rank runs, of the ops that may run, the one due first, even if it is early;
// but a W before its due slot only while memory is left.
//
// So no op is ever late, by induction over the slots: what it waits for was not late, and a rank has one op due per
// slot. Hence the rule cannot get stuck and its order takes no longer than the repeated block. Nor does it need more
// memory: W wait for nothing, so they run in the order in which they are due. When a W runs that is due, the rank
// stores the W due until then without the F that have run, which are at least those due before: what it stores in the
// repeated block.
//
// (From the front, the same rule with F for W would leave the ranks of v-half 9, 23 and 37 idle slots for p = 4, 8 and
// 12, and with W last of all 7, 19 and 31; from the end it leaves 5, 17 and 29.)
namespace sluice::model::orders {
namespace {

// The ops of one microbatch on one rank.
enum Step : std::size_t { kF0, kF1, kI1, kI0, kW1, kW0 };
constexpr int kSteps = 6;  // also the number of slots from one microbatch to the next
constexpr std::array<Step, kSteps> kAll = {kF0, kF1, kI1, kI0, kW1, kW0};
constexpr OpKind kKind[] = {OpKind::F, OpKind::F, OpKind::I, OpKind::I, OpKind::W, OpKind::W};
constexpr int kChunk[] = {0, 1, 1, 0, 1, 0};
using PerStep = std::array<int, kSteps>;

// Slots of all six ops, forwards in time: each W takes the first free one after its I.
PerStep with_free_slots(const BlockSlots& slots) {
  PerStep all = {slots.f0, slots.f1, slots.i1, slots.i0};
  std::array<bool, kSteps> taken = {};
  for (const int slot : {slots.f0, slots.f1, slots.i1, slots.i0}) taken[slot % kSteps] = true;
  const auto first_free = [&](int after) {
    int slot = after + 1;
    while (taken[slot % kSteps]) ++slot;
    taken[slot % kSteps] = true;
    return slot;
  };
  all[kW1] = first_free(slots.i1);
  all[kW0] = first_free(slots.i0);
  return all;
}

// One rank, backwards.
class Rank {
 public:
  explicit Rank(const PerStep& first_due) : due_(first_due) {}

  int done(Step step) const { return done_[step]; }
  int due(Step step) const { return due_[step] + kSteps * done_[step]; }  // of the next one
  int held() const { return done_[kW1] + done_[kW0] - done_[kF1] - done_[kF0]; }
  void run(Step step) { ++done_[step]; }

  // The maximum that it stores while the block repeats.
  int peak() const {
    const int all_began = *std::max_element(due_.begin(), due_.end());
    const auto ran = [&](Step step, int last) { return (last - due_[step]) / kSteps + 1; };
    int most = 0;
    for (int slot = all_began + 1; slot <= all_began + kSteps; ++slot) {
      const int given_back = ran(kF1, slot - 1) + ran(kF0, slot - 1);  // an F still occupies its memory while it runs
      most = std::max(most, ran(kW1, slot) + ran(kW0, slot) - given_back);
    }
    return most;
  }

 private:
  PerStep due_;  // of the first microbatch
  PerStep done_ = {};
};

std::vector<Rank> ranks_backwards(int ranks, int barriers, BlockSlots (*slots)(int ranks, int rank)) {
  std::vector<PerStep> forwards;
  int last = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    BlockSlots of_rank = slots(ranks, rank);
    of_rank.i1 += kSteps * barriers;
    of_rank.i0 += kSteps * barriers;
    forwards.push_back(with_free_slots(of_rank));
    last = std::max(last, *std::max_element(forwards.back().begin(), forwards.back().end()));
  }
  std::vector<Rank> all;
  for (PerStep& due : forwards) {
    for (int& slot : due) slot = last - slot;
    all.emplace_back(due);
  }
  return all;
}

// Whether everything that depends on the next `step` of `rank` has run. (With two chunks in a V, rank r has stages r,
// 2p - 1 - r.)
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

// Inserts S and T into orders whose ops have these slots, in the order of time. The chain of a microbatch through the
// slots increases, so the orders cannot deadlock: an inserted op follows what is in its slot.
void insert_passes(ScheduleParts& parts, const std::vector<std::vector<int>>& slots) {
  struct Passes {
    int s = 0;
    int t = 0;
  };
  std::vector<Passes> passes(static_cast<std::size_t>(parts.num_microbatches));
  std::vector<int> last_forward(passes.size());
  const int last_stage = parts.num_stages - 1;
  const auto root = static_cast<std::size_t>(parts.routes[0].back());
  for (std::size_t i = 0; i < slots[root].size(); ++i) {
    const Op& op = parts.orders[root][i];
    const auto mb = static_cast<std::size_t>(op.microbatch);
    if (op.stage != last_stage || op.kind == OpKind::W) continue;
    if (op.kind == OpKind::F) {
      last_forward[mb] = slots[root][i];
      continue;
    }
    const int between = slots[root][i] - last_forward[mb] - 1;
    const bool two = parts.vocabulary_barriers == 2;
    passes[mb] = {.s = last_forward[mb] + between / (two ? 4 : 2),
                  .t = two ? last_forward[mb] + 3 * between / 4 : slots[root][i] + 2};
  }
  for (std::size_t rank = 0; rank < slots.size(); ++rank) {
    std::vector<Op> order;
    order.reserve(parts.orders[rank].size() + 2 * passes.size());
    std::size_t s = 0;
    std::size_t t = 0;
    const auto insert_before = [&](int slot) {
      while (true) {
        const bool s_next = s < passes.size() && passes[s].s < slot && (t == s || passes[s].s <= passes[t].t);
        if (!s_next && (t == s || passes[t].t >= slot)) return;
        order.push_back(
            op(s_next ? OpKind::S : OpKind::T, static_cast<int>(rank), static_cast<int>(s_next ? s++ : t++)));
      }
    };
    for (std::size_t i = 0; i < slots[rank].size(); ++i) {
      insert_before(slots[rank][i]);
      order.push_back(parts.orders[rank][i]);
    }
    insert_before(std::numeric_limits<int>::max());
    parts.orders[rank] = std::move(order);
  }
}

}  // namespace

ScheduleParts repeated_block(const Family& family, const FamilyParams& params,
                             BlockSlots (*slots)(int ranks, int rank)) {
  const int p = params.ranks;
  const int m = params.microbatches;
  ScheduleParts parts = frame(family, params, kSteps * m);
  parts.routes = {snake(p, 2)};
  std::vector<Rank> ranks = ranks_backwards(p, family.vocabulary_barriers, slots);
  int memory = 0;
  for (const Rank& rank : ranks) memory = std::max(memory, rank.peak());

  // The next op of each rank, or none: all choose before any runs, since a slot's ops do not see each other.
  std::vector<int> chosen(ranks.size());
  std::vector<std::vector<int>> slot_of(family.vocabulary_barriers > 0 ? ranks.size() : 0);
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
        if ((step == kW1 || step == kW0) && due > now && rank.held() >= memory) continue;
        chosen[r] = static_cast<int>(step);
        earliest = due;
      }
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (chosen[r] == kNone) continue;
      const auto step = static_cast<Step>(chosen[r]);
      const int stage = kChunk[step] == 0 ? static_cast<int>(r) : 2 * p - 1 - static_cast<int>(r);
      parts.orders[r].push_back(op(kKind[step], stage, m - 1 - ranks[r].done(step)));
      if (!slot_of.empty()) slot_of[r].push_back(-now);
      ranks[r].run(step);
      --left;
    }
  }
  for (auto& order : parts.orders) std::reverse(order.begin(), order.end());
  for (auto& times : slot_of) std::reverse(times.begin(), times.end());
  if (!slot_of.empty()) insert_passes(parts, slot_of);
  return parts;
}

}  // namespace sluice::model::orders
