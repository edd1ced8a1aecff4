#include "model/cost/price.h"

#include <fmt/format.h>

#include <cmath>

#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr Duration kUnpriced{-1};
constexpr double kLongestNanoseconds = 4e18;

// Prices by class: ops of one kind, shape and slice take the same time on stages with the same contents.
class Pricing {
 public:
  Pricing(const OpGraph& graph, const CostModel& cost) : graph_(graph), schedule_(graph.schedule()), cost_(cost) {
    for (const MicrobatchShape& shape : schedule_.shapes()) {
      shape_offset_.push_back(slices_);
      slices_ += static_cast<std::size_t>(shape.num_slices());
    }
    const std::size_t classes = slices_ * static_cast<std::size_t>(schedule_.num_stages());
    compute_.assign(4 * classes, kUnpriced);
    recompute_.assign(classes, kUnpriced);
    transfer_.assign(2 * classes * static_cast<std::size_t>(schedule_.num_routes()), kUnpriced);
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) alike_.push_back(cost_.alike(stage));
    joint_.resize(schedule_.num_ranks());
  }

  Prices run(const LinkSharing* sharing) {
    Prices prices;
    prices.duration.resize(graph_.size());
    for (VertexId v = 0; v < graph_.size(); ++v) prices.duration[v] = duration(v);
    for (const Lane& lane : graph_.lanes()) {
      prices.lane_latency.push_back(
          lane.kind == LaneKind::link
              ? from_seconds(cost_.transfer(lane.rank, lane.peer, 0).latency_s,
                             fmt::format("latency from rank {} to rank {}", lane.rank, lane.peer))
              : Duration{0});
    }
    prices.sharing = sharing != nullptr ? *sharing : sharing_of_links();
    check_total(graph_, prices);
    return prices;
  }

 private:
  LinkSharing sharing_of_links() const {
    std::vector<LinkEnds> links;
    for (const Lane& lane : graph_.lanes()) {
      if (lane.kind == LaneKind::link) links.push_back({lane.rank, lane.peer});
    }
    return cost_.sharing(links);
  }

  // Duration of a joint block; ranks repeat the same pairing, so the last result is usually the right one.
  struct Joint {
    std::size_t forward = ~std::size_t{0};
    std::size_t backward = ~std::size_t{0};
    OpKind kind = OpKind::B;
    Duration duration{};
  };

  std::size_t class_of(const Vertex& vertex) const { return class_of(vertex, vertex.stage); }
  // Of ops that take as long.
  std::size_t price_class_of(const Vertex& vertex) const { return class_of(vertex, alike_[vertex.stage]); }
  std::size_t class_of(const Vertex& vertex, int stage) const {
    const auto offset = shape_offset_[schedule_.shape_index(vertex.microbatch)];
    return static_cast<std::size_t>(stage) * slices_ + offset + static_cast<std::size_t>(vertex.slice);
  }

  Duration duration(VertexId v) {
    const Vertex& vertex = graph_[v];
    switch (vertex.kind) {
      case VertexKind::compute: {
        Duration& known = compute_[4 * price_class_of(vertex) + static_cast<std::size_t>(vertex.op)];
        if (known == kUnpriced) {
          known =
              rounded(cost_.compute_s(vertex.op, vertex.stage, schedule_.shape(vertex.microbatch), vertex.slice), v);
        }
        return known;
      }
      case VertexKind::recompute: {
        Duration& known = recompute_[price_class_of(vertex)];
        if (known == kUnpriced) {
          known = rounded(cost_.recompute_s(vertex.stage, schedule_.shape(vertex.microbatch), vertex.slice), v);
        }
        return known;
      }
      case VertexKind::joint: return joint(v);
      case VertexKind::transfer: {
        const auto route = static_cast<std::size_t>(schedule_.route(vertex.microbatch));
        const std::size_t classes = slices_ * static_cast<std::size_t>(schedule_.num_stages());
        Duration& known = transfer_[2 * (route * classes + class_of(vertex)) + (vertex.op == OpKind::F ? 0 : 1)];
        if (known == kUnpriced) {
          const Lane& lane = graph_.lanes()[vertex.lane];
          known = rounded(cost_.transfer(lane.rank, lane.peer, graph_.transfer_bytes(vertex)).occupied_s, v);
        }
        return known;
      }
      case VertexKind::collective: {
        const Collective collective = graph_.collective(vertex);
        return rounded(cost_.collective_s(collective.kind, collective.stage, collective.bytes), v);
      }
      case VertexKind::optimizer: return rounded(cost_.optimizer_s(vertex.stage), v);
    }
    return Duration{0};
  }

  Duration joint(VertexId v) {
    const Vertex& first = graph_[v];
    const Vertex& second = graph_.joint_partner(first);
    const Vertex& forward = first.op == OpKind::F ? first : second;
    const Vertex& backward = first.op == OpKind::F ? second : first;
    Joint& last = joint_[graph_.rank_of(v)];
    if (last.forward != class_of(forward) || last.backward != class_of(backward) || last.kind != backward.op) {
      last = {class_of(forward), class_of(backward), backward.op,
              rounded(cost_.joint_s(forward.stage, schedule_.shape(forward.microbatch), forward.slice, backward.op,
                                    backward.stage, schedule_.shape(backward.microbatch), backward.slice),
                      v)};
    }
    return last.duration;
  }

  Duration rounded(double seconds, VertexId v) const {
    if (!(seconds >= 0.0 && seconds <= 1e8)) return from_seconds(seconds, graph_.name(v));  // throws, naming the op
    return from_seconds(seconds, "op");
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
  const CostModel& cost_;
  std::vector<std::size_t> shape_offset_;
  std::vector<int> alike_;
  std::size_t slices_ = 0;  // over all shapes
  std::vector<Duration> compute_;
  std::vector<Duration> recompute_;
  std::vector<Duration> transfer_;
  std::vector<Joint> joint_;
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
