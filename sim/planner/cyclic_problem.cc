#include "sim/planner/cyclic_problem.h"

#include <algorithm>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

bool whole_backward_saves(const PlacedProblem& problem) {
  if (!problem.may_split || !problem.may_fuse) return false;
  const bool time = std::any_of(problem.times.begin(), problem.times.end(), [](const SliceOpTimes& of) {
    return of.backward < of.input_gradient + of.weight_gradient;
  });
  const bool memory = std::any_of(problem.bytes.begin(), problem.bytes.end(),
                                  [](const SliceBytes& of) { return of.gradients_to_weight_gradient > 0; });
  return time || memory;
}

// Whether the numbers of periods between ops are small, so that they can be enumerated, and no time overflows.
bool is_small(const PlacedProblem& problem) {
  constexpr std::int64_t kMostHeld = 256;
  constexpr std::int64_t kLongest = std::int64_t{1} << 48;
  constexpr int kMostStages = 128;
  std::int64_t sum = 0;
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    const SliceOpTimes& times = problem.times[stage];
    const SliceBytes& bytes = problem.bytes[stage];
    const std::int64_t held =
        bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient + bytes.keys_values;
    if (held <= 0 || problem.limit[problem.rank_of[stage]] / held > kMostHeld) return false;
    for (const Duration time :
         {times.forward, times.input_gradient, times.weight_gradient, times.backward, times.send_forward,
          times.send_backward, problem.forward_hop[stage], problem.backward_hop[stage]}) {
      sum = std::min(kLongest, sum + std::min(kLongest, time.count()));
    }
  }
  return sum < kLongest && problem.num_stages() <= kMostStages;
}

bool is_modeled(const PlacedProblem& problem) {
  return problem.num_slices() == 1 && is_small(problem) && !problem.blocking && problem.joint_share >= 1 &&
         !whole_backward_saves(problem);
}

}  // namespace

Zone::Zone(std::size_t points) : points_(points), least_(points * points, kNone) {
  for (std::size_t a = 0; a < points; ++a) least_[a * points + a] = 0;
}

void Zone::raise(std::size_t a, std::size_t b, std::int64_t least) {
  std::int64_t& bound = least_[a * points_ + b];
  bound = std::max(bound, least);
}

bool Zone::close() {
  for (std::size_t via = 0; via < points_; ++via) {
    for (std::size_t a = 0; a < points_; ++a) {
      const std::int64_t first = at(a, via);
      if (first == kNone) continue;
      for (std::size_t b = 0; b < points_; ++b) {
        if (at(via, b) != kNone) raise(a, b, first + at(via, b));
      }
      if (at(a, a) > 0) return false;
    }
  }
  return true;
}

bool Zone::tighten(std::size_t a, std::size_t b, std::int64_t least) {
  if (at(a, b) >= least) return true;
  if (at(b, a) != kNone && least + at(b, a) > 0) return false;
  for (std::size_t x = 0; x < points_; ++x) {
    if (at(x, a) == kNone) continue;
    const std::int64_t first = at(x, a) + least;
    for (std::size_t y = 0; y < points_; ++y) {
      if (at(b, y) != kNone) raise(x, y, first + at(b, y));
    }
  }
  return true;
}

Zone Zone::projected(std::span<const std::size_t> points) const {
  Zone out(points.size());
  for (std::size_t a = 0; a < points.size(); ++a) {
    for (std::size_t b = 0; b < points.size(); ++b) out.raise(a, b, at(points[a], points[b]));
  }
  return out;
}

bool Zone::includes(const Zone& other) const {
  return std::equal(least_.begin(), least_.end(), other.least_.begin(),
                    [](auto mine, auto its) { return mine <= its; });
}

std::optional<CyclicProblem> cyclic_problem(const PlacedProblem& problem, int microbatches) {
  if (!is_modeled(problem)) return std::nullopt;
  PlacedProblem repeated = problem;
  repeated.num_microbatches = microbatches;
  const OpTable table(repeated);
  CyclicProblem out;
  out.microbatches = microbatches;
  out.num_ranks = problem.num_ranks;
  out.limit = problem.limit;
  out.of_rank.resize(to_size(problem.num_ranks));
  const std::vector<OpKind> kinds =
      problem.may_split ? std::vector{OpKind::F, OpKind::I, OpKind::W} : std::vector{OpKind::F, OpKind::B};
  std::vector<std::size_t> maker(to_size(table.num_slots), 0);
  std::vector<std::int32_t> ids;
  for (int stage = 0; stage < table.stages; ++stage) {
    for (int mb = 0; mb < microbatches; ++mb) {
      auto& cell = out.of_stage.emplace_back();
      for (const OpKind kind : kinds) {
        const std::int32_t op = table.id(kind, stage, mb, 0);
        const OpTable::Row& row = table.rows[op];
        const std::size_t index = out.ops.size();
        if (!cell.empty()) out.delays.push_back({cell.back(), index, out.ops.back().duration});
        maker[row.makes] = index;
        cell.push_back(index);
        out.of_rank[table.rank_of[stage]].push_back(index);
        out.ops.push_back({kind, stage, mb, table.rank_of[stage], row.duration, row.takes, row.keeps});
        ids.push_back(op);
      }
    }
  }
  for (std::size_t to = 0; to < out.ops.size(); ++to) {
    const std::int32_t need = table.rows[ids[to]].need;
    if (need == kAvailable) continue;
    const OpTable::Row& from = table.rows[ids[maker[need]]];
    out.delays.push_back({maker[need], to, from.duration + from.send + from.hop});
  }
  // Microbatches are identical, so those of a period may be assumed to run in their order.
  for (std::size_t cell = 0; cell < out.of_stage.size(); ++cell) {
    const bool last = (cell + 1) % to_size(microbatches) == 0;
    const std::size_t next = last ? cell + 1 - to_size(microbatches) : cell + 1;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const std::size_t from = out.of_stage[cell][i];
      if (next != cell) out.delays.push_back({from, out.of_stage[next][i], out.ops[from].duration, last ? -1 : 0});
    }
  }
  if (std::any_of(out.ops.begin(), out.ops.end(), [](const auto& of) { return of.duration == 0; })) return std::nullopt;
  return out;
}

CyclicProblem::Integral CyclicProblem::room(int rank, const Zone& zone, std::int64_t period) const {
  Integral room = Integral{limit[rank]} * period;
  for (const std::size_t x : of_rank[rank]) room -= Integral{ops[x].takes - ops[x].keeps} * ops[x].duration;
  for (const auto& cell : of_stage) {
    std::int64_t held = 0;
    if (ops[cell.front()].rank != rank) continue;
    for (std::size_t i = 0; i + 1 < cell.size(); ++i) {
      held += ops[cell[i]].keeps;
      room -= Integral{held} * zone.at(cell[i], cell[i + 1]);
    }
  }
  return room;
}

void CyclicProblem::bound_lifetimes(std::int64_t period, Zone& zone) const {
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Integral left = std::max<Integral>(0, room(rank, zone, period));
    for (const auto& cell : of_stage) {
      std::int64_t held = 0;
      if (ops[cell.front()].rank != rank) continue;
      std::int64_t least_held = ops[cell.front()].keeps;
      std::int64_t sum = 0;
      for (std::size_t i = 0; i + 1 < cell.size(); ++i) {
        held += ops[cell[i]].keeps;
        least_held = std::min(least_held, held);
        const std::int64_t least = zone.at(cell[i], cell[i + 1]);
        sum += least;
        // What holds no memory may be assumed to run within a period: it can run in each.
        const std::int64_t more = held > 0 ? static_cast<std::int64_t>(left / held) : period;
        zone.raise(cell[i + 1], cell[i], -least - more);
      }
      if (least_held > 0) zone.raise(cell.back(), cell.front(), -sum - static_cast<std::int64_t>(left / least_held));
    }
  }
}

std::optional<Zone> CyclicProblem::bounds(std::int64_t period) const {
  Zone zone(ops.size());
  for (const Delay& delay : delays) zone.raise(delay.from, delay.to, delay.least + delay.periods * period);
  bool consistent = zone.close();
  for (int rank = 0; consistent && rank < num_ranks; ++rank) consistent = room(rank, zone, period) >= 0;
  for (int round = 0; consistent && round < 2; ++round) {
    bound_lifetimes(period, zone);
    consistent = zone.close();
  }
  if (!consistent) return std::nullopt;
  return zone;
}

std::int64_t CyclicProblem::simple_bound() const {
  std::int64_t least = 0;
  Zone zone(ops.size());
  for (const Delay& delay : delays) {
    if (delay.periods == 0) zone.raise(delay.from, delay.to, delay.least);
  }
  zone.close();
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::int64_t work = 0;
    for (const std::size_t x : of_rank[rank]) work += ops[x].duration;
    const Integral per_limit = (-room(rank, zone, 0) + limit[rank] - 1) / std::max<std::int64_t>(1, limit[rank]);
    least = std::max({least, work, static_cast<std::int64_t>(per_limit)});
  }
  return least;
}

}  // namespace sluice::sim
