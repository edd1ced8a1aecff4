#include "model/timeline/memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "model/graph/fill_bytes.h"
#include "model/graph/op_graph_data.h"
#include "model/timeline/inbound.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

std::size_t slot(MemoryClass c) { return static_cast<std::size_t>(c); }

// Bytes of the classes that change while a batch runs.
struct Delta {
  std::int64_t activations = 0;
  std::int64_t keys_values = 0;
  std::int64_t buffers = 0;
  std::int64_t gradients = 0;

  std::int64_t sum() const { return activations + keys_values + buffers + gradients; }
  bool any() const { return (activations | keys_values | buffers | gradients) != 0; }
  Delta times(std::int64_t n) const { return {n * activations, n * keys_values, n * buffers, n * gradients}; }
  Delta& operator+=(const Delta& other) {
    activations += other.activations;
    keys_values += other.keys_values;
    buffers += other.buffers;
    gradients += other.gradients;
    return *this;
  }
};

// What an op allocates when it starts and frees when it ends, and the size of what it sends.
struct Change {
  Delta start;
  Delta end;
  std::int64_t sent = 0;
};

// Tracks one rank's memory through its events.
class Account {
 public:
  Account(const BytesByClass& standing, bool keep)
      : keep_(keep), standing_(standing), peak_(total(standing)), sum_(peak_) {
    if (keep_) memory_.samples.push_back({Duration{0}, standing_});
  }

  [[gnu::always_inline]] void apply(Duration time, const Delta& delta) {
    held_ += delta;
    sum_ += delta.sum();
    if (sum_ > peak_) {
      peak_ = sum_;
      memory_.peak_time = time;
      at_peak_ = held_;
    }
    if (keep_) keep(time);
  }

  // The same for changes after which less is held than at the peak.
  void apply_below_peak(const Delta& delta, std::int64_t times) {
    held_ += delta.times(times);
    sum_ += delta.sum() * times;
  }

  RankMemory take() {
    memory_.peak_bytes = peak_;
    memory_.at_peak = with(at_peak_);
    return std::move(memory_);
  }

 private:
  BytesByClass with(const Delta& held) const {
    BytesByClass bytes = standing_;
    bytes[slot(MemoryClass::activations)] += held.activations;
    bytes[slot(MemoryClass::keys_values)] += held.keys_values;
    bytes[slot(MemoryClass::buffers)] += held.buffers;
    bytes[slot(MemoryClass::gradients)] += held.gradients;
    return bytes;
  }

  void keep(Duration time) {
    const BytesByClass bytes = with(held_);
    if (memory_.samples.back().time == time) {
      memory_.samples.back().bytes = bytes;
    } else if (memory_.samples.back().bytes != bytes) {
      memory_.samples.push_back({time, bytes});
    }
  }

  bool keep_;
  BytesByClass standing_;
  Delta held_;
  Delta at_peak_;
  std::int64_t peak_;
  std::int64_t sum_;
  RankMemory memory_;
};

enum class ReceiveBuffers : std::uint8_t { counted, left_out };

// The changes of all ops, computed once per kind, stage, slice and route.
class Changes {
 public:
  explicit Changes(const OpGraph& graph, ReceiveBuffers buffers = ReceiveBuffers::counted)
      : graph_(graph), schedule_(graph.schedule()), buffers_(buffers) {
    for (const MicrobatchShape& shape : schedule_.shapes()) {
      shape_offset_.push_back(slices_);
      slices_ += static_cast<std::size_t>(shape.num_slices());
    }
    per_route_ = kKinds * slices_ * static_cast<std::size_t>(schedule_.num_stages());
    rows_.resize(per_route_ * static_cast<std::size_t>(schedule_.num_routes()));
    alike_ = schedule_.shapes().size() == 1 && schedule_.num_routes() == 1;
    known_.resize(rows_.size(), 0);
    last_blocks_.resize(schedule_.num_ranks(), {~std::uint64_t{0}, 0});
  }

  // The row of an op's change in `at`: of a compute vertex, a half of a joint one, or the op whose result a transfer
  // moves. Inlined whatever is compiled beside it: it runs once per vertex.
  [[gnu::always_inline]] std::uint32_t row_of(const Vertex& op) {
    std::size_t row = kKinds * (to_size(op.stage) * slices_ + to_size(op.slice)) + static_cast<std::size_t>(op.op);
    if (!alike_) {
      row += kKinds * shape_offset_[schedule_.shape_index(op.microbatch)] +
             to_size(schedule_.route(op.microbatch)) * per_route_;
    }
    if (known_[row] == 0) learn(row, op);
    return static_cast<std::uint32_t>(row);
  }

  // The change of a joint block: of both halves together. Ranks repeat the same pairing, so the last result is usually
  // the right one.
  std::uint32_t row_of_block(const Vertex& first, const Vertex& second) {
    const std::uint64_t pair = (std::uint64_t{row_of(first)} << 32U) | row_of(second);
    auto& [last_pair, last_row] = last_blocks_[first.lane];
    if (last_pair == pair) return last_row;
    const auto [found, added] = blocks_.try_emplace(pair, static_cast<std::uint32_t>(rows_.size()));
    if (added) {
      Change both = rows_[pair >> 32U];
      both.start += rows_[pair & 0xffffffffU].start;
      both.end += rows_[pair & 0xffffffffU].end;
      rows_.push_back(both);
    }
    last_pair = pair;
    last_row = found->second;
    return last_row;
  }
  const Change& at(std::size_t row) const { return rows_[row]; }

 private:
  static constexpr std::size_t kKinds = 8;  // kNumOpKinds or more, a power of two

  // The receive buffer that the op frees when it starts (it becomes part of its stored input, or is read immediately).
  std::int64_t received_by(const Vertex& op) const {
    const bool forward = op.op == OpKind::F;
    if (op.op == OpKind::W || op.op == OpKind::T || buffers_ == ReceiveBuffers::left_out) return 0;
    if (op.op == OpKind::S) {
      const int last = schedule_.num_stages() - 1;
      const bool here = schedule_.rank_of(last, op.microbatch) == schedule_.rank_of(op.stage, op.microbatch);
      return here ? 0 : graph_.slice_bytes(last, op.microbatch, op.slice).transfer_forward;
    }
    const int source = op.stage + (forward ? -1 : 1);
    if (source < 0 || source >= schedule_.num_stages()) return 0;
    if (schedule_.rank_of(source, op.microbatch) == schedule_.rank_of(op.stage, op.microbatch)) return 0;
    const SliceBytes& bytes = graph_.slice_bytes(source, op.microbatch, op.slice);
    return forward ? bytes.transfer_forward : bytes.transfer_backward;
  }

  [[gnu::noinline]] void learn(std::size_t row, const Vertex& op) {
    known_[row] = 1;
    rows_[row] = change_of(op);
  }

  Change change_of(const Vertex& op) const {
    const SliceBytes& bytes = graph_.slice_bytes(op.stage, op.microbatch, op.slice);
    Change change;
    // What S and T send is reduced in place.
    if (!of_vocabulary(op.op)) {
      change.sent = op.op == OpKind::F ? bytes.transfer_forward : bytes.transfer_backward;
    }
    change.start.buffers -= received_by(op);
    switch (op.op) {
      case OpKind::F:
        change.start.activations +=
            bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient + bytes.kept;
        change.start.keys_values += bytes.keys_values;
        change.start.buffers += bytes.forward_workspace;
        change.end.buffers -= bytes.forward_workspace;
        if (!schedule_.has_backward(op.stage, op.microbatch)) {
          change.end.activations -= bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient;
          change.end.keys_values -= read_no_more(op);
        }
        break;
      case OpKind::B:
        change.end.activations -= bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient;
        input_gradient(op, change);
        break;
      case OpKind::I:
        change.start.activations += bytes.gradients_to_weight_gradient;
        change.end.activations -= bytes.activations_to_input_gradient;
        input_gradient(op, change);
        break;
      case OpKind::W:
        change.end.activations -= bytes.activations_to_weight_gradient + bytes.gradients_to_weight_gradient;
        break;
      case OpKind::S: change.start.activations += bytes.vocabulary; break;
      case OpKind::T: change.end.activations -= bytes.vocabulary; break;
    }
    return change;
  }

  // Keys and values of a sequence without a backward, when its last slice has read them.
  std::int64_t read_no_more(const Vertex& op) const {
    const int slices = schedule_.num_slices(op.microbatch);
    std::int64_t all = 0;
    for (int i = 0; op.slice + 1 == slices && i < slices; ++i) {
      all += graph_.slice_bytes(op.stage, op.microbatch, i).keys_values;
    }
    return all;
  }

  // Keys and values of the slice are freed when its input gradient ends; the accumulator of their gradients exists for
  // the whole sequence, from its last slice's input gradient to its first's.
  void input_gradient(const Vertex& op, Change& change) const {
    const SliceBytes& bytes = graph_.slice_bytes(op.stage, op.microbatch, op.slice);
    change.start.buffers += bytes.backward_workspace;
    change.end.buffers -= bytes.backward_workspace;
    change.end.keys_values -= bytes.keys_values;
    const int slices = schedule_.num_slices(op.microbatch);
    if (op.slice + 1 != slices && op.slice != 0) return;
    std::int64_t accumulator = 0;
    for (int i = 0; i < slices; ++i) accumulator += graph_.slice_bytes(op.stage, op.microbatch, i).keys_values_gradient;
    if (op.slice + 1 == slices) change.start.keys_values += accumulator;
    if (op.slice == 0) change.end.keys_values -= accumulator;
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
  ReceiveBuffers buffers_;
  std::vector<std::size_t> shape_offset_;
  std::size_t slices_ = 0;     // over all shapes
  std::size_t per_route_ = 0;  // rows
  bool alike_ = false;         // all microbatches have one shape and one route
  std::vector<Change> rows_;   // of ops, then of joint blocks
  std::vector<char> known_;
  std::map<std::uint64_t, std::uint32_t> blocks_;                     // row of a pair of rows
  std::vector<std::pair<std::uint64_t, std::uint32_t>> last_blocks_;  // by rank
};

// A vertex of a lane.
struct Served {
  Duration start{};
  Duration end{};
  std::uint32_t row = 0;  // of Changes, or kNoChange
};
constexpr std::uint32_t kNoChange = ~std::uint32_t{0};

// A change that no op of the rank makes.
struct Apart {
  Duration time{};
  Delta delta;
};

// The changes of each rank's memory by copies to its host, which free what they copied when they end, and back, which
// allocate it when they start; in the order of time, frees first.
[[gnu::noinline]] std::vector<std::vector<Apart>> offload_changes(const OpGraph& graph, const Timeline& timeline) {
  std::vector<std::vector<Apart>> out(to_size(graph.schedule().num_ranks()));
  if (graph.lanes().empty() || graph.lanes().back().kind != LaneKind::from_host) return out;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::offload) continue;
    const bool frees = graph[v].op == OpKind::F;
    const OffloadBytes bytes = graph.offload_bytes(graph[v]);
    const std::int64_t sign = frees ? -1 : 1;
    out[to_size(graph.rank_of(v))].push_back(
        {frees ? timeline.end[v] : timeline.start[v],
         {.activations = sign * bytes.activations, .keys_values = sign * bytes.keys_values}});
  }
  for (std::vector<Apart>& changes : out) {
    std::stable_sort(changes.begin(), changes.end(), [](const Apart& a, const Apart& b) {
      return std::pair(a.time, a.delta.sum()) < std::pair(b.time, b.delta.sum());
    });
  }
  return out;
}

// Whether an op adds to the weights' gradients of its stage.
bool adds_to_gradients(const Vertex& op) { return op.op == OpKind::B || op.op == OpKind::W || op.op == OpKind::T; }

// `bytes_of` a stage returns its StageBytes.
template <typename BytesOf>
BytesByClass standing_on(const Schedule& schedule, int rank, const BytesOf& bytes_of) {
  BytesByClass held{};
  for (const int stage : schedule.stages_of(rank)) {
    const StageBytes& bytes = bytes_of(stage);
    held[slot(MemoryClass::weights)] += bytes.weights * num_weight_versions(schedule, rank);
    if (bytes.accumulated_gradients == 0) held[slot(MemoryClass::gradients)] += bytes.gradients;
    held[slot(MemoryClass::optimizer)] += bytes.optimizer;
    held[slot(MemoryClass::buffers)] = std::max(held[slot(MemoryClass::buffers)], bytes.scratch);
  }
  return held;
}

// Whether an op of one schedule holds and frees what an op of another does.
bool hold_alike(const Schedule& of_a, const Op& a, const Schedule& of_b, const Op& b) {
  return a.kind == b.kind && a.stage == b.stage && a.slice == b.slice && a.joined == b.joined &&
         of_a.route(a.microbatch) == of_b.route(b.microbatch) &&
         of_a.shape_index(a.microbatch) == of_b.shape_index(b.microbatch);
}

BytesByClass standing_by_class(const OpGraph& graph, int rank) {
  return standing_on(graph.schedule(), rank, [&](int stage) -> const StageBytes& { return graph.stage_bytes(stage); });
}

}  // namespace

std::int64_t total(const BytesByClass& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

std::vector<GradientSpan> gradient_spans(const OpGraph& graph, const Timeline& timeline) {
  std::vector<GradientSpan> out;
  const Schedule& schedule = graph.schedule();
  const int stages = schedule.num_stages();
  bool any = false;
  for (int stage = 0; graph.has_bytes() && stage < stages; ++stage) {
    any |= graph.stage_bytes(stage).accumulated_gradients > 0;
  }
  if (!any) return out;
  constexpr std::size_t kClosed = ~std::size_t{0};
  std::vector<std::size_t> open(to_size(schedule.num_ranks()) * to_size(stages), kClosed);
  const auto place = [&](int rank, int stage) { return to_size(rank) * to_size(stages) + to_size(stage); };
  // The ids of a rank's ops are in their order, and that of a reduction follows those of what it reduces.
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    const int rank = graph.rank_of(v);
    const auto add = [&](const Vertex& op) {
      if (!adds_to_gradients(op) || graph.stage_bytes(op.stage).accumulated_gradients == 0) return;
      std::size_t& span = open[place(rank, op.stage)];
      if (span != kClosed) return;
      span = out.size();
      out.push_back({.rank = rank, .stage = op.stage, .start = timeline.end[v]});
    };
    if (vertex.kind == VertexKind::collective) {
      const Collective collective = graph.collective(vertex);
      if (collective.kind != CollectiveKind::gradient_reduce || collective.buckets == Buckets::rest) continue;
      std::size_t& span = open[place(rank, vertex.stage)];
      if (span != kClosed) out[span].end = timeline.end[v];
      span = kClosed;
    } else if (vertex.kind == VertexKind::compute || vertex.kind == VertexKind::joint) {
      add(vertex);
      if (vertex.kind == VertexKind::joint) add(graph.joint_partner(vertex));
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const GradientSpan& a, const GradientSpan& b) {
    return std::pair(a.rank, a.start) < std::pair(b.rank, b.start);
  });
  return out;
}

std::vector<RankMemory> memory_over_time(const OpGraph& graph, const Timeline& timeline, bool keep_samples) {
  const int ranks = graph.schedule().num_ranks();
  std::vector<RankMemory> out;
  out.reserve(ranks);
  if (!graph.has_bytes()) {
    for (int rank = 0; rank < ranks; ++rank) out.push_back(Account({}, keep_samples).take());
    return out;
  }
  Changes changes(graph);
  // The vertices of each lane, in its order, copied: the pass below goes rank by rank, and the vertices of one rank are
  // scattered over the graph.
  const auto lanes = graph.lanes();
  std::vector<std::size_t> lane_end(lanes.size(), 0);
  for (const Vertex& vertex : graph.vertices()) ++lane_end[vertex.lane];
  std::exclusive_scan(lane_end.begin(), lane_end.end(), lane_end.begin(), std::size_t{0});
  const auto by_lane = std::make_unique<Served[]>(graph.size());
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    const auto row = [&] {
      switch (vertex.kind) {
        case VertexKind::compute:
        case VertexKind::transfer: return changes.row_of(vertex);
        case VertexKind::joint: return changes.row_of_block(vertex, graph.joint_partner(vertex));
        default: return kNoChange;
      }
    };
    by_lane[lane_end[vertex.lane]++] = {timeline.start[v], timeline.end[v], row()};
  }
  const auto served_by = [&](std::size_t lane) {
    const std::size_t begin = lane == 0 ? 0 : lane_end[lane - 1];
    return std::span<const Served>(by_lane.get() + begin, lane_end[lane] - begin);
  };
  std::vector<std::vector<Apart>> copies = offload_changes(graph, timeline);
  const std::vector<GradientSpan> spans = gradient_spans(graph, timeline);
  auto next_span = spans.begin();
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Apart> freed = std::move(copies[to_size(rank)]);  // with gradients, by time
    std::vector<int> reduced_stages;
    std::size_t next_freed = 0;
    std::vector<std::span<const Served>> inbound;  // still to arrive, by link
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      if (lanes[lane].kind == LaneKind::link && lanes[lane].peer == rank) inbound.push_back(served_by(lane));
    }
    Account account(standing_by_class(graph, rank), keep_samples);
    // Frees gradients that have been reduced before `time`, and makes the changes of copies.
    const auto free_reduced = [&](Duration time) {
      for (; next_freed < freed.size() && freed[next_freed].time < time; ++next_freed) {
        account.apply(freed[next_freed].time, freed[next_freed].delta);
      }
    };
    std::span<const Served>* next = nullptr;  // the link with the earliest arrival
    Duration arrival{};
    const auto find_arrival = [&] {
      arrival = Duration::max();
      for (auto& link : inbound) {
        if (link.empty() || link.front().start >= arrival) continue;
        arrival = link.front().start;
        next = &link;
      }
    };
    find_arrival();
    // Receives the transfers that start before `time`, earliest first.
    const auto take_arrivals = [&](Duration time) __attribute__((always_inline)) {
      while (arrival < time) {
        if (!freed.empty()) free_reduced(arrival + Duration{1});
        account.apply(arrival, {.buffers = changes.at(next->front().row).sent});
        *next = next->subspan(1);
        find_arrival();
      }
      if (!freed.empty()) free_reduced(time);
    };
    for (const Served& op : served_by(static_cast<std::size_t>(graph.compute_lane(rank)))) {
      if (op.row == kNoChange) continue;
      const Change& change = changes.at(op.row);
      take_arrivals(op.start + Duration{1});
      if (change.start.any()) account.apply(op.start, change.start);
      take_arrivals(op.end);
      if (change.end.any()) account.apply(op.end, change.end);
      for (; next_span != spans.end() && next_span->rank == rank && next_span->start <= op.end; ++next_span) {
        free_reduced(op.end + Duration{1});
        const std::int64_t bytes = graph.stage_bytes(next_span->stage).accumulated_gradients;
        account.apply(op.end, {.gradients = bytes});
        if (next_span->end == Duration::max()) continue;
        // The first reduction leaves the stage's shard in place of its gradients.
        const bool first =
            std::find(reduced_stages.begin(), reduced_stages.end(), next_span->stage) == reduced_stages.end();
        if (first) reduced_stages.push_back(next_span->stage);
        const std::int64_t shard = first ? graph.stage_bytes(next_span->stage).gradients : 0;
        const Apart reduced{next_span->end, {.gradients = shard - bytes}};
        freed.insert(std::upper_bound(freed.begin() + static_cast<std::ptrdiff_t>(next_freed), freed.end(), reduced,
                                      [](const Apart& a, const Apart& b) { return a.time < b.time; }),
                     reduced);
      }
    }
    free_reduced(Duration::max());
    out.push_back(account.take());
  }
  return out;
}

std::optional<std::vector<RankMemory>> memory_over_time(const OpGraph& graph, const Timeline& timeline,
                                                        const LeftOutBlocks& left_out) {
  if (!graph.has_bytes()) return memory_over_time(graph, timeline, false);
  if (!gradient_spans(graph, timeline).empty()) return std::nullopt;
  Changes changes(graph);
  std::vector<std::vector<VertexId>> ops(to_size(graph.schedule().num_ranks()));
  std::vector<std::vector<Inbound>> inbound(ops.size());  // by rank, then by sender
  for (std::vector<Inbound>& of : inbound) of.assign(ops.size(), Inbound(left_out.copies));
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Lane& lane = graph.lanes()[to_size(graph[v].lane)];
    if (graph[v].kind == VertexKind::compute) ops[to_size(lane.rank)].push_back(v);
    if (graph[v].kind != VertexKind::transfer) continue;
    inbound[to_size(lane.peer)][to_size(lane.rank)].add(timeline.start[v], left_out.growth[v],
                                                        changes.at(changes.row_of(graph[v])).sent);
  }
  std::vector<RankMemory> out;
  for (std::size_t rank = 0; rank < ops.size(); ++rank) {
    Account account(standing_by_class(graph, static_cast<int>(rank)), false);
    const auto receive = [&](Duration time, bool may_be_peak) {
      Duration last{0};
      Delta received;
      for (Inbound& link : inbound[rank]) link.receive(time, received.buffers, last);
      if (may_be_peak) account.apply(last, received);
      if (!may_be_peak) account.apply_below_peak(received, 1);
    };
    Delta block;  // its changes together
    Duration begin{};
    Duration growth{0};  // positive after an op of a block with copies
    for (const VertexId v : ops[rank]) {
      const Duration start = timeline.start[v];
      const Change& change = changes.at(changes.row_of(graph[v]));
      if (growth > Duration{0} && left_out.growth[v] <= Duration{0}) {
        // If every state is followed by one with more bytes a block later, those of the copies are below the peak; so
        // they are if none is followed by one with more.
        std::int64_t most = block.sum();
        for (const Inbound& link : inbound[rank]) {
          const auto bytes = link.most_in(growth, begin, start + growth);
          if (!bytes && block.sum() <= 0) return std::nullopt;
          most += bytes.value_or(0);
        }
        if (block.sum() <= 0 && most > 0) return std::nullopt;
        receive(begin + growth, true);
        account.apply_below_peak(block, left_out.copies);
        receive(start, false);
      }
      if (left_out.growth[v] > Duration{0}) {
        if (growth <= Duration{0}) {
          begin = start;
          block = {};
        }
        block += change.start;
        block += change.end;
      }
      growth = left_out.growth[v];
      receive(start + Duration{1}, true);
      account.apply(start, change.start);
      receive(timeline.end[v], true);
      account.apply(timeline.end[v], change.end);
    }
    out.push_back(account.take());
  }
  return out;
}

std::vector<std::int64_t> host_peaks(const OpGraph& graph, const Timeline& timeline) {
  std::vector<std::vector<std::pair<Duration, std::int64_t>>> changes(to_size(graph.schedule().num_ranks()));
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::offload) continue;
    const std::int64_t bytes = graph.offload_bytes(graph[v]).sum();
    const bool takes = graph[v].op == OpKind::F;
    changes[to_size(graph.rank_of(v))].emplace_back(takes ? timeline.start[v] : timeline.end[v],
                                                    takes ? bytes : -bytes);
  }
  std::vector<std::int64_t> out;
  for (auto& of_rank : changes) {
    std::sort(of_rank.begin(), of_rank.end());  // frees come before what is taken at the same time
    std::int64_t held = 0;
    out.push_back(0);
    for (const auto& [time, bytes] : of_rank) out.back() = std::max(out.back(), held += bytes);
  }
  return out;
}

LeastPeaks::LeastPeaks(const Schedule& schedule) : schedule_(schedule) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) runs_.push_back(runs_of(schedule, schedule.ops(rank)));
}

std::vector<LeastPeaks::Run> LeastPeaks::runs_of(const Schedule& schedule, std::span<const Op> list) {
  constexpr std::int64_t kMostPeriod = 4096;  // ops
  constexpr int kMostTried = 32;
  const auto alike = [&](const Op& a, const Op& b) { return hold_alike(schedule, a, schedule, b); };
  std::vector<Run> out;
  const std::int64_t size = std::ssize(list);
  for (std::int64_t begin = 0; begin < size;) {
    std::int64_t best = 1;  // ops
    std::int64_t times = 1;
    int tried = 0;
    for (std::int64_t period = 1; tried < kMostTried && period <= kMostPeriod && begin + 2 * period <= size; ++period) {
      if (!alike(list[begin], list[begin + period]) || list[begin + period - 1].joined) continue;
      std::int64_t end = begin + period;
      while (end < size && alike(list[end - period], list[end])) ++end;
      const std::int64_t found = (end - begin) / period;
      if (found > 1 && found * period > best * times) std::tie(best, times) = std::pair(period, found);
      ++tried;
    }
    // A single op joins the ones before it, and its partner.
    if (times == 1 && list[begin].joined) ++best;
    if (times > 1 || out.empty() || out.back().times > 1) out.push_back({.ops = {}, .times = times});
    out.back().ops.insert(out.back().ops.end(), list.begin() + begin, list.begin() + begin + best);
    begin += best * times;
  }
  return out;
}

bool LeastPeaks::lengthen(const LeastPeaks& longer, const LeastPeaks& longest, std::int64_t steps) {
  std::vector<std::vector<Run>> runs = runs_;
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    const std::vector<Run>& second = longer.runs_[rank];
    const std::vector<Run>& third = longest.runs_[rank];
    if (second.size() != runs[rank].size() || third.size() != runs[rank].size()) return false;
    for (std::size_t i = 0; i < runs[rank].size(); ++i) {
      Run& run = runs[rank][i];
      const auto same_as = [&](const Schedule& of, const Run& other) {
        return std::equal(run.ops.begin(), run.ops.end(), other.ops.begin(), other.ops.end(),
                          [&](const Op& a, const Op& b) { return hold_alike(schedule_, a, of, b); });
      };
      const std::int64_t growth = second[i].times - run.times;
      if (third[i].times - second[i].times != growth || !same_as(longer.schedule_, second[i]) ||
          !same_as(longest.schedule_, third[i])) {
        return false;
      }
      run.times += growth * steps;
    }
  }
  runs_ = std::move(runs);
  return true;
}

std::vector<std::int64_t> LeastPeaks::bytes(const Footprint* footprint) const {
  std::vector<std::int64_t> out(runs_.size(), 0);
  if (footprint == nullptr) return out;
  auto data = std::make_unique<OpGraph::Data>();
  data->schedule = &schedule_;
  fill_bytes(schedule_, footprint, *data);
  const OpGraph sizes(std::move(data));  // without vertices
  Changes changes(sizes, ReceiveBuffers::left_out);
  for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
    const auto vertex_of = [&](const Op& op) {
      return Vertex{.microbatch = op.microbatch,
                    .stage = op.stage,
                    .slice = op.slice,
                    .op = op.kind,
                    .lane = static_cast<LaneId>(rank)};
    };
    std::int64_t held = standing_bytes(sizes, static_cast<int>(rank));
    out[rank] = held;
    for (const Run& run : runs_[rank]) {
      std::int64_t more = 0;  // after the ops of the run
      std::int64_t most = 0;
      for (std::size_t i = 0; i < run.ops.size(); ++i) {
        const Vertex op = vertex_of(run.ops[i]);
        const bool joint = run.ops[i].joined;
        const Change& change =
            changes.at(joint ? changes.row_of_block(op, vertex_of(run.ops[i + 1])) : changes.row_of(op));
        most = std::max(most, more + change.start.sum());
        more += change.start.sum() + change.end.sum();
        if (joint) ++i;
      }
      // The peak of a repetition grows or falls linearly.
      out[rank] = std::max({out[rank], held + most, held + (run.times - 1) * more + most});
      held += run.times * more;
    }
  }
  return out;
}

std::int64_t standing_bytes(const OpGraph& graph, int rank) { return total(standing_by_class(graph, rank)); }

std::vector<std::int64_t> standing_bytes(const Schedule& schedule, const Footprint& footprint) {
  std::vector<StageBytes> of_stages;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const int like = footprint.alike(stage);
    of_stages.push_back(like < stage ? of_stages[like] : footprint.stage(stage));
  }
  std::vector<std::int64_t> out;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    out.push_back(total(standing_on(schedule, rank, [&](int stage) { return of_stages[stage]; })));
  }
  return out;
}

}  // namespace sluice::model
