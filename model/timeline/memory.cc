#include "model/timeline/memory.h"

#include <algorithm>
#include <memory>
#include <numeric>

namespace sluice {
namespace {

std::size_t slot(MemoryClass c) { return static_cast<std::size_t>(c); }

struct Served {
  Duration start{};
  Duration end{};
  Vertex vertex;
  VertexId id = 0;
};

// Follows one rank's memory through its events.
class Account {
 public:
  Account(const BytesByClass& held, bool keep) : keep_(keep), held_(held) {
    memory_.peak_bytes = total(held_);
    memory_.at_peak = held_;
    if (keep_) memory_.samples.push_back({Duration{0}, held_});
  }

  void apply(Duration time, const BytesByClass& delta) {
    for (std::size_t i = 0; i < delta.size(); ++i) held_[i] += delta[i];
    const std::int64_t sum = total(held_);
    if (sum > memory_.peak_bytes) {
      memory_.peak_bytes = sum;
      memory_.peak_time = time;
      memory_.at_peak = held_;
    }
    if (!keep_) return;
    if (memory_.samples.back().time == time) {
      memory_.samples.back().bytes = held_;
    } else if (memory_.samples.back().bytes != held_) {
      memory_.samples.push_back({time, held_});
    }
  }

  RankMemory take() { return std::move(memory_); }

 private:
  bool keep_;
  BytesByClass held_;
  RankMemory memory_;
};

class Changes {
 public:
  explicit Changes(const OpGraph& graph) : graph_(graph), schedule_(graph.schedule()) {}

  // What `vertex` takes when it starts and gives back when it ends, on the rank of its compute lane.
  void of_compute(const Vertex& vertex, BytesByClass& start, BytesByClass& end) const {
    add(vertex, start, end);
    if (vertex.kind == VertexKind::joint) add(graph_.joint_partner(vertex), start, end);
  }

  // The receive buffer that the op takes over when it starts (made part of its stored input, or read at once).
  std::int64_t received(const Vertex& vertex) const {
    std::int64_t bytes = received_by(vertex);
    if (vertex.kind == VertexKind::joint) bytes += received_by(graph_.joint_partner(vertex));
    return bytes;
  }

 private:
  std::int64_t received_by(const Vertex& op) const {
    const bool forward = op.op == OpKind::F;
    if (op.op == OpKind::W) return 0;
    const int source = op.stage + (forward ? -1 : 1);
    if (source < 0 || source >= schedule_.num_stages()) return 0;
    if (schedule_.rank_of(source, op.microbatch) == schedule_.rank_of(op.stage, op.microbatch)) return 0;
    const SliceBytes& bytes = graph_.slice_bytes(source, op.microbatch, op.slice);
    return forward ? bytes.transfer_forward : bytes.transfer_backward;
  }

  void add(const Vertex& op, BytesByClass& start, BytesByClass& end) const {
    const SliceBytes& bytes = graph_.slice_bytes(op.stage, op.microbatch, op.slice);
    auto& activations_start = start[slot(MemoryClass::activations)];
    auto& activations_end = end[slot(MemoryClass::activations)];
    auto& keys_start = start[slot(MemoryClass::keys_values)];
    auto& keys_end = end[slot(MemoryClass::keys_values)];
    auto& buffers_start = start[slot(MemoryClass::buffers)];
    auto& buffers_end = end[slot(MemoryClass::buffers)];
    switch (op.op) {
      case OpKind::F:
        activations_start += bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient;
        keys_start += bytes.keys_values;
        buffers_start += bytes.forward_workspace;
        buffers_end -= bytes.forward_workspace;
        break;
      case OpKind::B:
        activations_end -= bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient;
        input_gradient(op, keys_start, keys_end);
        buffers_start += bytes.backward_workspace;
        buffers_end -= bytes.backward_workspace;
        break;
      case OpKind::I:
        activations_start += bytes.gradients_to_weight_gradient;
        activations_end -= bytes.activations_to_input_gradient;
        input_gradient(op, keys_start, keys_end);
        buffers_start += bytes.backward_workspace;
        buffers_end -= bytes.backward_workspace;
        break;
      case OpKind::W:
        activations_end -= bytes.activations_to_weight_gradient + bytes.gradients_to_weight_gradient;
        break;
    }
  }

  // Keys and values of the slice go when its input gradient ends; the accumulator of their gradients is there for the
  // whole sequence from its last slice's input gradient to its first's.
  void input_gradient(const Vertex& op, std::int64_t& start, std::int64_t& end) const {
    end -= graph_.slice_bytes(op.stage, op.microbatch, op.slice).keys_values;
    const int slices = schedule_.num_slices(op.microbatch);
    if (op.slice + 1 != slices && op.slice != 0) return;
    std::int64_t accumulator = 0;
    for (int i = 0; i < slices; ++i) accumulator += graph_.slice_bytes(op.stage, op.microbatch, i).keys_values_gradient;
    if (op.slice + 1 == slices) start += accumulator;
    if (op.slice == 0) end -= accumulator;
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
};

BytesByClass standing_bytes(const OpGraph& graph, int rank) {
  const Schedule& schedule = graph.schedule();
  BytesByClass held{};
  for (const int stage : schedule.stages_of(rank)) {
    const StageBytes& bytes = graph.stage_bytes(stage);
    held[slot(MemoryClass::weights)] += bytes.weights * num_weight_versions(schedule, rank);
    held[slot(MemoryClass::gradients)] += bytes.gradients;
    held[slot(MemoryClass::optimizer)] += bytes.optimizer;
  }
  return held;
}

bool any(const BytesByClass& bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [](std::int64_t b) { return b != 0; });
}

}  // namespace

std::int64_t total(const BytesByClass& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

std::vector<RankMemory> memory_over_time(const OpGraph& graph, const Timeline& timeline, bool keep_samples) {
  const int ranks = graph.schedule().num_ranks();
  std::vector<RankMemory> out;
  out.reserve(static_cast<std::size_t>(ranks));
  if (!graph.has_bytes()) {
    for (int rank = 0; rank < ranks; ++rank) out.push_back(Account({}, keep_samples).take());
    return out;
  }
  const Changes changes(graph);
  // What each lane serves, in its order, copied together: the pass below goes rank by rank, and the vertices of one
  // rank lie scattered over the graph.
  const auto lanes = graph.lanes();
  std::vector<std::size_t> lane_end(lanes.size(), 0);
  for (const Vertex& vertex : graph.vertices()) ++lane_end[static_cast<std::size_t>(vertex.lane)];
  std::exclusive_scan(lane_end.begin(), lane_end.end(), lane_end.begin(), std::size_t{0});
  const auto by_lane = std::make_unique_for_overwrite<Served[]>(graph.size());
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    by_lane[lane_end[static_cast<std::size_t>(vertex.lane)]++] = {timeline.start[v], timeline.end[v], vertex, v};
  }
  const auto served_by = [&](std::size_t lane) {
    const std::size_t begin = lane == 0 ? 0 : lane_end[lane - 1];
    return std::span<const Served>(by_lane.get() + begin, lane_end[lane] - begin);
  };
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::span<const Served>> inbound;  // what is still to arrive, by link
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      if (lanes[lane].kind == LaneKind::link && lanes[lane].peer == rank) inbound.push_back(served_by(lane));
    }
    Account account(standing_bytes(graph, rank), keep_samples);
    // Takes in the transfers that start before (time, v), earliest first.
    const auto take_arrivals = [&](Duration time, VertexId v) {
      while (true) {
        std::span<const Served>* next = nullptr;
        std::pair first(time, v);
        for (auto& link : inbound) {
          if (link.empty()) continue;
          const std::pair starts(link.front().start, link.front().id);
          if (starts < first) {
            first = starts;
            next = &link;
          }
        }
        if (next == nullptr) return;
        BytesByClass delta{};
        delta[slot(MemoryClass::buffers)] = graph.transfer_bytes(next->front().vertex);
        account.apply(first.first, delta);
        *next = next->subspan(1);
      }
    };
    for (const Served& op : served_by(static_cast<std::size_t>(graph.compute_lane(rank)))) {
      if (op.vertex.kind != VertexKind::compute && op.vertex.kind != VertexKind::joint) continue;
      BytesByClass start{};
      BytesByClass end{};
      changes.of_compute(op.vertex, start, end);
      start[slot(MemoryClass::buffers)] -= changes.received(op.vertex);
      take_arrivals(op.start, op.id);
      if (any(start)) account.apply(op.start, start);
      take_arrivals(op.end, op.id);
      if (any(end)) account.apply(op.end, end);
    }
    out.push_back(account.take());
  }
  return out;
}

}  // namespace sluice
