#include "traces/measured/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "model/median.h"
#include "model/to_size.h"
#include "traces/replay/replay.h"

namespace sluice::traces {
namespace {

constexpr int kPassKinds = 4;
constexpr int kStateLanes = 4;
constexpr std::size_t kMostStates = 16;
constexpr int kPartsOfRank = 8;  // if the number of layers is not known

using PassTimes = std::array<double, kPassKinds>;  // ns, by kind
using Moves = std::vector<int>;                    // by rank: layers that it gets

double sum_of(const PassTimes& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

template <typename Duration>
double mean_seconds(const std::vector<StepGraph>& graphs, const Duration& duration) {
  double sum = 0;
  for (std::size_t step = 0; step < graphs.size(); ++step) {
    sum += replay<1>(graphs[step], true, [&](std::size_t p, int) { return duration(step, p); })[0];
  }
  return sum / 1e9 / static_cast<double>(graphs.size());
}

class LayerMover {
 public:
  LayerMover(const MeasuredRun& run, const std::vector<StepGraph>& graphs, std::optional<int> layers)
      : run_(run), graphs_(graphs), layers_(layers) {}

  std::optional<StepRemedy> remedy() {
    if (run_.ranks < 2) return std::nullopt;
    find_times();
    if (sum_of(layer_) <= 0) return std::nullopt;
    const std::vector<Moves> states = states_to_even();
    if (states.empty()) return std::nullopt;
    const Moves& best = best_of(states);
    const double before = mean_seconds(graphs_, [&](std::size_t s, std::size_t p) { return graphs_[s].transfer[p]; });
    const double after =
        mean_seconds(graphs_, [&](std::size_t s, std::size_t p) { return time_with(graphs_[s], p, best); });
    if (after >= before) return std::nullopt;
    return StepRemedy{text_of(best), before - after};
  }

 private:
  // The time of the passes of a microbatch by rank and kind, over its chunks: the lower median over its workers.
  void find_times() {
    std::vector<std::vector<double>> times(to_size(run_.workers()) * to_size(run_.chunks) * kPassKinds);
    for (const StepGraph& graph : graphs_) {
      for (std::size_t p = 0; p < graph.size(); ++p) {
        const MeasuredOp& op = *graph.ops[p];
        if (!is_pass(op.kind)) continue;
        times[slot(op.worker, op.chunk, static_cast<int>(op.kind))].push_back(graph.transfer[p]);
      }
    }
    of_rank_.assign(to_size(run_.ranks), PassTimes{});
    for (int rank = 0; rank < run_.ranks; ++rank) {
      for (int chunk = 0; chunk < run_.chunks; ++chunk) {
        for (int kind = 0; kind < kPassKinds; ++kind) {
          std::vector<double> workers;
          for (int replica = 0; replica < run_.replicas; ++replica) {
            for (int shard = 0; shard < run_.shards; ++shard) {
              workers.push_back(lower_median(times[slot(run_.worker(replica, rank, shard), chunk, kind)]));
            }
          }
          of_rank_[to_size(rank)][to_size(kind)] += lower_median(std::move(workers));
        }
      }
    }
    parts_ = layers_ ? static_cast<double>(*layers_) / run_.ranks : kPartsOfRank;
    for (int kind = 0; kind < kPassKinds; ++kind) {
      std::vector<double> ranks;
      for (const PassTimes& times_of : of_rank_) ranks.push_back(times_of[to_size(kind)]);
      layer_[to_size(kind)] = lower_median(std::move(ranks)) / parts_;
    }
  }
  std::size_t slot(int worker, int chunk, int kind) const {
    return (to_size(worker) * to_size(run_.chunks) + to_size(chunk)) * kPassKinds + to_size(kind);
  }

  // Moves one layer at a time from the longest rank to the shortest, while that shortens the longest.
  std::vector<Moves> states_to_even() const {
    std::vector<double> total;
    for (const PassTimes& times : of_rank_) total.push_back(sum_of(times));
    const double layer = sum_of(layer_);
    Moves moves(total.size(), 0);
    std::vector<Moves> states;
    const auto most_moves = to_size(static_cast<int>(parts_ * run_.ranks));
    while (states.size() < most_moves) {
      const auto longest = std::max_element(total.begin(), total.end());
      const auto shortest = std::min_element(total.begin(), total.end());
      if (*longest - *shortest <= layer || *longest <= layer) break;
      *longest -= layer;
      *shortest += layer;
      --moves[to_size(longest - total.begin())];
      ++moves[to_size(shortest - total.begin())];
      states.push_back(moves);
    }
    if (states.size() <= kMostStates) return states;
    std::vector<Moves> some;
    for (std::size_t i = 1; i <= kMostStates; ++i) some.push_back(states[states.size() * i / kMostStates - 1]);
    return some;
  }

  double time_with(const StepGraph& graph, std::size_t p, const Moves& moves) const {
    const MeasuredOp& op = *graph.ops[p];
    if (!is_pass(op.kind)) return graph.transfer[p];
    const std::size_t rank = to_size(run_.rank_of(op.worker));
    const auto kind = to_size(static_cast<int>(op.kind));
    const double own = of_rank_[rank][kind];
    return own > 0 ? graph.transfer[p] * std::max(0.0, 1 + moves[rank] * layer_[kind] / own) : graph.transfer[p];
  }

  const Moves& best_of(const std::vector<Moves>& states) const {
    std::vector<std::pair<double, std::size_t>> steps;
    for (std::size_t s = 0; s < graphs_.size(); ++s) {
      const auto last = replay<1>(graphs_[s], true, [&](std::size_t p, int) { return graphs_[s].transfer[p]; });
      steps.emplace_back(last[0], s);
    }
    const StepGraph& graph = graphs_[lower_median(std::move(steps)).second];
    std::pair<double, std::size_t> best{INFINITY, 0};
    for (std::size_t begin = 0; begin < states.size(); begin += kStateLanes) {
      const auto last = replay<kStateLanes>(graph, true, [&](std::size_t p, int lane) {
        return time_with(graph, p, states[std::min(begin + to_size(lane), states.size() - 1)]);
      });
      for (std::size_t k = begin; k < std::min(begin + kStateLanes, states.size()); ++k) {
        best = std::min(best, {last[k - begin], k});
      }
    }
    return states[best.second];
  }

  std::string amount(int moved) const {
    if (layers_) return fmt::format("{} {}", moved, moved == 1 ? "layer" : "layers");
    return fmt::format("{:.3g} %", 100.0 * moved / kPartsOfRank);
  }

  // "move 2 layers from rank 3 to rank 2", or the changes of all ranks.
  std::string text_of(const Moves& moves) const {
    std::vector<std::size_t> from;
    std::vector<std::size_t> to;
    for (std::size_t rank = 0; rank < moves.size(); ++rank) {
      if (moves[rank] != 0) (moves[rank] < 0 ? from : to).push_back(rank);
    }
    const auto list = [&](const std::vector<std::size_t>& ranks, bool amounts) {
      std::string text = ranks.size() == 1 ? "rank " : "ranks ";
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
        if (amounts) text += fmt::format(" ({})", amount(std::abs(moves[ranks[i]])));
      }
      return text;
    };
    const int moved = std::accumulate(to.begin(), to.end(), 0, [&](int sum, std::size_t r) { return sum + moves[r]; });
    return fmt::format("move {}{} from {} to {}", amount(moved), layers_ ? "" : " of a typical rank's layers",
                       list(from, from.size() > 1), list(to, to.size() > 1));
  }

  const MeasuredRun& run_;
  const std::vector<StepGraph>& graphs_;
  std::optional<int> layers_;
  double parts_ = kPartsOfRank;  // of a typical rank
  std::vector<PassTimes> of_rank_;
  PassTimes layer_{};
};

}  // namespace

std::optional<StepRemedy> move_layers(const MeasuredRun& run, const std::vector<StepGraph>& graphs,
                                      std::optional<int> layers) {
  return LayerMover(run, graphs, layers).remedy();
}

StepRemedy balance_replicas(const MeasuredRun& run, const std::vector<StepGraph>& graphs) {
  std::vector<std::vector<double>> factors;  // by step and replica
  for (const StepGraph& graph : graphs) {
    std::vector<double> passes(to_size(run.replicas) * to_size(run.ranks), 0);
    for (std::size_t p = 0; p < graph.size(); ++p) {
      const MeasuredOp& op = *graph.ops[p];
      if (!is_pass(op.kind)) continue;
      passes[to_size(run.replica_of(op.worker)) * to_size(run.ranks) + to_size(run.rank_of(op.worker))] +=
          graph.transfer[p];
    }
    std::vector<double>& of_step = factors.emplace_back();
    for (std::size_t replica = 0; replica < to_size(run.replicas); ++replica) {
      std::vector<double> ratios;
      for (std::size_t rank = 0; rank < to_size(run.ranks); ++rank) {
        double all = 0;
        for (std::size_t other = 0; other < to_size(run.replicas); ++other)
          all += passes[other * to_size(run.ranks) + rank];
        if (all > 0) ratios.push_back(passes[replica * to_size(run.ranks) + rank] * run.replicas / all);
      }
      const double ratio = lower_median(std::move(ratios));
      of_step.push_back(ratio > 0 ? 1 / ratio : 1);
    }
  }
  const double before = mean_seconds(graphs, [&](std::size_t s, std::size_t p) { return graphs[s].transfer[p]; });
  const double after = mean_seconds(graphs, [&](std::size_t s, std::size_t p) {
    const MeasuredOp& op = *graphs[s].ops[p];
    return is_pass(op.kind) ? graphs[s].transfer[p] * factors[s][to_size(run.replica_of(op.worker))]
                            : graphs[s].transfer[p];
  });
  return {"balance sequences over replicas", before - after};
}

}  // namespace sluice::traces
