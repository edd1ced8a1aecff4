#include "sim/goodput/reroute.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "model/errors.h"
#include "model/timeline/memory.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/engine/predict.h"

namespace sluice::sim {
namespace {

constexpr int kMostRoutes = 255;  // of a schedule

// The costs of a pipeline for its replicas: rank r of any of them is one of `copies` ranks from r * copies on.
class ReplicatedCost : public CostModel {
 public:
  ReplicatedCost(const CostModel& one, int copies) : one_(one), copies_(copies) {}

  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override {
    return one_.compute_s(kind, stage, shape, slice);
  }
  double recompute_s(int stage, const MicrobatchShape& shape, int slice) const override {
    return one_.recompute_s(stage, shape, slice);
  }
  int alike(int stage) const override { return one_.alike(stage); }
  TransferTime transfer(int from, int to, std::int64_t bytes) const override {
    return one_.transfer(from / copies_, to / copies_, bytes);
  }
  double collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const override {
    // The reduction over the other replicas is that of the gradients.
    return kind == CollectiveKind::replica_reduce ? 0 : one_.collective_s(kind, stage, bytes);
  }
  double optimizer_s(int stage) const override { return one_.optimizer_s(stage); }

 private:
  const CostModel& one_;
  int copies_;
};

// Which replica computes the ops of each rank and microbatch.
class Peers {
 public:
  Peers(const Schedule& schedule, std::span<const int> lost, int replicas)
      : microbatches_(schedule.num_microbatches()) {
    const int failures = std::accumulate(lost.begin(), lost.end(), 0);
    // Every microbatch of a lost rank has a peer of its own, if there are enough; the other replicas are as without
    // failures. With fewer the peers have more to compute.
    copies_ =
        std::min({replicas, std::max(1, failures * (1 + microbatches_)), std::max(2, kMostRoutes / (1 + failures))});
    int replica = 0;
    int next = failures;  // peers of different ranks are different replicas, if there are enough
    for (const int count : lost) {
      std::vector<char> alive(to_size(copies_), 1);
      for (int i = 0; i < std::min(count, copies_ - 1); ++i) alive[to_size(replica++ % copies_)] = 0;
      std::vector<int> of_rank(to_size(copies_) * to_size(microbatches_));
      for (int k = 0; k < copies_; ++k) {
        for (int mb = 0; mb < microbatches_; ++mb) {
          int peer = k;
          while (alive[to_size(peer)] == 0) peer = next++ % copies_;
          of_rank[to_size(k * microbatches_ + mb)] = peer;
        }
      }
      replica_of_.push_back(std::move(of_rank));
    }
  }

  int copies() const { return copies_; }
  int replica_of(int rank, int microbatch) const { return replica_of_[to_size(rank)][to_size(microbatch)]; }

 private:
  int microbatches_;
  int copies_ = 1;
  std::vector<std::vector<int>> replica_of_;  // by rank and microbatch of all copies
};

}  // namespace

Schedule rerouted(const Schedule& schedule, std::span<const int> lost, int replicas, bool own_first) {
  refuse_vocabulary(schedule, "their replicas cannot compute for each other");
  if (schedule.weight_policy() != WeightPolicy::flush || schedule.num_batches() > 1 || schedule.has_joint_blocks() ||
      schedule.has_communication() || schedule.encoder_stages() > 0) {
    throw ScheduleError(schedule.family() +
                        ": the microbatches of a replica are rerouted in schedules with a flush, without overlapped "
                        "blocks, without sends and receives and without an encoder apart");
  }
  const Peers peers(schedule, lost, replicas);
  const int copies = peers.copies();
  const int microbatches = schedule.num_microbatches();
  ScheduleParts parts = schedule.parts();
  parts.family = "custom";
  parts.num_ranks *= copies;
  parts.num_microbatches *= copies;
  parts.routes.clear();
  parts.route_of.clear();
  parts.cells.clear();
  parts.orders.assign(to_size(parts.num_ranks), {});
  std::map<std::vector<int>, std::uint8_t> routes;
  const std::vector<int> shape_of = std::move(parts.shape_of);
  parts.shape_of.clear();
  for (int mb = 0; mb < copies * microbatches; ++mb) {
    std::vector<int> route = schedule.routes()[to_size(schedule.route(mb % microbatches))];
    for (int& rank : route) rank = rank * copies + peers.replica_of(rank, mb);
    const auto [known, added] = routes.try_emplace(route, static_cast<std::uint8_t>(routes.size()));
    if (added) parts.routes.push_back(route);
    parts.route_of.push_back(known->second);
    if (!shape_of.empty()) parts.shape_of.push_back(shape_of[to_size(mb % microbatches)]);
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Op& op : schedule.ops(rank)) {
      for (const bool own : {own_first, !own_first}) {
        for (int k = 0; k < copies; ++k) {
          Op moved = op;
          moved.microbatch += k * microbatches;
          const int peer = peers.replica_of(rank, moved.microbatch);
          if ((peer == k) == own) parts.orders[to_size(rank * copies + peer)].push_back(moved);
        }
      }
    }
  }
  return Schedule(std::move(parts));
}

std::optional<Duration> rerouting_delay(const Setup& healthy, std::span<const int> lost, int replicas) {
  LoweringOptions options = healthy.lowering_options();
  options.offload = nullptr;
  options.queues = nullptr;
  const auto run = [&](const Schedule& schedule) -> std::optional<Duration> {
    const OpGraph graph = lower(schedule, options);
    const ReplicatedCost cost(healthy.cost(), schedule.num_ranks() / healthy.schedule().num_ranks());
    const Timeline timeline = simulate(graph, price(graph, cost));
    if (const auto& cluster = healthy.scenario().cluster; cluster && graph.has_bytes()) {
      if (!fit_of(*cluster, memory_over_time(graph, timeline, false)).fits) return std::nullopt;
    }
    return *std::max_element(timeline.end.begin(), timeline.end.end());
  };
  std::optional<Duration> best;
  for (const bool own_first : {false, true}) {
    const std::optional<Duration> with = run(rerouted(healthy.schedule(), lost, replicas, own_first));
    if (with && (!best || *with < *best)) best = with;
  }
  if (!best) return std::nullopt;
  const std::vector<int> none(lost.size());
  return std::max(Duration{}, *best - *run(rerouted(healthy.schedule(), none, 1, true)));
}

}  // namespace sluice::sim
