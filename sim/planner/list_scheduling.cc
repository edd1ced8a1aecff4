#include "sim/planner/list_scheduling.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <random>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
constexpr std::int32_t kNoOp = -1;

class ListScheduler {
 public:
  ListScheduler(const PlacedProblem& problem, const OpTable& table, const std::vector<std::int64_t>& tails,
                const ListRules& rules)
      : problem_(problem),
        table_(table),
        rules_(rules),
        stages_(to_size(table.stages)),
        ranks_(to_size(table.ranks)),
        arrived_(to_size(table.num_slots), kUnknown),
        lane_free_(to_size(table.num_lanes), 0),
        priority_(table.rows.size()) {
    arrived_[kAvailable] = 0;
    for (int stage = 0; stage < table.stages; ++stage) ranks_[table.rank_of[stage]].stages.push_back(stage);
    for (Rank& rank : ranks_) rank.in_flight.assign(to_size(table.microbatches), {});
    prepare_priority(tails);
    prepare_needs();
  }

  Orders run() {
    std::vector<Choice> next(ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) next[rank] = choose(rank);
    while (true) {
      std::size_t rank = 0;
      for (std::size_t r = 1; r < next.size(); ++r) {
        if (next[r].start < next[rank].start) rank = r;
      }
      if (next[rank].op == kNoOp) break;
      const int reader = place(rank, next[rank]);
      next[rank] = choose(rank);
      if (reader >= 0 && to_size(reader) != rank) next[reader] = choose(to_size(reader));
    }
    Orders orders;
    for (const Stage& stage : stages_) {
      if (stage.forwards < table_.units || stage.gradients < table_.units || !stage.weights.empty()) return orders;
    }
    for (Rank& rank : ranks_) orders.push_back(std::move(rank.order));
    return orders;
  }

 private:
  struct Stage {
    int forwards = 0;                  // units placed
    int gradients = 0;                 // gradients placed: ascending microbatches, descending slices
    std::deque<std::int32_t> weights;  // pending Ws, oldest first
  };
  // Memory that a rank holds for a microbatch, and memory that it will still take for it.
  struct InFlight {
    std::int64_t held = 0;
    std::int64_t to_come = 0;
    bool begun = false;
  };
  struct Rank {
    std::vector<int> stages;
    std::int64_t clock = 0;
    std::int64_t held = 0;
    std::vector<InFlight> in_flight;  // by microbatch
    int oldest = 0;                   // microbatch that may still hold or take memory
    int newest = -1;                  // microbatch that has begun
    std::int64_t drain = 0;           // transient memory for finishing one microbatch
    std::vector<std::int32_t> order;
  };
  struct Choice {
    std::int32_t op = kNoOp;
    std::int64_t start = kUnknown;
  };

  const OpTable::Row& row(std::int32_t op) const { return table_.rows[op]; }

  void prepare_priority(const std::vector<std::int64_t>& tails) {
    double mean = 0;
    for (const SliceOpTimes& times : problem_.times)
      mean += static_cast<double>((times.forward + times.backward).count());
    mean /= 2.0 * static_cast<double>(problem_.times.size());
    std::mt19937 random(rules_.seed);
    std::uniform_real_distribution<double> noise(0, 1);
    for (std::int32_t op = 0; op < std::ssize(priority_); ++op) {
      double priority = static_cast<double>(tails[op] + row(op).duration);
      priority += mean * (rules_.depth_bias * table_.stage(op) + (table_.gradient(op) ? rules_.gradient_bias : 0));
      if (rules_.noise > 0) priority += mean * rules_.noise * noise(random);
      priority_[op] = priority;
    }
  }

  bool fused(int stage, int microbatch) const {
    if (!problem_.may_split) return true;
    if (!problem_.may_fuse) return false;
    switch (rules_.fuse) {
      case ListRules::Fuse::never: return false;
      case ListRules::Fuse::first_stage: return stage == 0;
      case ListRules::Fuse::before_last: return stage == 0 || microbatch + table_.ranks < table_.microbatches;
      case ListRules::Fuse::always: return true;
    }
    return false;
  }
  OpKind gradient_kind(int stage, int microbatch) const { return fused(stage, microbatch) ? OpKind::B : OpKind::I; }

  void prepare_needs() {
    for (int stage = 0; stage < table_.stages; ++stage) {
      Rank& rank = ranks_[table_.rank_of[stage]];
      for (int slice = 0; slice < table_.slices; ++slice) {
        const std::int64_t held = row(table_.id(OpKind::F, stage, 0, slice)).keeps;
        for (InFlight& of : rank.in_flight) of.to_come += held;
        // When microbatches are finished one by one, each slice's W or B releases all its memory.
        const OpTable::Row& forward = row(table_.id(OpKind::F, stage, 0, slice));
        std::int64_t moment = forward.takes - forward.keeps;
        if (problem_.may_fuse) {
          moment = std::max(moment, row(table_.id(OpKind::B, stage, 0, slice)).takes);
        } else {
          moment = std::max(moment, row(table_.id(OpKind::I, stage, 0, slice)).takes);
        }
        std::int64_t open = 0;  // accumulators that are open beside it
        for (int i = 0; i < table_.slices; ++i)
          open += problem_.bytes[problem_.slice_index(stage, i)].keys_values_gradient;
        rank.drain = std::max(rank.drain, moment + (slice + 1 < table_.slices ? open : 0));
      }
    }
  }

  // Whether `op` can run without exceeding the limit now and without getting stuck later.
  bool allowed(std::size_t r, std::int32_t op) const {
    const Rank& rank = ranks_[r];
    const std::int64_t limit = problem_.limit[r];
    if (limit >= kNoLimit) return true;
    if (rank.held + row(op).takes > limit) return false;
    const std::int64_t more = row(op).keeps;
    if (more <= 0) return true;
    const int mb = table_.microbatch(op);
    if (mb == rank.oldest) return true;
    // Newest first: memory held for this microbatch and newer ones, and memory that this one will still take.
    std::int64_t held = 0;
    for (int j = std::max(mb, rank.newest); j >= rank.oldest; --j) {
      const InFlight& of = rank.in_flight[j];
      held += of.held + (j == mb ? more : 0);
      const std::int64_t to_come = of.to_come - (j == mb && table_.kind(op) == OpKind::F ? more : 0);
      if (held + to_come + rank.drain > limit) return false;
    }
    return true;
  }

  Choice choose(std::size_t r) const {
    const Rank& rank = ranks_[r];
    Choice best;
    double best_priority = 0;
    std::int64_t blocked_since = kUnknown;  // start of an op that the memory limit excludes
    double blocked_priority = 0;
    std::vector<std::pair<std::int32_t, std::int64_t>>& candidates = candidates_;
    candidates.clear();
    const auto consider = [&](std::int32_t op) {
      const std::int64_t there = arrived_[row(op).need];
      if (there == kUnknown) return;
      const std::int64_t start = std::max(rank.clock, there);
      if (allowed(r, op)) {
        candidates.emplace_back(op, start);
      } else if (start < blocked_since || (start == blocked_since && priority_[op] > blocked_priority)) {
        blocked_since = start;
        blocked_priority = priority_[op];
      }
    };
    for (const int stage : rank.stages) {
      const Stage& of = stages_[stage];
      const int units = table_.units;
      const bool full = rules_.in_flight > 0 && of.forwards - of.gradients >= rules_.in_flight * table_.slices;
      if (of.forwards < units && !full) {
        consider(table_.id(OpKind::F, stage, of.forwards / table_.slices, of.forwards % table_.slices));
      }
      if (of.gradients < units) {
        const int mb = of.gradients / table_.slices;
        const int slice = table_.slices - 1 - of.gradients % table_.slices;
        if (mb * table_.slices + slice < of.forwards &&
            (slice + 1 < table_.slices || (mb + 1) * table_.slices <= of.forwards)) {
          consider(table_.id(gradient_kind(stage, mb), stage, mb, slice));
        }
      }
    }
    std::int64_t first = kUnknown;
    for (const auto& [op, start] : candidates) first = std::min(first, start);
    for (const auto& [op, start] : candidates) {
      const auto patience = static_cast<std::int64_t>(rules_.hold_back * static_cast<double>(row(op).duration));
      if (start > first && start > first + patience) continue;
      if (best.op == kNoOp || priority_[op] > best_priority) {
        best = {op, start};
        best_priority = priority_[op];
      }
    }
    const std::int32_t weight = best_weight(r);
    if (weight == kNoOp) {
      if (best.op != kNoOp || blocked_since == kUnknown) return best;
      return fuse_pending(r, best);
    }
    // Makes room for an excluded op of higher priority whose input has arrived.
    const bool makes_room = blocked_since <= rank.clock &&
                            (best.op == kNoOp || best.start > rank.clock || blocked_priority > best_priority);
    if (makes_room) return {weight, rank.clock};
    if (best.op == kNoOp) return {weight, rank.clock};
    const auto over = static_cast<std::int64_t>(rules_.overfill * static_cast<double>(row(weight).duration));
    if (best.start > rank.clock && rank.clock + row(weight).duration <= best.start + over) return {weight, rank.clock};
    return best;
  }

  // Replaces an I that the memory limit excludes, when no other op is left, by its B, which takes less.
  Choice fuse_pending(std::size_t r, Choice none) const {
    const Rank& rank = ranks_[r];
    if (!problem_.may_fuse) return none;
    for (const int stage : rank.stages) {
      const Stage& of = stages_[stage];
      const int mb = of.gradients / table_.slices;
      const int slice = table_.slices - 1 - of.gradients % table_.slices;
      if (of.gradients >= table_.units || (mb + 1) * table_.slices > of.forwards) continue;
      const std::int32_t op = table_.id(OpKind::B, stage, mb, slice);
      const std::int64_t there = arrived_[row(op).need];
      if (there == kUnknown || rank.held + row(op).takes > problem_.limit[r]) continue;
      return {op, std::max(rank.clock, there)};
    }
    return none;
  }

  std::int32_t best_weight(std::size_t r) const {
    std::int32_t best = kNoOp;
    for (const int stage : ranks_[r].stages) {
      const auto& weights = stages_[stage].weights;
      if (weights.empty()) continue;
      if (best == kNoOp || table_.microbatch(weights.front()) < table_.microbatch(best)) best = weights.front();
    }
    return best;
  }

  // Returns the rank that waits for its result, or -1.
  int place(std::size_t r, const Choice& choice) {
    Rank& rank = ranks_[r];
    const std::int32_t op = choice.op;
    const std::int64_t end = choice.start + row(op).duration;
    rank.order.push_back(op);
    rank.clock = end;
    rank.held += row(op).keeps;
    InFlight& of = rank.in_flight[table_.microbatch(op)];
    of.held += row(op).keeps;
    of.begun = true;
    rank.newest = std::max(rank.newest, table_.microbatch(op));
    Stage& stage = stages_[table_.stage(op)];
    switch (table_.kind(op)) {
      case OpKind::F:
        ++stage.forwards;
        of.to_come -= row(op).keeps;
        break;
      case OpKind::I:
        stage.weights.push_back(table_.id(OpKind::W, table_.stage(op), table_.microbatch(op), table_.slice(op)));
        ++stage.gradients;
        break;
      case OpKind::B: ++stage.gradients; break;
      default: stage.weights.pop_front(); break;
    }
    while (rank.oldest + 1 < table_.microbatches && rank.in_flight[rank.oldest].begun &&
           rank.in_flight[rank.oldest].held <= 0 && rank.in_flight[rank.oldest].to_come <= 0) {
      ++rank.oldest;
    }
    if (row(op).makes == kNoReader) return -1;
    std::int64_t arrival = end;
    if (row(op).lane >= 0) {
      std::int64_t& free = lane_free_[row(op).lane];
      free = std::max(end, free) + row(op).send;
      arrival = free + row(op).hop;
      if (problem_.blocking) rank.clock = arrival;
    }
    arrived_[row(op).makes] = arrival;
    return row(op).reader;
  }

  const PlacedProblem& problem_;
  const OpTable& table_;
  const ListRules& rules_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
  std::vector<std::int64_t> arrived_;
  std::vector<std::int64_t> lane_free_;
  std::vector<double> priority_;
  mutable std::vector<std::pair<std::int32_t, std::int64_t>> candidates_;
};

}  // namespace

Orders list_schedule(const PlacedProblem& problem, const OpTable& table, const std::vector<std::int64_t>& tails,
                     const ListRules& rules) {
  return ListScheduler(problem, table, tails, rules).run();
}

}  // namespace sluice::sim
