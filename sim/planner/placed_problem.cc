#include "sim/planner/placed_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "model/graph/lowering.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"

namespace sluice::sim {
namespace {

// Bytes of the accumulator for the gradients of a stage's keys and values.
std::int64_t accumulator(const PlacedProblem& problem, int stage) {
  std::int64_t sum = 0;
  for (int i = 0; i < problem.num_slices(); ++i)
    sum += problem.bytes[problem.slice_index(stage, i)].keys_values_gradient;
  return sum;
}

struct MemoryChange {
  std::int64_t takes = 0;
  std::int64_t keeps = 0;
};

MemoryChange change_of(const PlacedProblem& problem, OpKind kind, int stage, int slice) {
  const SliceBytes& bytes = problem.bytes[problem.slice_index(stage, slice)];
  const std::int64_t opens = slice + 1 == problem.num_slices() ? accumulator(problem, stage) : 0;
  const std::int64_t closes = slice == 0 ? accumulator(problem, stage) : 0;
  const std::int64_t held =
      bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient + bytes.keys_values;
  switch (kind) {
    case OpKind::F: return {held + bytes.forward_workspace, held};
    case OpKind::B: return {bytes.backward_workspace + opens, opens - closes - held};
    case OpKind::I:
      return {bytes.gradients_to_weight_gradient + bytes.backward_workspace + opens,
              bytes.gradients_to_weight_gradient + opens - closes - bytes.activations_to_input_gradient -
                  bytes.keys_values};
    case OpKind::W: return {0, -bytes.activations_to_weight_gradient - bytes.gradients_to_weight_gradient};
    default: return {};
  }
}

void check_sizes(const PlacedProblem& problem) {
  const auto refuse = [](const std::string& reason) { throw InputError("automatic schedule: " + reason); };
  const std::size_t ranks = to_size(problem.num_ranks);
  const std::size_t stages = problem.rank_of.size();
  const std::size_t slices = stages * to_size(problem.num_slices());
  if (problem.num_ranks < 1 || problem.num_ranks > kMaxRanks || stages < 1 || problem.num_microbatches < 1) {
    refuse("expected at least one rank, stage and microbatch");
  }
  if (problem.times.size() != slices || problem.bytes.size() != slices || problem.limit.size() != ranks ||
      problem.forward_hop.size() != stages || problem.backward_hop.size() != stages || problem.after.size() != ranks) {
    refuse("times, bytes, limits and latencies have inconsistent sizes");
  }
  if (!problem.may_split && !problem.may_fuse) refuse("expected times of B, or of I and W, got neither");
  constexpr std::int64_t kMostOps = 3'000'000;
  if (static_cast<std::int64_t>(slices) * problem.num_microbatches * 3 > kMostOps) {
    refuse(fmt::format("expected at most {} ops", kMostOps));
  }
  for (const int rank : problem.rank_of) {
    if (rank < 0 || rank >= problem.num_ranks)
      refuse(fmt::format("expected stages on ranks 0 to {}, got {}", problem.num_ranks - 1, rank));
  }
}

void check_times(const PlacedProblem& problem) {
  double all = 0;
  const auto add = [&](Duration time) {
    if (time < Duration::zero())
      throw InputError(fmt::format("automatic schedule: time: expected 0 ns or more, got {}", time.count()));
    all += static_cast<double>(time.count());
  };
  double held = 0;
  for (const SliceOpTimes& of : problem.times) {
    for (const Duration time :
         {of.forward, of.input_gradient, of.weight_gradient, of.backward, of.send_forward, of.send_backward})
      add(time);
  }
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    add(problem.forward_hop[stage]);
    add(problem.backward_hop[stage]);
  }
  for (const SliceBytes& of : problem.bytes) {
    for (const std::int64_t part :
         {of.activations_to_input_gradient, of.activations_to_weight_gradient, of.gradients_to_weight_gradient,
          of.keys_values, of.keys_values_gradient, of.forward_workspace, of.backward_workspace}) {
      if (part < 0) throw InputError(fmt::format("automatic schedule: bytes: expected 0 or more, got {}", part));
      held += static_cast<double>(part);
    }
  }
  if (all * problem.num_microbatches * problem.num_slices() > 4e18)
    throw InputError("automatic schedule: times: their sum is more than 126 years");
  if (held * problem.num_microbatches > 1e18) throw InputError("automatic schedule: bytes: their sum exceeds 64 bits");
}

}  // namespace

std::vector<std::int64_t> least_limits(const PlacedProblem& problem) {
  std::vector<std::int64_t> held(to_size(problem.num_ranks), 0);
  std::vector<std::int64_t> peak = held;
  const auto run = [&](std::size_t rank, MemoryChange change) {
    peak[rank] = std::max(peak[rank], held[rank] + change.takes);
    held[rank] += change.keeps;
  };
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    const std::size_t rank = to_size(problem.rank_of[stage]);
    for (int slice = 0; slice < problem.num_slices(); ++slice) run(rank, change_of(problem, OpKind::F, stage, slice));
  }
  for (int stage = problem.num_stages() - 1; stage >= 0; --stage) {
    const std::size_t rank = to_size(problem.rank_of[stage]);
    for (int slice = problem.num_slices() - 1; slice >= 0; --slice) {
      // A B never needs more memory than the I of the same slice.
      if (problem.may_fuse) {
        run(rank, change_of(problem, OpKind::B, stage, slice));
      } else {
        run(rank, change_of(problem, OpKind::I, stage, slice));
        run(rank, change_of(problem, OpKind::W, stage, slice));
      }
    }
  }
  return peak;
}

void check(const PlacedProblem& problem) {
  check_sizes(problem);
  check_times(problem);
  const std::vector<std::int64_t> least = least_limits(problem);
  for (std::size_t rank = 0; rank < least.size(); ++rank) {
    if (problem.limit[rank] < least[rank]) {
      throw DoesNotFit(fmt::format("automatic schedule: rank {}: one microbatch needs {} of memory, the limit is {}",
                                   rank, least[rank], std::max<std::int64_t>(0, problem.limit[rank])));
    }
  }
}

OpTable::OpTable(const PlacedProblem& problem)
    : ranks(problem.num_ranks),
      stages(problem.num_stages()),
      slices(problem.num_slices()),
      microbatches(problem.num_microbatches),
      units(microbatches * slices),
      cells(stages * units),
      rank_of(problem.rank_of) {
  std::map<std::pair<int, int>, int> lanes;
  const auto lane = [&](int from, int to) {
    return lanes.try_emplace({from, to}, static_cast<int>(lanes.size())).first->second;
  };
  const std::int32_t forwards = 2;
  const std::int32_t backwards = forwards + cells;
  num_slots = backwards + cells;
  rows.resize(std::int64_t{4} * cells);
  for (int stage = 0; stage < stages; ++stage) {
    for (int unit = 0; unit < units; ++unit) {
      const int slice = unit % slices;
      const std::int32_t cell = stage * units + unit;
      const SliceOpTimes& times = problem.times[problem.slice_index(stage, slice)];
      for (const OpKind kind : {OpKind::F, OpKind::B, OpKind::I, OpKind::W}) {
        Row& row = rows[static_cast<std::int32_t>(kind) * cells + cell];
        const MemoryChange change = change_of(problem, kind, stage, slice);
        row.takes = change.takes;
        row.keeps = change.keeps;
        row.need = kAvailable;
        row.makes = kNoReader;
        const bool forward = kind == OpKind::F;
        const int next = stage + (forward ? 1 : -1);
        if (kind != OpKind::W && next >= 0 && next < stages) {
          row.makes = (forward ? forwards : backwards) + cell;
          row.reader = rank_of[next];
          row.hop = (forward ? problem.forward_hop : problem.backward_hop)[stage].count();
          row.send = (forward ? times.send_forward : times.send_backward).count();
          if (row.reader == rank_of[stage]) {
            row.hop = row.send = 0;
          } else {
            row.lane = lane(rank_of[stage], row.reader);
          }
        }
        switch (kind) {
          case OpKind::F:
            row.duration = times.forward.count();
            if (stage > 0) row.need = forwards + cell - units;
            break;
          case OpKind::B:
          case OpKind::I:
            row.duration = (kind == OpKind::B ? times.backward : times.input_gradient).count();
            if (stage + 1 < stages) row.need = backwards + cell + units;
            break;
          default: row.duration = times.weight_gradient.count();
        }
      }
    }
  }
  num_lanes = static_cast<int>(lanes.size());
}

bool OpTable::ordered(std::int32_t before, std::int32_t after) const {
  if (stage(before) != stage(after)) return false;
  const int first = before / cells;
  const int second = after / cells;
  const auto phase = [](int kind) { return kind == 0 ? 0 : kind == 3 ? 2 : 1; };
  const int mb = microbatch(before);
  const int other = microbatch(after);
  if (phase(first) == phase(second) && slice(before) == slice(after)) return mb < other;
  if (mb != other) return false;
  if (slice(before) == slice(after)) return phase(first) < phase(second);
  if (phase(first) == 0 && phase(second) == 0) return slice(before) < slice(after);
  if (phase(first) == 1 && phase(second) == 1) return slice(before) > slice(after);
  return phase(first) == 0 && phase(second) == 1;
}

Schedule schedule_of(const PlacedProblem& problem, const Orders& orders) {
  const OpTable table(problem);
  ScheduleParts parts;
  parts.family = "custom";
  parts.num_ranks = problem.num_ranks;
  parts.num_stages = problem.num_stages();
  parts.num_microbatches = problem.num_microbatches;
  parts.routes = {problem.rank_of};
  parts.shapes = {problem.shape};
  for (const auto& order : orders) {
    std::vector<Op>& ops = parts.orders.emplace_back();
    for (const std::int32_t op : order) {
      ops.push_back({.microbatch = table.microbatch(op),
                     .stage = static_cast<std::int16_t>(table.stage(op)),
                     .slice = static_cast<std::int16_t>(table.slice(op)),
                     .kind = table.kind(op)});
    }
  }
  return Schedule(std::move(parts));
}

Orders renamed(const OpTable& table, Orders orders) {
  std::vector<int> seen(to_size(std::int64_t{3} * table.stages * table.slices), 0);
  // The j-th W belongs to the j-th I, as a microbatch whose backward is one op has no W.
  std::vector<std::vector<int>> splits(seen.size());  // by group of the W: microbatches with a W
  for (auto& order : orders) {
    for (std::int32_t& op : order) {
      const OpKind kind = table.kind(op);
      const int stage = table.stage(op);
      const int slice = table.slice(op);
      const std::size_t group = to_size(table.group(op));
      const int index = seen[group]++;
      if (kind == OpKind::I) splits[table.group(table.id(OpKind::W, stage, 0, slice))].push_back(index);
      op = table.id(kind, stage, kind == OpKind::W ? splits[group][index] : index, slice);
    }
  }
  return orders;
}

Orders orders_of(const OpTable& table, const Schedule& schedule) {
  Orders orders(to_size(table.ranks));
  for (int rank = 0; rank < table.ranks; ++rank) {
    for (const Op& op : schedule.ops(rank)) orders[rank].push_back(table.id(op.kind, op.stage, 0, op.slice));
  }
  return renamed(table, std::move(orders));
}

Orders sequential_orders(const PlacedProblem& problem) {
  const OpTable table(problem);
  Orders orders(to_size(problem.num_ranks));
  for (int mb = 0; mb < problem.num_microbatches; ++mb) {
    for (int stage = 0; stage < table.stages; ++stage) {
      auto& order = orders[problem.rank_of[stage]];
      for (int slice = 0; slice < table.slices; ++slice) order.push_back(table.id(OpKind::F, stage, mb, slice));
    }
    for (int stage = table.stages - 1; stage >= 0; --stage) {
      auto& order = orders[problem.rank_of[stage]];
      for (int slice = table.slices - 1; slice >= 0; --slice) {
        if (problem.may_fuse) {
          order.push_back(table.id(OpKind::B, stage, mb, slice));
        } else {
          order.push_back(table.id(OpKind::I, stage, mb, slice));
          order.push_back(table.id(OpKind::W, stage, mb, slice));
        }
      }
    }
  }
  return orders;
}

Prices price(const OpGraph& graph, const PlacedProblem& problem) {
  Prices prices;
  const auto times_of = [&](const Vertex& v) -> const SliceOpTimes& {
    return problem.times[problem.slice_index(v.stage, v.slice)];
  };
  const auto duration_of = [&](const Vertex& v) {
    switch (v.op) {
      case OpKind::F: return times_of(v).forward;
      case OpKind::B: return times_of(v).backward;
      case OpKind::I: return times_of(v).input_gradient;
      default: return times_of(v).weight_gradient;
    }
  };
  prices.lane_latency.assign(graph.lanes().size(), Duration{});
  for (const Vertex& vertex : graph.vertices()) {
    Duration duration{};
    if (vertex.kind == VertexKind::compute) duration = duration_of(vertex);
    if (vertex.kind == VertexKind::joint) duration = duration_of(vertex) + duration_of(graph.joint_partner(vertex));
    if (vertex.kind == VertexKind::transfer) {
      const bool forward = vertex.op == OpKind::F;
      duration = forward ? times_of(vertex).send_forward : times_of(vertex).send_backward;
      prices.lane_latency[vertex.lane] = (forward ? problem.forward_hop : problem.backward_hop)[vertex.stage];
    }
    prices.duration.push_back(duration);
  }
  return prices;
}

bool keeps_limits(const PlacedProblem& problem, const OpTable& table, const Orders& orders) {
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    std::int64_t held = 0;
    for (const std::int32_t op : orders[rank]) {
      if (held + table.rows[op].takes > problem.limit[rank]) return false;
      held += table.rows[op].keeps;
    }
  }
  return true;
}

Duration simulated_makespan(const PlacedProblem& problem, const Schedule& schedule) {
  LoweringOptions options;
  options.blocking_transfers = problem.blocking;
  const OpGraph graph = lower(schedule, options);
  const Timeline timeline = simulate(graph, price(graph, problem));
  std::vector<Duration> last(to_size(problem.num_ranks), Duration{});
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint) continue;
    last[vertex.lane] = std::max(last[vertex.lane], timeline.end[v]);
  }
  Duration makespan{};
  for (std::size_t rank = 0; rank < last.size(); ++rank)
    makespan = std::max(makespan, last[rank] + problem.after[rank]);
  return makespan;
}

}  // namespace sluice::sim
