#include "sim/planner/microbatch_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "model/to_size.h"
#include "sim/engine/engine.h"

namespace sluice::sim {
namespace {

// Vertices to simulate, which take 1 to 3 s.
constexpr double kVerticesToSimulate = 1e8;

// A priced graph whose microbatches can change places.
class Reordered {
 public:
  Reordered(const OpGraph& graph, const Prices& prices) : graph_(graph), rows_(graph), prices_(prices) {
    const auto microbatches = to_size(graph.schedule().total_microbatches());
    times_.assign(rows_.count() * microbatches, Duration{0});
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (rows_.of(v) == MicrobatchRows::kNone) continue;
      times_[rows_.of(v) * microbatches + to_size(graph[v].microbatch)] = prices.duration[v];
    }
  }

  Duration makespan(const std::vector<int>& order) {
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (rows_.of(v) == MicrobatchRows::kNone) continue;
      prices_.duration[v] = times_[rows_.of(v) * order.size() + to_size(order[to_size(graph_[v].microbatch)])];
    }
    ++tried_;
    const Timeline timeline = simulate(graph_, prices_);
    return *std::max_element(timeline.end.begin(), timeline.end.end());
  }

  std::int64_t tried() const { return tried_; }

 private:
  const OpGraph& graph_;
  MicrobatchRows rows_;
  Prices prices_;
  std::vector<Duration> times_;  // by row and microbatch
  std::int64_t tried_ = 0;
};

// The number of orders that differ, or more than `most`.
double distinct_orders(const std::vector<int>& kind, double most) {
  std::map<int, int> seen;
  double orders = 1;
  for (std::size_t i = 0; i < kind.size() && orders <= most; ++i) {
    orders *= static_cast<double>(i + 1) / ++seen[kind[i]];
  }
  return orders;
}

class MicrobatchSearch {
 public:
  MicrobatchSearch(const OpGraph& graph, const Prices& prices, const std::vector<int>& kind,
                   const std::vector<double>& work)
      : kind_(kind), run_(graph, prices), most_orders_(kVerticesToSimulate / static_cast<double>(graph.size())) {
    given_.resize(kind.size());
    std::iota(given_.begin(), given_.end(), 0);
    ascending_ = given_;
    std::stable_sort(ascending_.begin(), ascending_.end(),
                     [&](int a, int b) { return work[to_size(a)] < work[to_size(b)]; });
  }

  FoundOrder run() {
    found_ = {.order = given_, .makespan = run_.makespan(given_)};
    found_.best = distinct_orders(kind_, most_orders_) <= most_orders_;
    found_.best ? try_all() : improve_starts();
    found_.tried = run_.tried() - (found_.best ? 1 : 0);  // the given order is one of all
    return std::move(found_);
  }

 private:
  bool take_if_faster(const std::vector<int>& order, Duration makespan) {
    if (makespan >= found_.makespan) return false;
    found_.order = order;
    found_.makespan = makespan;
    return true;
  }

  void try_all() {
    const auto by_kind = [&](int a, int b) { return kind_[to_size(a)] < kind_[to_size(b)]; };
    std::vector<int> order = given_;
    std::stable_sort(order.begin(), order.end(), by_kind);
    do take_if_faster(order, run_.makespan(order));
    while (std::next_permutation(order.begin(), order.end(), by_kind));
  }

  // Best orders rise, then fall (steeply at first where the pipeline is long).
  std::vector<int> rising_then_falling(std::size_t rising) const {
    std::vector<int> order(ascending_.begin(), ascending_.begin() + static_cast<std::ptrdiff_t>(rising));
    order.insert(order.end(), ascending_.rbegin(), ascending_.rend() - static_cast<std::ptrdiff_t>(rising));
    return order;
  }
  std::vector<int> middle_heaviest() const {
    std::vector<int> order;
    for (std::size_t i = 0; i < ascending_.size(); i += 2) order.push_back(ascending_[i]);
    for (std::size_t i = ascending_.size() / 2 * 2; i > 0; i -= 2) order.push_back(ascending_[i - 1]);
    return order;
  }

  void improve_starts() {
    std::vector<std::vector<int>> starts = {given_, ascending_, middle_heaviest()};
    for (std::size_t rising = 0; rising < ascending_.size(); rising = 2 * rising + 1) {
      starts.push_back(rising_then_falling(rising));
    }
    std::vector<std::pair<Duration, std::vector<int>>> by_time;
    for (std::vector<int>& order : starts) {
      const Duration makespan = run_.makespan(order);
      take_if_faster(order, makespan);
      by_time.emplace_back(makespan, std::move(order));
    }
    std::stable_sort(by_time.begin(), by_time.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [makespan, order] : by_time) improve(std::move(order), makespan);
  }

  bool may_try() const { return static_cast<double>(run_.tried()) < most_orders_; }

  // Exchanges two microbatches, or moves one, while that helps.
  void improve(std::vector<int> order, Duration makespan) {
    for (bool improved = true; improved && may_try();) {
      improved = false;
      for (std::size_t i = 0; i < order.size(); ++i) {
        for (std::size_t j = 0; j < order.size() && may_try(); ++j) {
          if (i == j) continue;
          std::vector<int> other = order;
          const auto at = other.begin();
          const auto from = static_cast<std::ptrdiff_t>(i);
          const auto to = static_cast<std::ptrdiff_t>(j);
          if (i < j) std::swap(other[i], other[j]);
          if (i > j) std::rotate(at + to, at + from, at + from + 1);
          improved = keep_if_faster(order, std::move(other), makespan) || improved;
          if (i >= j) continue;
          other = order;
          std::rotate(other.begin() + from, other.begin() + from + 1, other.begin() + to + 1);
          improved = keep_if_faster(order, std::move(other), makespan) || improved;
        }
      }
    }
  }

  bool keep_if_faster(std::vector<int>& order, std::vector<int> other, Duration& makespan) {
    const Duration found = run_.makespan(other);
    if (found >= makespan) return false;
    makespan = found;
    order = std::move(other);
    take_if_faster(order, found);
    return true;
  }

  const std::vector<int>& kind_;
  Reordered run_;
  double most_orders_;
  std::vector<int> given_;
  std::vector<int> ascending_;
  FoundOrder found_;
};

}  // namespace

MicrobatchRows::MicrobatchRows(const OpGraph& graph) {
  std::map<std::tuple<VertexKind, OpKind, int, int, LaneId, OpKind, int, int>, std::uint32_t> known;
  rows_.assign(graph.size(), kNone);
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind == VertexKind::collective || vertex.kind == VertexKind::optimizer) continue;
    const Vertex& other = vertex.kind == VertexKind::joint ? graph.joint_partner(vertex) : vertex;
    const auto [entry, added] = known.try_emplace(
        {vertex.kind, vertex.op, vertex.stage, vertex.slice, vertex.lane, other.op, other.stage, other.slice},
        static_cast<std::uint32_t>(known.size()));
    rows_[v] = entry->second;
  }
  count_ = known.size();
}

FoundOrder best_order(const OpGraph& graph, const Prices& prices, const std::vector<int>& kind,
                      const std::vector<double>& work) {
  return MicrobatchSearch(graph, prices, kind, work).run();
}

}  // namespace sluice::sim
