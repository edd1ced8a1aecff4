#include "sim/planner/iteration_bound.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

Duration rounded_duration(double seconds) { return from_seconds(seconds, "op"); }

void add_passes(const Schedule& schedule, const CostModel& cost, bool recompute, int stage,
                const MicrobatchShape& shape, StageWork& of) {
  for (int slice = 0; slice < shape.num_slices(); ++slice) {
    const Duration forward = rounded_duration(cost.compute_s(OpKind::F, stage, shape, slice));
    of.forward += forward;
    if (slice == 0) of.forward_path = forward;
    if (shape.forward_only) continue;
    Duration gradient = recompute ? rounded_duration(cost.recompute_s(stage, shape, slice)) : Duration{0};
    const Duration whole = rounded_duration(cost.compute_s(OpKind::B, stage, shape, slice));
    if (schedule.split_backward()) {
      // Some backwards may still be whole.
      const Duration input = rounded_duration(cost.compute_s(OpKind::I, stage, shape, slice));
      const Duration weight = rounded_duration(cost.compute_s(OpKind::W, stage, shape, slice));
      gradient += std::min(whole, input);
      of.weight += std::max(Duration{0}, std::min(whole, input + weight) - std::min(whole, input));
    } else {
      gradient += whole;
    }
    of.gradient += gradient;
    if (slice == 0) of.gradient_path = gradient;
  }
}

// By how much joint blocks are shorter than their two ops.
class JointSavings {
 public:
  JointSavings(const Schedule& schedule, const CostModel& cost) : schedule_(schedule), cost_(cost) {}

  // The maximum over the blocks of a rank's stages.
  Duration most(std::span<const int> stages) {
    Duration most{0};
    if (!schedule_.has_joint_blocks()) return most;
    for (const int forward : stages) {
      for (const int backward : stages) {
        for (const OpKind kind : {OpKind::B, OpKind::I}) {
          most = std::max(most, of(cost_.alike(forward), kind, cost_.alike(backward)));
        }
      }
    }
    return most;
  }

 private:
  Duration of(int forward, OpKind kind, int backward) {
    const auto [found, added] = known_.try_emplace({forward, kind, backward}, Duration{0});
    if (!added) return found->second;
    const MicrobatchShape& shape = schedule_.shapes()[0];
    const Duration apart = rounded_duration(cost_.compute_s(OpKind::F, forward, shape, 0)) +
                           rounded_duration(cost_.compute_s(kind, backward, shape, 0));
    return found->second = apart - rounded_duration(cost_.joint_s(forward, shape, 0, kind, backward, shape, 0));
  }

  const Schedule& schedule_;
  const CostModel& cost_;
  std::map<std::tuple<int, OpKind, int>, Duration> known_;
};

// `saved` returns by how much a rank whose gradients and forwards take this time per microbatch may be faster.
Duration least_over_ranks(const Schedule& schedule, int microbatches, std::span<const StageWork> stages,
                          const std::function<Duration(std::span<const int>, Duration)>& saved) {
  std::vector<Duration> forward_path(stages.size() + 1, Duration{0});
  std::vector<Duration> return_path(stages.size() + 1, Duration{0});
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    forward_path[stage + 1] = forward_path[stage] + stages[stage].forward_path;
    return_path[stage + 1] = return_path[stage] + stages[stage].gradient_path;
  }
  const int of_route = microbatches / schedule.num_routes();
  Duration least{0};
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto held = schedule.stages_of(rank);
    Duration gradients{0};
    Duration weights{0};
    Duration after{0};
    Duration blocked{0};
    // The rank's work for this stage and later ones of its stages.
    for (auto stage = held.rbegin(); stage != held.rend(); ++stage) {
      gradients += stages[*stage].forward + stages[*stage].gradient;
      weights += stages[*stage].weight;
      after += stages[*stage].after;
      blocked = std::max(blocked, stages[*stage].blocked);
      const std::span later = held.last(to_size(stage - held.rbegin() + 1));
      const Duration least_gradients = gradients - saved(later, gradients);
      const Duration begin = forward_path[*stage];
      least = std::max(least, begin + (least_gradients + weights) * of_route - blocked + after);
      // The last op, except weight gradients, is a gradient of one of them, whose path leads to stage 0.
      least = std::max(least, begin + least_gradients * of_route + return_path[*stage]);
    }
  }
  return least;
}

}  // namespace

std::vector<StageWork> compute_times(const Schedule& schedule, const ScenarioCosts& costs) {
  const CostModel& cost = costs.cost();
  const LoweringOptions options = costs.lowering_options(schedule.weight_policy());
  const bool reduce = options.data_parallel > 1 && !options.overlap_grad_reduce && costs.footprint() != nullptr;
  std::vector<StageWork> stages(to_size(schedule.num_stages()));
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    StageWork& of = stages[stage];
    if (const int like = cost.alike(stage); like != stage) {
      of = stages[like];
    } else {
      add_passes(schedule, cost, options.recompute, stage, schedule.shapes()[0], of);
    }
    of.after = rounded_duration(cost.optimizer_s(stage));
    if (!reduce) continue;
    of.after += rounded_duration(
        cost.collective_s(CollectiveKind::gradient_reduce, stage, costs.footprint()->stage(stage).reduced));
  }
  return stages;
}

std::vector<StageWork> transfer_times(const Schedule& schedule, const ScenarioCosts& costs) {
  std::vector<StageWork> stages(to_size(schedule.num_stages()));
  if (costs.footprint() == nullptr) return stages;
  const MicrobatchShape& shape = schedule.shapes()[0];
  // A joint block begins two transfers, which may overlap.
  const bool blocks =
      costs.lowering_options(schedule.weight_policy()).blocking_transfers && !schedule.has_joint_blocks();
  const auto time = [&](int from, int to, std::int64_t bytes) {
    Duration least = Duration::max();
    for (const std::vector<int>& route : schedule.routes()) {
      if (route[to_size(from)] == route[to_size(to)]) return Duration{0};
      const TransferTime transfer = costs.cost().transfer(route[to_size(from)], route[to_size(to)], bytes);
      least = std::min(least, rounded_duration(transfer.occupied_s) + rounded_duration(transfer.latency_s));
    }
    return least;
  };
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    StageWork& of = stages[to_size(stage)];
    for (int slice = 0; slice < shape.num_slices(); ++slice) {
      const SliceBytes bytes = costs.footprint()->slice(stage, shape, slice);
      const bool last = stage + 1 == schedule.num_stages();
      const Duration forward = last ? Duration{0} : time(stage, stage + 1, bytes.transfer_forward);
      const Duration gradient = stage == 0 ? Duration{0} : time(stage, stage - 1, bytes.transfer_backward);
      if (slice == 0) of.forward_path = forward;
      if (slice == 0) of.gradient_path = gradient;
      if (!blocks) continue;
      of.forward += forward;
      of.gradient += gradient;
      of.blocked = std::max({of.blocked, forward, gradient});
    }
  }
  return stages;
}

void add_times(StageWork& times, const StageWork& more) {
  times.forward += more.forward;
  times.gradient += more.gradient;
  times.weight += more.weight;
  times.forward_path += more.forward_path;
  times.gradient_path += more.gradient_path;
  times.after += more.after;
  times.blocked += more.blocked;
}

Duration least_iteration(const Schedule& schedule, int microbatches, const ScenarioCosts& costs) {
  return least_iteration(schedule, microbatches, costs, compute_times(schedule, costs));
}

Duration least_iteration(const Schedule& schedule, int microbatches, const ScenarioCosts& costs,
                         std::vector<StageWork> stages) {
  const std::vector<StageWork> transfers = transfer_times(schedule, costs);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) add_times(stages[stage], transfers[stage]);
  JointSavings savings(schedule, costs.cost());
  return least_over_ranks(schedule, microbatches, stages,
                          [&](std::span<const int> held, Duration) { return savings.most(held) * std::ssize(held); });
}

Duration least_compute(const Schedule& schedule, const ScenarioCosts& costs) {
  const CostModel& cost = costs.cost();
  const bool recompute = costs.lowering_options(schedule.weight_policy()).recompute;
  std::map<std::pair<int, const MicrobatchShape*>, Duration> known;  // by the first stage alike
  std::vector<Duration> ranks(to_size(schedule.num_ranks()), Duration{0});
  for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
    const MicrobatchShape& shape = schedule.shape(mb);
    // Any rank may encode a microbatch where several do.
    for (int stage = schedule.num_routes() > 1 ? schedule.encoder_stages() : 0; stage < schedule.num_stages();
         ++stage) {
      const auto [found, added] = known.try_emplace({cost.alike(stage), &shape}, Duration{0});
      if (added) {
        StageWork work;
        add_passes(schedule, cost, recompute, cost.alike(stage), shape, work);
        found->second = work.forward + work.gradient + work.weight;
      }
      ranks[to_size(schedule.rank_of(stage, mb))] += found->second;
    }
  }
  const Duration most = *std::max_element(ranks.begin(), ranks.end());
  return schedule.has_joint_blocks() ? (most + Duration{1}) / 2 : most;
}

Duration least_iteration(const Schedule& schedule, int microbatches, std::span<const StageWork> stages, bool joint) {
  return least_over_ranks(schedule, microbatches, stages, [&](std::span<const int>, Duration gradients) {
    return joint ? (gradients + Duration{1}) / 2 : Duration{0};
  });
}

}  // namespace sluice::sim
