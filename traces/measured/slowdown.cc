#include "traces/measured/slowdown.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "model/median.h"
#include "model/to_size.h"
#include "traces/replay/replay.h"

namespace sluice::traces {
namespace {

constexpr int kLanes = 4;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class Analysis {
 public:
  Analysis(const MeasuredRun& run, const std::vector<StepGraph>& graphs) : run_(run), graphs_(graphs) { find_ideal(); }

  Slowdown result() {
    Slowdown result;
    replay_measured(result);
    const auto keeps = [&](const Selection& keep) { variants_.push_back(keep); };
    keeps([](int, int) { return false; });
    for (int replica = 0; replica < run_.replicas; ++replica) {
      keeps([this, replica](int worker, int) { return run_.replica_of(worker) == replica; });
    }
    for (int rank = 0; rank < run_.ranks; ++rank) {
      keeps([this, rank](int worker, int) { return run_.rank_of(worker) == rank; });
    }
    for (int kind = 0; kind < kNumMeasuredKinds; ++kind) {
      keeps([kind](int, int each) { return static_cast<int>(slowdown_kind(static_cast<MeasuredKind>(each))) == kind; });
    }
    keeps([this](int worker, int) { return run_.rank_of(worker) + 1 != run_.ranks; });
    std::vector<std::vector<double>> times = simulate();
    result.ideal = times[0];
    const double ideal = mean(result.ideal);
    const double own = mean(result.no_delay);
    result.slowdown = own / ideal;
    std::size_t next = 1;
    for (int replica = 0; replica < run_.replicas; ++replica) result.by_replica.push_back(mean(times[next++]) / ideal);
    for (int rank = 0; rank < run_.ranks; ++rank) result.by_rank.push_back(mean(times[next++]) / ideal);
    for (std::size_t kind = 0; kind < kNumMeasuredKinds; ++kind, ++next) {
      bool occurs = false;
      for (std::size_t each = 0; each < kNumMeasuredKinds; ++each) {
        occurs |=
            ideal_[each] >= 0 && slowdown_kind(static_cast<MeasuredKind>(each)) == static_cast<MeasuredKind>(kind);
      }
      if (occurs) result.by_kind[kind] = mean(times[next]) / ideal;
    }
    const auto share = [&](const std::vector<double>& without) -> std::optional<double> {
      if (own <= ideal) return std::nullopt;
      return (own - mean(without)) / (own - ideal);
    };
    result.last_rank_share = share(times[next]);

    result.worst_workers = worst_workers(result);
    variants_.clear();
    keeps(
        [&](int worker, int) { return std::ranges::find(result.worst_workers, worker) == result.worst_workers.end(); });
    result.worst_workers_share = share(simulate()[0]);
    return result;
  }

 private:
  // Whether the ops of a kind on a worker keep their measured durations.
  using Selection = std::function<bool(int worker, int kind)>;

  void find_ideal() {
    std::array<std::vector<double>, kNumMeasuredKinds> values;
    for (const StepGraph& graph : graphs_) {
      for (std::size_t p = 0; p < graph.size(); ++p) {
        values[to_size(static_cast<int>(graph.ops[p]->kind))].push_back(graph.transfer[p]);
      }
    }
    for (std::size_t kind = 0; kind < kNumMeasuredKinds; ++kind) {
      if (values[kind].empty()) continue;
      ideal_[kind] = is_communication(static_cast<MeasuredKind>(kind)) ? median(values[kind]) : mean(values[kind]);
    }
  }

  void replay_measured(Slowdown& result) const {
    double signed_sum = 0;
    double absolute_sum = 0;
    for (const StepGraph& graph : graphs_) {
      double measured = 0;
      for (const MeasuredOp* op : graph.ops) measured = std::max(measured, static_cast<double>(op->end.count()));
      result.measured.push_back(measured / 1e9);
      Span own;
      Span replayed;
      const auto time = [&](std::size_t p, int) { return graph.transfer[p]; };
      const auto last = replay<1>(graph, false, time, [&](std::size_t p, const std::array<double, 1>& end) {
        const MeasuredOp& op = *graph.ops[p];
        if (!is_pass(op.kind)) return;
        own.add(static_cast<double>(op.start.count()), static_cast<double>(op.end.count()));
        replayed.add(end[0] - graph.transfer[p], end[0]);
      });
      result.no_delay.push_back(last[0] / 1e9);
      const double error = replayed.length() / own.length() - 1;
      signed_sum += error;
      absolute_sum += std::abs(error);
    }
    result.span_error = signed_sum / static_cast<double>(graphs_.size());
    result.span_absolute_error = absolute_sum / static_cast<double>(graphs_.size());
  }

  struct Span {
    double begin = std::numeric_limits<double>::max();
    double end = 0;
    void add(double start, double stop) {
      begin = std::min(begin, start);
      end = std::max(end, stop);
    }
    double length() const { return end - begin; }
  };

  // Returns the times of each step, by variant.
  std::vector<std::vector<double>> simulate() const {
    std::vector<std::vector<double>> times(variants_.size());
    for (std::size_t begin = 0; begin < variants_.size(); begin += kLanes) {
      const std::size_t count = std::min<std::size_t>(kLanes, variants_.size() - begin);
      // 1 where the measured duration is kept, by worker and kind.
      std::vector<std::array<double, kLanes>> keep(to_size(run_.workers()) * kNumMeasuredKinds);
      for (int worker = 0; worker < run_.workers(); ++worker) {
        for (int kind = 0; kind < kNumMeasuredKinds; ++kind) {
          auto& weights = keep[to_size(worker) * kNumMeasuredKinds + to_size(kind)];
          for (std::size_t k = 0; k < count; ++k) weights[k] = variants_[begin + k](worker, kind) ? 1 : 0;
        }
      }
      for (const StepGraph& graph : graphs_) {
        const std::array<double, kLanes> last = replay<kLanes>(graph, false, [&](std::size_t p, int k) {
          const MeasuredOp& op = *graph.ops[p];
          const auto kind = to_size(static_cast<int>(op.kind));
          return ideal_[kind] +
                 keep[to_size(op.worker) * kNumMeasuredKinds + kind][to_size(k)] * (graph.transfer[p] - ideal_[kind]);
        });
        for (std::size_t k = 0; k < count; ++k) times[begin + k].push_back(last[k] / 1e9);
      }
    }
    return times;
  }

  std::vector<int> worst_workers(const Slowdown& result) const {
    constexpr int kPercent = 3;
    const auto score = [&](int worker) {
      return std::min(result.by_replica[to_size(run_.replica_of(worker))],
                      result.by_rank[to_size(run_.rank_of(worker))]);
    };
    // Of equal ones, the first global rank: stages apart, then replicas, then tensor ranks.
    const auto global_rank = [&](int worker) {
      return (run_.rank_of(worker) * run_.replicas + run_.replica_of(worker)) * run_.shards + run_.shard_of(worker);
    };
    std::vector<int> workers(to_size(run_.workers()));
    std::iota(workers.begin(), workers.end(), 0);
    std::sort(workers.begin(), workers.end(), [&](int a, int b) {
      return score(a) != score(b) ? score(a) > score(b) : global_rank(a) < global_rank(b);
    });
    workers.resize((workers.size() * kPercent + 99) / 100);
    return workers;
  }

  const MeasuredRun& run_;
  const std::vector<StepGraph>& graphs_;
  std::array<double, kNumMeasuredKinds> ideal_ = [] {
    std::array<double, kNumMeasuredKinds> none{};
    none.fill(-1);
    return none;
  }();
  std::vector<Selection> variants_;
};

}  // namespace

std::string_view slowdown_kind_name(MeasuredKind kind) {
  if (slowdown_kind(kind) == MeasuredKind::forward_send) return "forward-pp-comm";
  if (slowdown_kind(kind) == MeasuredKind::backward_send) return "backward-pp-comm";
  return kMeasuredKindNames[static_cast<std::size_t>(kind)];
}

std::vector<StepGraph> step_graphs(const MeasuredRun& run, ReceiveRule rule) {
  std::vector<StepGraph> graphs;
  for (int step = 0; step < std::ssize(run.steps); ++step) graphs.push_back(step_graph(run, step, rule));
  return graphs;
}

Slowdown slowdown_of(const MeasuredRun& run, const std::vector<StepGraph>& graphs) {
  return Analysis(run, graphs).result();
}

}  // namespace sluice::traces
