#include "model/cost/price.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "model/cost/op_classes.h"
#include "model/errors.h"
#include "model/graph/links.h"
#include "model/graph/offload.h"

namespace sluice::model {
namespace {

constexpr Duration kUnpriced{-1};
constexpr double kLongestNanoseconds = 4e18;

// Prices by class: ops of one kind, shape and slice take the same time on stages with the same contents.
class Pricing {
 public:
  Pricing(const OpGraph& graph, const CostModel& cost)
      : graph_(graph),
        schedule_(graph.schedule()),
        cost_(cost),
        classes_(schedule_, cost),
        compute_(classes_.count(), kUnpriced),
        recompute_(classes_.count(), kUnpriced),
        transfer_(classes_.count() * static_cast<std::size_t>(schedule_.num_routes()), kUnpriced),
        joint_(classes_.count()) {}

  Prices run(const LinkSharing* sharing) {
    Prices prices;
    prices.duration.resize(graph_.size());
    for (VertexId v = 0; v < graph_.size(); ++v) prices.duration[v] = duration(v);
    for (const Lane& lane : graph_.lanes()) {
      prices.lane_latency.push_back(lane.kind == LaneKind::link ? latency(lane) : Duration{0});
    }
    prices.sharing = sharing != nullptr ? *sharing : sharing_of_links();
    check_total(graph_, prices);
    check_rounding(prices);
    return prices;
  }

 private:
  LinkSharing sharing_of_links() const {
    std::vector<LinkEnds> links;
    for (const Lane& lane : graph_.lanes()) {
      if (lane.kind == LaneKind::link) links.push_back({lane.rank, lane.peer});
    }
    const auto vertices = graph_.vertices();
    const bool reduces = std::any_of(vertices.begin(), vertices.end(), [&](const Vertex& vertex) {
      return vertex.kind == VertexKind::collective && is_data_collective(graph_, vertex);
    });
    for (int rank = 0; reduces && rank < schedule_.num_ranks(); ++rank) links.push_back({rank, rank});
    return cost_.sharing(links);
  }

  // Queries the cost model. A transfer takes the time for which it occupies its lane.
  double seconds(VertexId v) const {
    const Vertex& vertex = graph_[v];
    switch (vertex.kind) {
      case VertexKind::compute:
        return cost_.compute_s(vertex.op, vertex.stage, schedule_.shape(vertex.microbatch), vertex.slice);
      case VertexKind::recompute:
        return cost_.recompute_s(vertex.stage, schedule_.shape(vertex.microbatch), vertex.slice);
      case VertexKind::joint: {
        const auto [forward, backward] = halves(v);
        return cost_.joint_s(forward.stage, schedule_.shape(forward.microbatch), forward.slice, backward.op,
                             backward.stage, schedule_.shape(backward.microbatch), backward.slice);
      }
      case VertexKind::transfer: {
        const Lane& lane = graph_.lanes()[vertex.lane];
        return cost_.transfer(lane.rank, lane.peer, graph_.transfer_bytes(vertex)).occupied_s;
      }
      case VertexKind::collective: {
        const Collective collective = graph_.collective(vertex);
        return cost_.collective_s(collective.kind, collective.stage, collective.bytes);
      }
      case VertexKind::optimizer: return cost_.optimizer_s(vertex.stage);
      case VertexKind::offload: {
        const MicrobatchShape& shape = schedule_.shape(vertex.microbatch);
        const SliceBytes& bytes = graph_.slice_bytes(vertex.stage, vertex.microbatch, vertex.slice);
        return cost_.host_copy_s(vertex.stage, shape, vertex.slice, stored_bytes(bytes, shape.num_slices()).sum()) *
               vertex.extra / kOffloadUnit;
      }
    }
    return 0;
  }

  // Returns the rounded time, which is queried once per class.
  Duration duration(VertexId v) {
    const Vertex& vertex = graph_[v];
    Duration* known = nullptr;
    switch (vertex.kind) {
      case VertexKind::compute: known = &compute_[classes_.of(vertex)]; break;
      case VertexKind::recompute: known = &recompute_[classes_.of(vertex)]; break;
      case VertexKind::joint:
        return joint_.find(classes_.of(vertex), classes_.of(graph_.joint_partner(vertex)),
                           [&] { return rounded(seconds(v), v); });
      case VertexKind::transfer: {
        const auto route = static_cast<std::size_t>(schedule_.route(vertex.microbatch));
        known = &transfer_[route * classes_.count() + classes_.on_its_stage(vertex)];
        break;
      }
      case VertexKind::collective:
      case VertexKind::optimizer:
      case VertexKind::offload: return rounded(seconds(v), v);
    }
    if (*known == kUnpriced) *known = rounded(seconds(v), v);
    return *known;
  }

  // The F and the B (or I) of a joint block.
  std::pair<const Vertex&, const Vertex&> halves(VertexId v) const {
    const Vertex& first = graph_[v];
    const Vertex& second = graph_.joint_partner(first);
    if (first.op == OpKind::F) return {first, second};
    return {second, first};
  }

  // Queries every vertex again only if the times are short.
  void check_rounding(const Prices& prices) const {
    const Duration sum = std::accumulate(prices.duration.begin(), prices.duration.end(), Duration{0});
    if (RoundingError::negligible(sum, 2.0 * graph_.size())) return;  // a duration and a latency per vertex
    RoundingError error;
    for (VertexId v = 0; v < graph_.size(); ++v) {
      error.add(seconds(v), prices.duration[v]);
      if (graph_[v].kind != VertexKind::transfer) continue;
      const Lane& lane = graph_.lanes()[graph_[v].lane];
      error.add(cost_.transfer(lane.rank, lane.peer, 0).latency_s, prices.lane_latency[graph_[v].lane]);
    }
    error.check("the ops");
  }

  static bool in_range(double seconds) { return seconds >= 0.0 && seconds <= 1e8; }

  Duration rounded(double seconds, VertexId v) const {
    if (!in_range(seconds)) return from_seconds(seconds, graph_.name(v));  // throws, naming the op
    return from_seconds(seconds, "op");
  }

  Duration latency(const Lane& lane) const {
    const double seconds = cost_.transfer(lane.rank, lane.peer, 0).latency_s;
    if (in_range(seconds)) return from_seconds(seconds, "latency");
    return from_seconds(seconds, fmt::format("latency from rank {} to rank {}", lane.rank, lane.peer));
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
  const CostModel& cost_;
  OpClasses classes_;
  std::vector<Duration> compute_;
  std::vector<Duration> recompute_;
  std::vector<Duration> transfer_;
  ClassPairs<Duration> joint_;
};

}  // namespace

Prices price(const OpGraph& graph, const CostModel& cost) { return Pricing(graph, cost).run(nullptr); }

Prices price(const OpGraph& graph, const CostModel& cost, const LinkSharing& sharing) {
  return Pricing(graph, cost).run(&sharing);
}

void check_total(const OpGraph& graph, const Prices& prices) {
  double sum = 0;  // upper bound of every path
  for (const Duration duration : prices.duration) sum += static_cast<double>(duration.count());
  for (const Duration latency : prices.lane_latency) sum += static_cast<double>(latency.count()) * graph.size();
  if (sum > kLongestNanoseconds) {
    throw InputError(fmt::format("the ops take up to {:.0f} years in all: more nanoseconds than fit in 64 bits",
                                 sum / 1e9 / 86400 / 365));
  }
}

}  // namespace sluice::model
