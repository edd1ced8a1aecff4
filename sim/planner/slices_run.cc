#include "sim/planner/slices_run.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "model/slicing/terapipe.h"
#include "sim/engine/engine.h"

namespace sluice::sim {
namespace {

Scenario with_slices(Scenario scenario, std::int64_t granularity, int slices) {
  scenario.shape.slice_lengths = even_slices(scenario.training.sequence_length, granularity, slices);
  return scenario;
}

Duration makespan_of(const Timeline& timeline) { return *std::max_element(timeline.end.begin(), timeline.end.end()); }

}  // namespace

// Caches times of ops: cuts differ in few slices, and the time of a slice depends only on its tokens and those before.
class SlicesRun::KnownCosts : public CostModel {
 public:
  explicit KnownCosts(const CostModel& cost) : cost_(cost) {}

  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override {
    return known(static_cast<int>(kind), stage, shape, slice,
                 [&] { return cost_.compute_s(kind, stage, shape, slice); });
  }
  double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                 int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override {
    return cost_.joint_s(forward_stage, forward_shape, forward_slice, backward, backward_stage, backward_shape,
                         backward_slice);
  }
  double recompute_s(int stage, const MicrobatchShape& shape, int slice) const override {
    return known(-1, stage, shape, slice, [&] { return cost_.recompute_s(stage, shape, slice); });
  }
  int alike(int stage) const override { return cost_.alike(stage); }
  TransferTime transfer(int from, int to, std::int64_t bytes) const override { return cost_.transfer(from, to, bytes); }
  LinkSharing sharing(std::span<const LinkEnds> links) const override { return cost_.sharing(links); }
  double collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const override {
    return cost_.collective_s(kind, stage, bytes);
  }
  double optimizer_s(int stage) const override { return cost_.optimizer_s(stage); }

 private:
  double known(int what, int stage, const MicrobatchShape& shape, int slice, const auto& ask) const {
    const std::int64_t tokens = shape.slice_lengths[slice];
    const auto [found, added] = times_.try_emplace({what, stage, tokens, shape.context(slice)}, 0.0);
    if (added) found->second = ask();
    return found->second;
  }

  const CostModel& cost_;
  mutable std::map<std::tuple<int, int, std::int64_t, std::int64_t>, double> times_;  // each run belongs to one thread
};

SlicesRun::SlicesRun(Scenario scenario, std::int64_t granularity, int slices)
    : granularity_(granularity),
      tokens_(scenario.training.sequence_length),
      granules_((tokens_ + granularity - 1) / granularity),
      schedule_(make_schedule(with_slices(scenario, granularity, slices))),
      costs_(with_slices(std::move(scenario), granularity, slices), schedule_),
      graph_(lower(schedule_, costs_.lowering_options(schedule_.weight_policy()))),
      known_(std::make_unique<KnownCosts>(costs_.cost())) {}

SlicesRun::~SlicesRun() = default;

std::vector<std::int64_t> SlicesRun::lengths_of(const std::vector<std::int64_t>& granules) const {
  std::vector<std::int64_t> lengths;
  for (const std::int64_t count : granules) lengths.push_back(count * granularity_);
  lengths.back() -= granules_ * granularity_ - tokens_;
  return lengths;
}

Timeline SlicesRun::timeline_of(const std::vector<std::int64_t>& granules) {
  ++simulations_;
  MicrobatchShape shape = schedule_.shapes()[0];
  shape.slice_lengths = lengths_of(granules);
  schedule_.resize({std::move(shape)});
  graph_.refill(costs_.footprint());
  return sim::simulate(graph_, price(graph_, *known_));
}

std::optional<Fit> SlicesRun::fit_of_timeline(const Timeline& timeline) const {
  const Scenario& scenario = costs_.scenario();
  if (!scenario.model || !scenario.cluster) return std::nullopt;
  return fit_of(*scenario.cluster, memory_over_time(graph_, timeline, false));
}

SlicesRun::Result SlicesRun::simulate(const std::vector<std::int64_t>& granules) {
  const Timeline timeline = timeline_of(granules);
  return {.makespan = makespan_of(timeline), .fit = fit_of_timeline(timeline)};
}

std::optional<SlicesRun::Result> SlicesRun::simulate_if_better(const std::vector<std::int64_t>& granules,
                                                               const Result& than) {
  const Timeline timeline = timeline_of(granules);
  Result result{.makespan = makespan_of(timeline), .fit = std::nullopt};
  if (than.fits() && result.makespan >= than.makespan) return std::nullopt;
  result.fit = fit_of_timeline(timeline);
  if (result.fits()) return result;
  if (than.fits() || result.fit->needed_bytes >= than.fit->needed_bytes) return std::nullopt;
  return result;
}

}  // namespace sluice::sim
