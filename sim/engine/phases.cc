#include "sim/engine/phases.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/timeline/critical_path.h"
#include "model/timeline/memory.h"
#include "model/to_size.h"

namespace sluice::sim {
namespace {

// The phase at the beginning of `list`, which has `microbatches` blocks of `slices` ops; nothing if there is none.
std::optional<Phase> first_phase(std::span<const Op> list, int microbatches, int slices) {
  Phase out{.kind = list[0].kind, .stage = list[0].stage, .reversed = list[0].microbatch != 0};
  for (int i = 0; i < slices; ++i) out.slices.push_back(list[to_size(i)].slice);
  for (int block = 0; block < microbatches; ++block) {
    const int microbatch = out.reversed ? microbatches - 1 - block : block;
    for (const int slice : out.slices) {
      const Op& op = list.front();
      if (op.kind != out.kind || op.stage != out.stage || op.slice != slice || op.microbatch != microbatch ||
          op.joined) {
        return std::nullopt;
      }
      list = list.subspan(1);
    }
  }
  return out;
}

// The phases of the family's lists with fewer microbatches, if it makes such.
std::optional<std::vector<std::vector<Phase>>> phases_with(const Family& family, FamilyParams params, int kept) {
  params.microbatches = kept;
  try {
    return phases_of(make_parts(family, params));
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<std::vector<std::vector<Phase>>> phases_of(const ScheduleParts& parts) {
  std::vector<std::vector<Phase>> out;
  if (parts.routes.size() != 1 || parts.shapes.size() != 1 || !parts.communication.empty()) return std::nullopt;
  const int slices = parts.shapes[0].num_slices();
  const std::size_t size = to_size(parts.num_microbatches) * to_size(slices);
  for (const std::vector<Op>& list : parts.orders) {
    std::vector<Phase>& phases = out.emplace_back();
    if (list.empty() || list.size() % size != 0) return std::nullopt;
    for (std::size_t begin = 0; begin < list.size(); begin += size) {
      auto phase = first_phase(std::span(list).subspan(begin, size), parts.num_microbatches, slices);
      const bool after_backward = !phases.empty() && phases.back().kind == OpKind::B;
      if (!phase || (phase->kind != OpKind::B && (phase->kind != OpKind::F || after_backward))) return std::nullopt;
      phases.push_back(std::move(*phase));
    }
  }
  return out;
}

std::optional<PhasedSchedule> shorten_phases(const Family& family, const FamilyParams& params, int kept) {
  constexpr int kAfter = 3;  // blocks after those left out
  if (kept >= params.microbatches) return std::nullopt;
  auto phases = phases_with(family, params, kept);
  if (!phases || phases_with(family, params, 2 * kept) != phases) return std::nullopt;
  FamilyParams fewer = params;
  fewer.microbatches = kept;
  return PhasedSchedule{.schedule = make_schedule(family, fewer),
                        .left_out = params.microbatches - kept,
                        .at = kept - kAfter,
                        .phases = std::move(*phases)};
}

PhasedRun::PhasedRun(const OpGraph& graph, const PhasedSchedule& schedule) : graph_(graph), schedule_(schedule) {
  usable_ = place_vertices() && blocks_alike() && needs_repeat();
}

// Finds the block of each vertex: that of its op, of the op that it recomputes for, or of the op whose result it sends.
bool PhasedRun::place_vertices() {
  const int microbatches = graph_.schedule().num_microbatches();
  std::vector<std::int32_t> first_phase;  // by rank
  for (const std::vector<Phase>& of_rank : schedule_.phases) {
    first_phase.push_back(static_cast<std::int32_t>(blocks_.size()));
    for (const Phase& phase : of_rank) {
      blocks_.push_back({.reversed = phase.reversed, .blocks = {}});
      blocks_.back().blocks.resize(to_size(microbatches));
    }
  }
  place_.resize(graph_.size());
  std::vector<std::int32_t> next(first_phase.size(), 0);
  for (VertexId v = 0; v < graph_.size(); ++v) {
    const Vertex& vertex = graph_[v];
    if (vertex.kind == VertexKind::collective || vertex.kind == VertexKind::optimizer) continue;
    if (vertex.kind == VertexKind::joint || vertex.kind == VertexKind::offload) return false;
    const auto rank = to_size(graph_.rank_of(v));
    Place& place = place_[v];
    if (vertex.kind == VertexKind::transfer) {
      if (vertex.extra != 0) return false;
      place = place_[graph_.needs(v).front()];
    } else {
      const std::vector<Phase>& phases = schedule_.phases[rank];
      const auto per_block = static_cast<std::int32_t>(phases[0].slices.size());
      const std::int32_t block = next[rank] / per_block;
      place = {.phase = first_phase[rank] + block / microbatches, .block = block % microbatches};
      if (vertex.kind == VertexKind::compute) ++next[rank];
    }
    std::vector<VertexId>& block = blocks_[to_size(place.phase)].blocks[to_size(place.block)];
    place.index = static_cast<std::int32_t>(block.size());
    block.push_back(v);
  }
  return true;
}

// Whether the blocks about the cuts have equal vertices but for the microbatch.
bool PhasedRun::blocks_alike() const {
  for (const Blocks& of : blocks_) {
    const std::vector<VertexId>& last = of.blocks[to_size(schedule_.at - 1)];
    for (int block = schedule_.at - 2; block <= schedule_.at + 1; ++block) {
      const auto same = [&](VertexId a, VertexId b) {
        const Vertex& one = graph_[a];
        const Vertex& other = graph_[b];
        return one.kind == other.kind && one.op == other.op && one.stage == other.stage && one.slice == other.slice &&
               one.lane == other.lane;
      };
      const std::vector<VertexId>& vertices = of.blocks[to_size(block)];
      if (!std::equal(last.begin(), last.end(), vertices.begin(), vertices.end(), same)) return false;
    }
  }
  return true;
}

// Whether vertices wait for such of the same block or of the one before on the same rank, in the blocks about the cuts
// for the same ones, and whether what is outside of blocks comes before them or after them. Other needs on the same
// lane are implied by its order.
bool PhasedRun::needs_repeat() const {
  const int last = schedule_.at - 1;
  const auto shift = [&](VertexId v, VertexId need) { return place_[v].block - place_[need].block; };
  for (VertexId v = 0; v < graph_.size(); ++v) {
    const Place& place = place_[v];
    const auto needs = graph_.needs(v);
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const Place& other = place_[needs[i]];
      if (place.phase == kNone && other.phase != kNone && other.block <= last) return false;
      if (place.phase == kNone || graph_[needs[i]].lane == graph_[v].lane) continue;
      if (other.phase == kNone && place.block >= last) return false;
      if (other.phase == kNone) continue;
      // With blocking transfers, the first op of a phase waits for the last transfer of the one before.
      if (place.block < last && other.block > last) continue;
      const int back = shift(v, needs[i]);
      if (back != 0 && (back != 1 || other.phase != place.phase)) return false;
    }
    if (place.phase == kNone || (place.block != last + 1 && place.block != last + 2)) continue;
    const VertexId early = in_block(v, last);
    const auto before = graph_.needs(early);
    const auto same = [&](VertexId a, VertexId b) {
      if (graph_[a].lane == graph_[v].lane || graph_[b].lane == graph_[v].lane) return graph_[a].lane == graph_[b].lane;
      return place_[a].phase == place_[b].phase && place_[a].index == place_[b].index && shift(v, a) == shift(early, b);
    };
    if (!std::equal(needs.begin(), needs.end(), before.begin(), before.end(), same)) return false;
  }
  return true;
}

std::int64_t PhasedRun::whole_size() const {
  std::int64_t per_microbatch = 0;
  for (const Blocks& of : blocks_) per_microbatch += std::ssize(of.blocks[to_size(schedule_.at)]);
  return graph_.size() + per_microbatch * schedule_.left_out;
}

bool PhasedRun::simulate(const Prices& prices, bool steps, LaneTimes& lane_free, Timeline& timeline) const {
  if (!usable_) return false;
  timeline.start.assign(graph_.size(), Duration{0});
  timeline.end.assign(graph_.size(), Duration{0});
  timeline.lane_latency = prices.lane_latency;
  std::vector<VertexId> last(graph_.lanes().size(), kNoVertex);  // by lane
  for (VertexId v = 0; v < graph_.size(); ++v) {
    const Vertex& vertex = graph_[v];
    const auto later = [&](VertexId need) {
      return crosses(v, need) ? schedule_.left_out * growth(need, timeline) : Duration{0};
    };
    const auto lane = to_size(vertex.lane);
    Duration begin = lane_free[lane];
    if (last[lane] != kNoVertex) begin += later(last[lane]);
    const bool step = vertex.kind == VertexKind::collective || vertex.kind == VertexKind::optimizer;
    const auto needs = graph_.needs(v);
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const bool order = graph_.is_order(v, i);
      // Omitted collectives are not waited for.
      if ((step && !steps) || (!steps && graph_[needs[i]].kind == VertexKind::collective)) continue;
      const Duration met = order ? timeline.end[needs[i]] : timeline.arrival(graph_, needs[i]);
      begin = std::max(begin, met + later(needs[i]));
    }
    timeline.start[v] = timeline.end[v] = begin;
    if (step && !steps) continue;
    timeline.end[v] += prices.duration[v];
    lane_free[lane] = timeline.end[v];
    last[lane] = v;
    if (vertex.kind != VertexKind::collective) continue;
    for (const int rank : graph_.collective(vertex).ranks) {
      Duration& free = lane_free[to_size(graph_.collective_lane(rank))];
      free = std::max(free, timeline.end[v]);
    }
  }
  return lines_continue(timeline);
}

// Whether the times of the blocks about the cuts are on lines, which are those of the whole run.
bool PhasedRun::lines_continue(const Timeline& timeline) const {
  const int last = schedule_.at - 1;
  std::vector<Duration> of_lane(graph_.lanes().size());
  for (const Blocks& of : blocks_) {
    std::fill(of_lane.begin(), of_lane.end(), Duration{0});
    for (const VertexId v : of.blocks[to_size(last)]) {
      const VertexId early = in_block(v, last - 1);
      const VertexId next = in_block(v, last + 1);
      const VertexId late = in_block(v, last + 2);
      const Duration more = timeline.start[v] - timeline.start[early];
      Duration& of_all = of_lane[to_size(graph_[v].lane)];
      if (of_all == Duration{0}) of_all = more;
      const auto duration = [&](VertexId of_vertex) { return timeline.end[of_vertex] - timeline.start[of_vertex]; };
      const bool linear = more > Duration{0} && more == of_all &&
                          timeline.start[next] == timeline.start[v] + (schedule_.left_out + 1) * more &&
                          timeline.start[late] == timeline.start[next] + more && duration(early) == duration(v) &&
                          duration(next) == duration(v) && duration(late) == duration(v);
      if (!linear) return false;
      const LastNeed need = last_need(graph_, timeline, v);
      const LastNeed need_of_late = last_need(graph_, timeline, late);
      const auto needs = graph_.needs(v);
      const auto needs_of_late = graph_.needs(late);
      const auto index = std::find(needs.begin(), needs.end(), need.vertex) - needs.begin();
      const auto index_of_late =
          std::find(needs_of_late.begin(), needs_of_late.end(), need_of_late.vertex) - needs_of_late.begin();
      if (index != index_of_late || need.met != timeline.start[v] || need_of_late.met != timeline.start[late]) {
        return false;
      }
    }
  }
  return true;
}

Metrics PhasedRun::metrics(const Timeline& timeline) const {
  Metrics out = measure(graph_, timeline);
  for (const Blocks& of : blocks_) {
    for (const VertexId v : of.blocks[to_size(schedule_.at - 1)]) {
      if (graph_[v].kind == VertexKind::transfer) continue;
      out.ranks[to_size(graph_.rank_of(v))].busy += schedule_.left_out * (timeline.end[v] - timeline.start[v]);
    }
  }
  // All microbatches on all stages of one rank.
  const Schedule& schedule = graph_.schedule();
  for (std::size_t rank = 0; rank < out.ranks.size(); ++rank) {
    const auto forwards = std::count_if(schedule_.phases[rank].begin(), schedule_.phases[rank].end(),
                                        [](const Phase& phase) { return phase.kind == OpKind::F; });
    const int microbatches = schedule.num_microbatches() + schedule_.left_out;
    out.ranks[rank].peak_in_flight = static_cast<double>(microbatches) * static_cast<double>(forwards) *
                                     schedule.num_ranks() / std::max(schedule.num_ranks(), schedule.num_stages());
  }
  out.ideal = out.span = Duration{0};
  complete(out);
  return out;
}

std::optional<std::vector<IdleByCause>> PhasedRun::idle(const Timeline& timeline) const {
  const int last = schedule_.at - 1;
  std::vector<IdleByCause> out(to_size(graph_.schedule().num_ranks()), IdleByCause{});
  std::vector<IdleInterval> of_last;
  std::vector<IdleInterval> of_late;
  for (const IdleInterval& interval : idle_intervals(graph_, timeline)) {
    const VertexId v = interval.next;
    if (v != kNoVertex && in(v, last + 1)) continue;  // its lane was free later in the whole run
    const bool repeats = v != kNoVertex && in(v, last);
    if (repeats) of_last.push_back(interval);
    if (v != kNoVertex && in(v, last + 2)) of_late.push_back(interval);
    out[to_size(interval.rank)][static_cast<std::size_t>(interval.cause)] +=
        (repeats ? schedule_.left_out + 2 : 1) * (interval.end - interval.start);
  }
  const auto same = [&](const IdleInterval& a, const IdleInterval& b) {
    return in_block(a.next, last + 2) == b.next && a.end - a.start == b.end - b.start && a.cause == b.cause &&
           a.from_rank == b.from_rank;
  };
  if (!std::equal(of_last.begin(), of_last.end(), of_late.begin(), of_late.end(), same)) return std::nullopt;
  return out;
}

std::optional<std::vector<RootedIdle>> PhasedRun::roots(const Timeline& timeline) const {
  const int last = schedule_.at - 1;
  std::vector<VertexId> same_as(graph_.size(), kNoVertex);
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if (in(v, last + 1)) same_as[v] = in_block(v, last);
  }
  const std::vector<IdleRoot> of_starts = roots_of_starts(graph_, timeline, same_as);
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if ((in(v, last - 1) || in(v, last + 2)) && !(of_starts[v] == of_starts[in_block(v, last)])) return std::nullopt;
  }
  std::map<IdleRoot, Duration> sums;
  for (const RootedIdle& part : idle_roots(graph_, timeline, same_as)) {
    const VertexId v = part.next;
    if (v != kNoVertex && in(v, last + 1)) continue;
    sums[part.root] += (v != kNoVertex && in(v, last) ? schedule_.left_out + 2 : 1) * part.idle;
  }
  return by_length(sums);
}

bool PhasedRun::critical_path(const Timeline& timeline, Prediction& out) const {
  const int last = schedule_.at - 1;
  const int left_out = schedule_.left_out;
  CriticalPath& path = out.critical_path;
  std::vector<PathPiece> pieces;  // from the end of the path to its beginning, as its vertices
  // The need that is met last, and by how much it is met after its end.
  const auto before = [&](VertexId v) {
    const VertexId alike = in(v, last + 1) ? in_block(v, last) : v;
    const LastNeed need = last_need(graph_, timeline, alike);
    if (need.vertex == kNoVertex) return std::pair(kNoVertex, Duration{0});
    const auto needs = graph_.needs(alike);
    const auto index = std::find(needs.begin(), needs.end(), need.vertex) - needs.begin();
    return std::pair(graph_.needs(v)[to_size(index)], need.met - timeline.end[need.vertex]);
  };
  const auto add = [&](VertexId v, Duration latency, int times) {
    path.vertices.push_back(v);
    path.add(graph_[v].kind, times * (timeline.end[v] - timeline.start[v]));
    path.latency += times * latency;
  };
  const auto piece_of = [&](VertexId v, int copy) {
    PathPiece piece{.begin = path.vertices.size() - 1, .end = path.vertices.size()};
    if (place_[v].phase == kNone) return piece;
    const bool reversed = blocks_[to_size(place_[v].phase)].reversed;
    piece.microbatches = (place_[v].block > last) == reversed ? 0 : left_out;
    if (copy == 0) return piece;
    piece.more = growth(v, timeline);
    piece.later = copy * piece.more;
    piece.more_microbatches = reversed ? -1 : 1;
    piece.microbatches += copy * piece.more_microbatches;
    return piece;
  };
  for (VertexId v = last_to_end(graph_, timeline); v != kNoVertex;) {
    const auto [need, latency] = before(v);
    const bool ends = timeline.start[v] <= Duration{0};
    add(v, ends ? Duration{0} : latency, 1);
    pieces.push_back(piece_of(v, 0));
    if (ends) break;
    if (need == kNoVertex || !crosses(v, need)) {
      v = need;
      continue;
    }
    // Through the copies, from the last to the first, until the path returns to the same vertex a block earlier.
    v = need;
    for (int copy = left_out; copy > 0;) {
      const std::size_t begin = path.vertices.size();
      std::vector<std::pair<VertexId, Duration>> part;
      VertexId earlier = v;
      while (in(earlier, last)) {
        const auto [next, of_next] = before(earlier);
        part.emplace_back(earlier, of_next);
        if (next == kNoVertex) return false;
        earlier = next;
      }
      if (!in(earlier, last - 1)) return false;
      earlier = in_block(earlier, last);
      const int times = earlier == v ? copy : 1;
      for (const auto& [of_part, of_latency] : part) {
        add(of_part, of_latency, times);
        if (times == 1) pieces.push_back(piece_of(of_part, copy));
      }
      if (times > 1) {
        PathPiece piece = piece_of(v, 1);
        piece.begin = begin;
        piece.times = times;
        out.repetition->time += piece.more;
        pieces.push_back(piece);
      }
      copy -= times;
      v = earlier;
    }
  }
  const std::size_t size = path.vertices.size();
  std::reverse(path.vertices.begin(), path.vertices.end());
  std::vector<PathPiece>& joined = out.repetition->path;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    std::tie(piece->begin, piece->end) = std::pair(size - piece->end, size - piece->begin);
    const bool continues = !joined.empty() && joined.back().times == 1 && piece->times == 1 &&
                           joined.back().later == piece->later && joined.back().microbatches == piece->microbatches;
    if (continues) joined.back().end = piece->end;
    if (!continues) joined.push_back(*piece);
  }
  return path.compute + path.transfer + path.latency + path.collective + path.optimizer == out.metrics.makespan;
}

std::optional<Prediction> PhasedRun::measured(const Prices& prices, const Timeline& timeline) const {
  Prediction out{.prices = prices, .timeline = timeline};
  out.metrics = metrics(timeline);
  LeftOutBlocks blocks{.copies = schedule_.left_out, .growth = std::vector<Duration>(graph_.size(), Duration{0})};
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if (in(v, schedule_.at - 1)) blocks.growth[v] = growth(v, timeline);
  }
  auto memory = memory_over_time(graph_, timeline, blocks);
  auto idle_times = idle(timeline);
  auto idle_by_roots = roots(timeline);
  if (!memory || !idle_times || !idle_by_roots) return std::nullopt;
  out.memory = std::move(*memory);
  out.idle = std::move(*idle_times);
  out.repetition = RepeatedPart{.simulated = graph_.schedule().num_microbatches(),
                                .microbatches = 1,
                                .times = schedule_.left_out,
                                .idle_roots = std::move(*idle_by_roots)};
  if (!critical_path(timeline, out)) return std::nullopt;
  return out;
}

}  // namespace sluice::sim
