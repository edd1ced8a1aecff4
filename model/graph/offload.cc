#include "model/graph/offload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "model/graph/op_graph_data.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr int kEighths = 8;
// Forwards that are looked at, and copies that one more may shift; beyond that it is left out.
constexpr std::size_t kMostMoved = 4096;

// A forward and its backward on the clock of their rank, and their copies if `copy.part` is above 0.
struct Stored {
  OffloadCopy copy;
  int chunk = 0;
  double whole_s = 0;  // of the copy of everything, in one direction
  double most = 1;     // fraction that may be copied
  Duration begin{};    // of the forward
  Duration ready{};    // its end
  Duration needed{};   // start of the backward
  Duration end{};      // of the backward
  Duration takes{};    // of each copy
  Duration out{};      // end of the copy to the host
  Duration back{};     // start of the copy back
  bool next = false;   // the backward is the rank's next op
  bool late = false;   // the copy back does not end in time

  bool copied() const { return copy.part > 0; }
  Duration lived() const { return needed - ready; }
};

// The copies of one rank.
class RankOffload {
 public:
  RankOffload(const Schedule& schedule, int rank, const OffloadOptions& options)
      : schedule_(schedule), rank_(rank), options_(options) {
    read_list();
    by_backward_.resize(stored_.size());
    std::iota(by_backward_.begin(), by_backward_.end(), std::size_t{0});
    std::sort(by_backward_.begin(), by_backward_.end(),
              [&](std::size_t a, std::size_t b) { return stored_[a].copy.backward < stored_[b].copy.backward; });
    place_backward_.resize(stored_.size());
    for (std::size_t i = 0; i < by_backward_.size(); ++i) place_backward_[by_backward_[i]] = i;
  }

  std::vector<OffloadCopy> run() {
    const std::vector<int> chunks = longest_first();
    if (options_.fraction) {
      take_fraction(chunks);
      time_all();
    } else {
      for (const int chunk : chunks) take_free(chunk);
    }
    std::vector<OffloadCopy> out;
    for (const Stored& stored : stored_) {
      if (!stored.copied()) continue;
      out.push_back(stored.copy);
      out.back().after = last_before(stored);
    }
    return out;
  }

 private:
  void read_list() {
    const auto list = schedule_.ops(rank_);
    std::map<std::tuple<int, int, int>, std::size_t> open;  // forwards, by (stage, microbatch, slice)
    Duration now{};
    std::size_t previous = ~std::size_t{0};  // the position at which the block before starts
    for (std::size_t i = 0; i < list.size();) {
      const Op* const partner = list[i].joined ? &list[i + 1] : nullptr;
      const Duration end = now + compute(list[i], partner);
      const std::size_t after = i + (partner == nullptr ? 1 : 2);
      for (std::size_t k = i; k < after; ++k) {
        ends_.push_back(end);
        const Op& op = list[k];
        const std::tuple key(op.stage, op.microbatch, op.slice);
        if (op.kind == OpKind::F && !schedule_.shape(op.microbatch).forward_only) {
          open[key] = stored_.size();
          stored_.push_back({.copy = {.forward = static_cast<std::uint32_t>(k)},
                             .chunk = schedule_.chunk_of(rank_, op.stage),
                             .whole_s = options_.copy_s(schedule_, op),
                             .most = options_.most ? options_.most(schedule_, op) : 1,
                             .begin = now,
                             .ready = end});
        } else if (op.kind == OpKind::B || op.kind == OpKind::I) {
          Stored& stored = stored_[open.at(key)];
          open.erase(open.find(key));
          stored.copy.backward = static_cast<std::uint32_t>(k);
          stored.needed = now;
          stored.end = end;
          stored.next = stored.copy.forward >= previous;
        }
      }
      previous = i;
      i = after;
      now = end;
    }
  }

  Duration compute(const Op& op, const Op* partner) {
    const auto key_of = [&](const Op& of) {
      return std::tuple(of.kind, of.stage, schedule_.shape_index(of.microbatch), of.slice);
    };
    const std::pair key(
        key_of(op), partner == nullptr ? std::tuple(op.kind, std::int16_t{-1}, 0, std::int16_t{0}) : key_of(*partner));
    const auto [found, added] = times_.try_emplace(key);
    if (added) found->second = from_seconds(options_.compute_s(schedule_, op, partner), "op");
    return found->second;
  }

  // The chunks by the mean time for which they hold an activation, the longest first.
  std::vector<int> longest_first() const {
    std::map<int, std::pair<double, int>> lived;
    for (const Stored& stored : stored_) {
      auto& [sum, count] = lived[stored.chunk];
      sum += static_cast<double>(stored.lived().count());
      ++count;
    }
    std::vector<int> out;
    for (const auto& [chunk, times] : lived) out.push_back(chunk);
    const auto mean = [&](int chunk) { return lived.at(chunk).first / lived.at(chunk).second; };
    std::stable_sort(out.begin(), out.end(), [&](int a, int b) { return mean(a) > mean(b); });
    return out;
  }

  static void set_part(Stored& stored, double fraction) {
    stored.copy.part = static_cast<std::uint32_t>(std::llround(std::clamp(fraction, 0.0, 1.0) * kOffloadUnit));
    stored.takes = offload_time(stored.whole_s, stored.copy.part);
  }

  void take_fraction(const std::vector<int>& chunks) {
    double all = 0;
    for (const Stored& stored : stored_) all += stored.whole_s;
    const auto weight = [&](const Stored& stored) { return all > 0 ? stored.whole_s : 1; };
    double left = *options_.fraction * (all > 0 ? all : static_cast<double>(stored_.size()));
    for (const int chunk : chunks) {
      double of_chunk = 0;
      for (const Stored& stored : stored_) of_chunk += stored.chunk == chunk ? weight(stored) : 0;
      const double part = of_chunk > 0 ? std::min(1.0, left / of_chunk) : 0;
      left -= part * of_chunk;
      for (Stored& stored : stored_) {
        if (stored.chunk == chunk && !stored.next) set_part(stored, std::min(part, stored.most));
      }
    }
  }

  // Copies all that has a part: to the host immediately, and back as late as possible, or immediately if that is too
  // late.
  void time_all() {
    Duration free{};
    for (Stored& stored : stored_) {
      if (stored.copied()) free = stored.out = std::max(free, stored.ready) + stored.takes;
    }
    Duration later = Duration::max();
    for (auto i = by_backward_.rbegin(); i != by_backward_.rend(); ++i) {
      Stored& stored = stored_[*i];
      if (!stored.copied()) continue;
      const Duration latest = std::min(later, stored.needed) - stored.takes;
      stored.late = latest < stored.out;
      later = stored.back = std::max(latest, stored.out);
    }
  }

  // Copies of a chunk's activations the eighths that leave the least peak.
  void take_free(int chunk) {
    const std::vector<Stored> before = stored_;
    std::vector<Stored> best = before;
    double least = peak();
    for (int eighths = kEighths; eighths > 0; --eighths) {
      stored_ = before;
      for (std::size_t i = 0; i < stored_.size(); ++i) {
        Stored& stored = stored_[i];
        if (stored.chunk != chunk || stored.next) continue;
        set_part(stored, stored.most * eighths / kEighths);
        if (stored.copied() && !fits(i)) stored.copy.part = 0;
      }
      const double now = peak();
      const bool costs_nothing = least == 0 && eighths == kEighths;
      if (now >= least && !costs_nothing) continue;
      least = now;
      best = stored_;
    }
    stored_ = std::move(best);
  }

  // Adds the copies of `stored_[added]` to those in their lanes, and moves others where that lets all end in time.
  bool fits(std::size_t added) {
    std::vector<std::tuple<std::size_t, Duration, Duration>> moved;  // with the times before
    const auto keep = [&](std::size_t i) { moved.emplace_back(i, stored_[i].out, stored_[i].back); };
    Stored& stored = stored_[added];
    keep(added);
    Duration free{};
    std::size_t passed = 0;
    for (std::size_t i = added; i-- > 0 && passed < kMostMoved; ++passed) {
      if (!stored_[i].copied()) continue;
      free = stored_[i].out;
      break;
    }
    free = stored.out = std::max(free, stored.ready) + stored.takes;
    for (std::size_t i = added + 1; i < stored_.size() && moved.size() < kMostMoved; ++i) {
      Stored& other = stored_[i];
      if (!other.copied()) continue;
      if (other.out - other.takes >= free) break;
      keep(i);
      free = other.out = free + other.takes;
    }
    const std::size_t place = place_backward_[added];
    Duration later = Duration::max();
    for (std::size_t i = place + 1; i < by_backward_.size() && passed < kMostMoved; ++i, ++passed) {
      if (!stored_[by_backward_[i]].copied()) continue;
      later = stored_[by_backward_[i]].back;
      break;
    }
    later = stored.back = std::min(later, stored.needed) - stored.takes;
    for (std::size_t i = place; i-- > 0 && moved.size() < kMostMoved;) {
      Stored& other = stored_[by_backward_[i]];
      if (!other.copied()) continue;
      if (other.back + other.takes <= later) break;
      keep(by_backward_[i]);
      later = other.back = later - other.takes;
    }
    const bool all = passed < kMostMoved && moved.size() < kMostMoved &&
                     std::all_of(moved.begin(), moved.end(), [&](const auto& each) {
                       const Stored& of = stored_[std::get<0>(each)];
                       return of.out <= of.back;
                     });
    if (all) return true;
    for (auto each = moved.rbegin(); each != moved.rend(); ++each) {
      std::tie(stored_[std::get<0>(*each)].out, stored_[std::get<0>(*each)].back) =
          std::pair(std::get<1>(*each), std::get<2>(*each));
    }
    return false;
  }

  // The most that the rank holds on its clock, in seconds of copies. At the same time, ends come before starts.
  double peak() const {
    std::vector<std::pair<Duration, double>> changes;
    for (const Stored& stored : stored_) {
      changes.emplace_back(stored.begin, stored.whole_s);
      changes.emplace_back(stored.end, -stored.whole_s);
      if (!stored.copied()) continue;
      const double part = stored.whole_s * stored.copy.part / kOffloadUnit;
      const std::uint32_t after = last_before(stored);
      changes.emplace_back(stored.out, -part);
      changes.emplace_back(std::max(stored.out, after == OffloadCopy::kNone ? Duration{} : ends_[after]), part);
    }
    std::sort(changes.begin(), changes.end());
    double held = 0;
    double most = 0;
    for (const auto& [time, change] : changes) most = std::max(most, held += change);
    return most;
  }

  // The last op that has ended when the copy back starts.
  std::uint32_t last_before(const Stored& stored) const {
    if (stored.late) return OffloadCopy::kNone;
    const auto end = ends_.begin() + stored.copy.backward;
    const auto found = std::upper_bound(ends_.begin(), end, stored.back);
    auto position = static_cast<std::uint32_t>(found - ends_.begin());
    const auto list = schedule_.ops(rank_);
    // The first half of the block of the backward does not end before it.
    if (position == stored.copy.backward && position > 0 && list[position - 1].joined) --position;
    if (position == 0 || position - 1 < stored.copy.forward) return OffloadCopy::kNone;
    return position - 1;
  }

  const Schedule& schedule_;
  int rank_;
  const OffloadOptions& options_;
  std::vector<Duration> ends_;               // by position
  std::vector<Stored> stored_;               // by forward
  std::vector<std::size_t> by_backward_;     // places in stored_
  std::vector<std::size_t> place_backward_;  // of each in by_backward_
  using OpKey = std::tuple<OpKind, std::int16_t, int, std::int16_t>;
  std::map<std::pair<OpKey, OpKey>, Duration> times_;
};

// Rewrites a graph with the copies inserted. In the order of the vertices, a copy follows its forward or precedes what
// waits for it, so the numbers stay a topological order.
class Insertion {
 public:
  Insertion(OpGraph::Data& graph, const std::vector<std::vector<OffloadCopy>>& plan, int window)
      : graph_(graph),
        window_(to_size(window)),
        number_(graph.vertices.size()),
        out_(plan.size()),
        back_(plan.size()),
        ops_(plan.size()) {
    const Schedule& schedule = *graph.schedule;
    for (std::size_t rank = 0; rank < plan.size(); ++rank) {
      if (plan[rank].empty()) continue;
      const std::size_t size = schedule.ops(static_cast<int>(rank)).size();
      out_[rank].assign(size, nullptr);
      back_[rank].assign(size, nullptr);
      ops_[rank].assign(size, 0);
      for (const OffloadCopy& copy : plan[rank]) {
        out_[rank][copy.forward] = &copy;
        back_[rank][copy.backward] = &copy;
      }
      copied_[rank].assign(size, 0);
      for (const LaneKind kind : {LaneKind::to_host, LaneKind::from_host}) {
        lanes_[rank].push_back(static_cast<LaneId>(graph.lanes.size()));
        graph.lanes.push_back({kind, static_cast<int>(rank), -1});
      }
      last_[rank] = {kNoVertex, kNoVertex};
    }
  }

  void run() {
    const Schedule& schedule = *graph_.schedule;
    std::vector<std::size_t> next(ops_.size(), 0);  // by rank: position in its list
    for (VertexId v = 0; v < graph_.vertices.size(); ++v) {
      const Vertex& vertex = graph_.vertices[v];
      const auto rank = to_size(graph_.lanes[to_size(vertex.lane)].rank);
      const bool repeats = vertex.kind == VertexKind::recompute;
      const bool op = repeats || vertex.kind == VertexKind::compute || vertex.kind == VertexKind::joint;
      const bool copies = op && !ops_[rank].empty();
      std::vector<VertexId> arrived;
      // A recomputation has the position of the op after it.
      const std::size_t first = next[rank];
      const std::size_t end = !op ? first : first + (vertex.kind == VertexKind::joint || in_block(rank, first) ? 2 : 1);
      for (std::size_t i = first; copies && i < end; ++i) {
        if (back_[rank][i] == nullptr) continue;
        arrived.push_back(copy_back(rank, *back_[rank][i]));
        back_[rank][i] = nullptr;
      }
      // Forwards wait for the copies of those before.
      for (std::size_t i = first; copies && window_ > 0 && !repeats && i < end; ++i) {
        const std::vector<VertexId>& done = ended_[rank];
        if (out_[rank][i] != nullptr && done.size() >= window_) arrived.push_back(done[done.size() - window_]);
      }
      number_[v] = add_old(v, arrived);
      if (!op || repeats) continue;
      for (std::size_t i = first; copies && i < end; ++i) {
        ops_[rank][i] = number_[v];
        if (out_[rank][i] != nullptr) copy_out(rank, *out_[rank][i], schedule.ops(static_cast<int>(rank))[i]);
      }
      next[rank] = end;
    }
    graph_.vertices = std::move(vertices_);
    graph_.targets = std::move(targets_);
    graph_.offsets = std::move(offsets_);
  }

 private:
  static constexpr VertexId kNoVertex = ~VertexId{0};

  bool in_block(std::size_t rank, std::size_t position) const {
    const auto list = graph_.schedule->ops(static_cast<int>(rank));
    return position < list.size() && list[position].joined;
  }

  VertexId add(const Vertex& vertex) {
    vertices_.push_back(vertex);
    offsets_.push_back(static_cast<std::uint32_t>(targets_.size()));
    return static_cast<VertexId>(vertices_.size() - 1);
  }

  // The copies that have arrived precede the order edge, which is last.
  VertexId add_old(VertexId v, const std::vector<VertexId>& arrived) {
    const Vertex& vertex = graph_.vertices[v];
    for (std::uint32_t i = graph_.offsets[v]; i < graph_.offsets[v + 1]; ++i) {
      const bool order = i + 1 == graph_.offsets[v + 1] && graph_.vertices[graph_.targets[i]].lane == vertex.lane;
      if (order) targets_.insert(targets_.end(), arrived.begin(), arrived.end());
      targets_.push_back(number_[graph_.targets[i]]);
      if (!order && i + 1 == graph_.offsets[v + 1]) targets_.insert(targets_.end(), arrived.begin(), arrived.end());
    }
    return add(vertex);
  }

  VertexId add_copy(std::size_t rank, const Op& op, OpKind kind, const OffloadCopy& copy) {
    const std::size_t direction = kind == OpKind::F ? 0 : 1;
    VertexId& last = last_[rank][direction];
    if (last != kNoVertex) targets_.push_back(last);
    last = add({.microbatch = op.microbatch,
                .stage = op.stage,
                .slice = op.slice,
                .op = kind,
                .kind = VertexKind::offload,
                .lane = lanes_[rank][direction],
                .extra = copy.part});
    return last;
  }

  void copy_out(std::size_t rank, const OffloadCopy& copy, const Op& op) {
    targets_.push_back(ops_[rank][copy.forward]);
    copied_[rank][copy.forward] = add_copy(rank, op, OpKind::F, copy);
    if (window_ > 0) ended_[rank].push_back(copied_[rank][copy.forward]);
  }

  VertexId copy_back(std::size_t rank, const OffloadCopy& copy) {
    targets_.push_back(copied_[rank][copy.forward]);
    if (copy.after != OffloadCopy::kNone) targets_.push_back(ops_[rank][copy.after]);
    return add_copy(rank, graph_.schedule->ops(static_cast<int>(rank))[copy.forward], OpKind::B, copy);
  }

  OpGraph::Data& graph_;
  std::size_t window_;
  std::map<std::size_t, std::vector<VertexId>> ended_;   // copies to the host, by rank
  std::vector<VertexId> number_;                         // by vertex of the graph before
  std::vector<std::vector<const OffloadCopy*>> out_;     // by rank and position of the forward
  std::vector<std::vector<const OffloadCopy*>> back_;    // by rank and position of the backward
  std::vector<std::vector<VertexId>> ops_;               // by rank and position
  std::map<std::size_t, std::vector<VertexId>> copied_;  // by rank and position of the forward
  std::map<std::size_t, std::vector<LaneId>> lanes_;
  std::map<std::size_t, std::array<VertexId, 2>> last_;
  std::vector<Vertex> vertices_;
  std::vector<VertexId> targets_;
  std::vector<std::uint32_t> offsets_ = {0};
};

}  // namespace

OffloadBytes stored_bytes(const SliceBytes& bytes, int num_slices) {
  return {.activations = bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient,
          .keys_values = num_slices == 1 ? bytes.keys_values : 0};
}

Duration offload_time(double whole_s, std::uint32_t part) {
  return from_seconds(whole_s * part / kOffloadUnit, "copy between device and host");
}

std::vector<std::vector<OffloadCopy>> plan_offload(const Schedule& schedule, const OffloadOptions& options) {
  std::vector<std::vector<OffloadCopy>> out;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) out.push_back(RankOffload(schedule, rank, options).run());
  return out;
}

void add_offload(OpGraph::Data& graph, const OffloadOptions& options) {
  refuse_vocabulary(*graph.schedule, "activations are not offloaded beside them");
  const std::vector<std::vector<OffloadCopy>> plan = plan_offload(*graph.schedule, options);
  if (std::all_of(plan.begin(), plan.end(), [](const auto& copies) { return copies.empty(); })) return;
  Insertion(graph, plan, options.window).run();
}

}  // namespace sluice::model
