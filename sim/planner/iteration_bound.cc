#include "sim/planner/iteration_bound.h"

#include <algorithm>
#include <functional>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

Duration rounded_duration(double seconds) { return from_seconds(seconds, "op"); }

void add_passes(const Schedule& schedule, const CostModel& cost, bool recompute, int stage, StageTimes& of) {
  const MicrobatchShape& shape = schedule.shapes()[0];
  for (int slice = 0; slice < shape.num_slices(); ++slice) {
    const Duration forward = rounded_duration(cost.compute_s(OpKind::F, stage, shape, slice));
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
    of.forward += forward;
    of.gradient += gradient;
    if (slice > 0) continue;
    of.first_forward = forward;
    of.last_gradient = gradient;
  }
}

// The maximum by which a joint block of this rank's stages is shorter than its two ops.
Duration most_saved(const Schedule& schedule, const CostModel& cost, std::span<const int> stages) {
  Duration most{0};
  if (!schedule.has_joint_blocks()) return most;
  const MicrobatchShape& shape = schedule.shapes()[0];
  for (const int forward : stages) {
    for (const int backward : stages) {
      for (const OpKind kind : {OpKind::B, OpKind::I}) {
        const Duration apart = rounded_duration(cost.compute_s(OpKind::F, forward, shape, 0)) +
                               rounded_duration(cost.compute_s(kind, backward, shape, 0));
        most = std::max(most, apart - rounded_duration(cost.joint_s(forward, shape, 0, kind, backward, shape, 0)));
      }
    }
  }
  return most;
}

// `saved` returns by how much a rank whose gradients and forwards take this time per microbatch may be faster.
Duration least_over_ranks(const Schedule& schedule, int microbatches, std::span<const StageTimes> stages,
                          const std::function<Duration(std::span<const int>, Duration)>& saved) {
  std::vector<Duration> forward_path(stages.size() + 1, Duration{0});
  std::vector<Duration> return_path(stages.size() + 1, Duration{0});
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    forward_path[stage + 1] = forward_path[stage] + stages[stage].first_forward;
    return_path[stage + 1] = return_path[stage] + stages[stage].last_gradient;
  }
  const int of_route = microbatches / schedule.num_routes();
  Duration least{0};
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto held = schedule.stages_of(rank);
    Duration gradients{0};
    Duration weights{0};
    Duration after{0};
    for (const int stage : held) {
      gradients += stages[stage].forward + stages[stage].gradient;
      weights += stages[stage].weight;
      after += stages[stage].after;
    }
    gradients -= saved(held, gradients);
    const Duration begin = forward_path[held.front()];
    least = std::max(least, begin + (gradients + weights) * of_route + after);
    // The last op of a rank, except weight gradients, is a gradient of its first stage, whose path leads to stage 0.
    least = std::max(least, begin + gradients * of_route + return_path[held.front()]);
  }
  return least;
}

}  // namespace

std::vector<StageTimes> stage_times(const Schedule& schedule, const ScenarioCosts& costs) {
  const CostModel& cost = costs.cost();
  const LoweringOptions options = costs.lowering_options(schedule.weight_policy());
  const bool reduce = options.data_parallel > 1 && !options.overlap_grad_reduce && costs.footprint() != nullptr;
  std::vector<StageTimes> stages(to_size(schedule.num_stages()));
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    StageTimes& of = stages[stage];
    if (const int like = cost.alike(stage); like != stage) {
      of = stages[like];
    } else {
      add_passes(schedule, cost, options.recompute, stage, of);
    }
    of.after = rounded_duration(cost.optimizer_s(stage));
    if (!reduce) continue;
    of.after += rounded_duration(
        cost.collective_s(CollectiveKind::gradient_reduce, stage, costs.footprint()->stage(stage).reduced));
  }
  return stages;
}

Duration least_iteration(const Schedule& schedule, int microbatches, const ScenarioCosts& costs) {
  const std::vector<StageTimes> stages = stage_times(schedule, costs);
  return least_over_ranks(schedule, microbatches, stages, [&](std::span<const int> held, Duration) {
    return most_saved(schedule, costs.cost(), held) * std::ssize(held);
  });
}

Duration least_iteration(const Schedule& schedule, int microbatches, std::span<const StageTimes> stages, bool joint) {
  return least_over_ranks(schedule, microbatches, stages, [&](std::span<const int>, Duration gradients) {
    return joint ? (gradients + Duration{1}) / 2 : Duration{0};
  });
}

}  // namespace sluice::sim
