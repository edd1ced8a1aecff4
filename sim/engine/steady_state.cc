#include "sim/engine/steady_state.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "model/errors.h"
#include "model/graph/links.h"
#include "model/schedule/orders.h"
#include "model/to_size.h"

namespace sluice::sim {
namespace {

constexpr std::int64_t kAfterAll = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kBeforeAll = -1;

// Numbers microbatches so that a block has the next ones of every route: those of two routes alternate.
void number_by_route(ScheduleParts& parts) {
  const std::vector<int> numbers = numbers_by_route(parts.route_of);
  if (numbers.empty()) return;
  for (std::vector<Op>& list : parts.orders) {
    for (Op& op : list) op.microbatch = numbers[to_size(op.microbatch)];
  }
}

bool same_later(const Op& early, const Op& late, int microbatches) {
  return late.microbatch == early.microbatch + microbatches && late.stage == early.stage && late.slice == early.slice &&
         late.kind == early.kind && late.joined == early.joined;
}

// By rank: the number of ops after which its list repeats, around its middle, with microbatches `unit` later. Empty if
// the list of some rank does not repeat.
std::vector<std::int64_t> blocks_in_the_middle(const ScheduleParts& parts, int unit) {
  std::vector<std::int64_t> blocks;
  for (const std::vector<Op>& list : parts.orders) {
    const std::int64_t middle = std::ssize(list) / 2;
    if (list.empty()) return {};
    // A block has at most the ops of `unit` microbatches on all chunks, and twice that for two directions.
    const std::int64_t most = std::min(std::ssize(list) - middle, 2 * std::ssize(list) * unit / parts.num_microbatches);
    std::int64_t block = 1;
    while (block < most && !same_later(list[middle], list[middle + block], unit)) ++block;
    if (middle + 2 * block > std::ssize(list)) return {};
    for (std::int64_t i = middle; i < middle + block; ++i) {
      if (!same_later(list[i], list[i + block], unit)) return {};
    }
    blocks.push_back(block);
  }
  return blocks;
}

// The cut of one rank at which `few` is `many` without `removed` blocks, if there is one.
std::optional<ShortSchedule::Cut> cut_of(std::span<const Op> many, std::span<const Op> few, std::int64_t block,
                                         int unit, int removed) {
  const auto differ = std::mismatch(few.begin(), few.end(), many.begin(), many.end());
  ShortSchedule::Cut cut{.block = block, .at = differ.first - few.begin()};
  if (cut.at > 0 && few[cut.at - 1].joined) --cut.at;
  const std::int64_t taken = removed * block;
  if (std::ssize(few) + taken != std::ssize(many)) return std::nullopt;
  for (std::int64_t i = cut.at; i < std::ssize(few); ++i) {
    if (!same_later(few[i], many[i + taken], unit * removed)) return std::nullopt;
  }
  // Backwards from the last op that repeats to the first.
  cut.begin = cut.at + taken - block;
  while (cut.begin > 0 && same_later(many[cut.begin - 1], many[cut.begin - 1 + block], unit)) --cut.begin;
  // The second op of a joint block alone does not repeat.
  if (many[cut.begin + block - 1].joined) ++cut.begin;
  return cut.begin <= cut.at - block ? std::optional(cut) : std::nullopt;
}

// Removes blocks from the schedule of `params` until it has `microbatches`, where `many` is that schedule or one that
// only has fewer blocks, with microbatches numbered by route. Returns nothing if it does not repeat so.
std::optional<ShortSchedule> without_blocks(const Family& family, const FamilyParams& params, const ScheduleParts& many,
                                            std::span<const std::int64_t> blocks, int unit, int microbatches) {
  FamilyParams fewer = params;
  fewer.microbatches = microbatches;
  ShortSchedule out{
      .schedule = make_schedule(family, fewer), .unit = unit, .removed = (params.microbatches - microbatches) / unit};
  out.params = fewer;
  ScheduleParts few = out.schedule.parts();
  number_by_route(few);
  const int removed = (many.num_microbatches - microbatches) / unit;
  for (std::size_t rank = 0; rank < many.orders.size(); ++rank) {
    const auto cut = cut_of(many.orders[rank], few.orders[rank], blocks[rank], unit, removed);
    if (!cut) return std::nullopt;
    out.cuts.push_back(*cut);
  }
  return out;
}

// Makes the lists of a schedule with fewer microbatches. Throws as make_parts does for all of them.
ScheduleParts parts_with(const Family& family, const FamilyParams& params, int microbatches) {
  FamilyParams fewer = params;
  fewer.microbatches = microbatches;
  try {
    if (num_ops(family, params) <= static_cast<double>(kMaxOps)) return make_parts(family, fewer);
  } catch (const InputError&) {  // names the smaller number
  }
  return make_parts(family, params);
}

// A number of microbatches after which all lists repeat, and the ops of a block per rank; nothing if they do not
// repeat.
struct Repeating {
  int unit = 1;
  std::vector<std::int64_t> blocks;
};
std::optional<Repeating> repeating(const FamilyParams& params, const ScheduleParts& many) {
  const int largest_unit = std::max(params.group, 2 * params.ranks);
  const int routes = static_cast<int>(many.routes.size());  // a block has microbatches of every route
  for (int unit = routes; unit <= largest_unit; unit += routes) {
    std::vector<std::int64_t> blocks = blocks_in_the_middle(many, unit);
    if (!blocks.empty()) return Repeating{unit, std::move(blocks)};
  }
  return std::nullopt;
}

// The schedule with as few blocks as leave at least `microbatches`, if the lists of `many` repeat as its own. The
// number of removed blocks is a multiple of `multiple`.
std::optional<ShortSchedule> shortened(const Family& family, const FamilyParams& params, const ScheduleParts& many,
                                       const Repeating& of, int microbatches, int multiple) {
  // With latencies, the times of ranks repeat with a period of as many slices as there are ranks.
  const int cycle = std::max(1, params.ranks / std::gcd(params.ranks, of.unit * params.slices()));
  int removed = (params.microbatches - microbatches) / of.unit;
  removed -= removed % multiple;
  if (const int both = std::max(1, std::lcm(cycle, multiple)); removed >= both) removed -= removed % both;
  const int kept = params.microbatches - removed * of.unit;
  const bool found = removed > 0 && kept < many.num_microbatches && (many.num_microbatches - kept) % of.unit == 0;
  return found ? without_blocks(family, params, many, of.blocks, of.unit, kept) : std::nullopt;
}

}  // namespace

FewerMicrobatches fewer_microbatches(const Family& family, const FamilyParams& params, std::int64_t least) {
  FewerMicrobatches out{.params = params};
  // The default group of slices depends on the number of microbatches.
  const bool enough = std::int64_t{params.microbatches} * params.slices() >= params.ranks;
  if (family.grouped && family.sliced && params.group == 0 && enough) {
    out.params.group = orders::default_group_of_slices(params);
  }
  out.step = std::lcm(std::int64_t{2} * params.ranks, std::int64_t{std::max(1, out.params.group)});
  const std::int64_t more = params.microbatches - least;
  if (more >= out.step) out.params.microbatches -= static_cast<int>(more / out.step * out.step);
  return out;
}

std::vector<int> numbers_by_route(std::span<const std::uint8_t> route_of) {
  if (std::all_of(route_of.begin(), route_of.end(), [](std::uint8_t route) { return route == 0; })) return {};
  const int routes = 1 + *std::max_element(route_of.begin(), route_of.end());
  std::vector<int> next(to_size(routes), 0);
  std::vector<int> out;
  for (const std::uint8_t route : route_of) out.push_back(routes * next[route]++ + route);
  return out;
}

int kept_microbatches(const FamilyParams& params) { return (params.ranks + params.ranks / 2) / params.slices() + 3; }

std::optional<ShortSchedule> shorten(const Family& family, const FamilyParams& params, int microbatches, int multiple) {
  constexpr int kTimes = 2;  // the compared lists are longer than the short ones
  // With chunks and groups the first lists may end before they repeat; those of phases never do.
  constexpr int kMostWithout = 8;
  // With less than twice as many microbatches the whole schedule is simulated.
  for (int kept = microbatches; kept <= params.microbatches / 2; kept *= 2) {
    const FamilyParams fewer = fewer_microbatches(family, params, std::int64_t{kTimes} * kept).params;
    FamilyParams grouped = params;
    grouped.group = fewer.group;
    ScheduleParts many = parts_with(family, grouped, fewer.microbatches);
    number_by_route(many);
    const auto of = repeating(grouped, many);
    if (!of && kept >= kMostWithout * microbatches) break;
    if (!of) continue;
    if (auto found = shortened(family, grouped, many, *of, kept, multiple)) return found;
  }
  return std::nullopt;
}

std::optional<ShortSchedule> with_blocks(const Family& family, const ShortSchedule& brief, int blocks) {
  FamilyParams params = brief.params;
  params.microbatches += blocks * brief.unit;
  ShortSchedule out{.schedule = make_schedule(family, params),
                    .unit = brief.unit,
                    .removed = brief.removed - blocks,
                    .cuts = brief.cuts,
                    .params = params};
  ScheduleParts few = brief.schedule.parts();
  ScheduleParts many = out.schedule.parts();
  number_by_route(few);
  number_by_route(many);
  for (std::size_t rank = 0; rank < out.cuts.size(); ++rank) {
    const std::int64_t block = out.cuts[rank].block;
    const auto cut = cut_of(many.orders[rank], few.orders[rank], block, brief.unit, blocks);
    if (!cut || cut->at != out.cuts[rank].at || cut->begin != out.cuts[rank].begin) return std::nullopt;
    out.cuts[rank].at += blocks * block;
  }
  return out;
}

SteadyState::SteadyState(const OpGraph& graph, const ShortSchedule& schedule)
    : SteadyState(graph, schedule.removed, schedule.unit, schedule.cuts, 0) {}

SteadyState::SteadyState(const OpGraph& graph, int removed, int unit, std::vector<ShortSchedule::Cut> cuts, int earlier)
    : graph_(graph), removed_(removed), unit_(unit), cuts_(std::move(cuts)), earlier_(earlier) {
  if (removed_ == 0) return;
  find_positions();
  if (!close_cuts()) return;
  repeats_.resize(cuts_.size());
  for (VertexId v = 0; v < graph_.size(); ++v) {
    const std::int64_t block = blocks_back(v);
    const auto rank = to_size(graph_.rank_of(v));
    if (block > 0 && position_[v] >= cuts_[rank].begin) repeats_[rank].vertices.push_back(v);
    if (block == 1) ++repeats_[rank].per_block;
    if (block >= std::ssize(reach_)) reach_.resize(block + 1, 0);
    for (const VertexId need : graph_.needs(v)) {
      const bool implied = graph_[need].lane == graph_[v].lane && graph_[v].kind != VertexKind::transfer;
      if (!implied) reach_[block] = std::max(reach_[block], blocks_back(need));
    }
  }
  usable_ = repeat_alike();
}

// Sets the position in its rank's list of each vertex: that of its op, of the op that it recomputes for, or of the op
// whose result it sends. Collectives that wait for no op come first, other ones last.
void SteadyState::find_positions() {
  position_.assign(graph_.size(), kAfterAll);
  std::vector<std::int64_t> next(cuts_.size(), 0);
  for (VertexId v = 0; v < graph_.size(); ++v) {
    std::int64_t& here = next[graph_.rank_of(v)];
    switch (graph_[v].kind) {
      case VertexKind::compute: position_[v] = here++; break;
      case VertexKind::joint:
        position_[v] = here;
        here += 2;
        break;
      case VertexKind::recompute: position_[v] = here; break;
      case VertexKind::transfer: position_[v] = position_[graph_.needs(v).front()]; break;
      case VertexKind::collective: {
        const auto needs = graph_.needs(v);
        const bool first =
            std::all_of(needs.begin(), needs.end(), [&](VertexId need) { return position_[need] == kBeforeAll; });
        if (first) position_[v] = kBeforeAll;
        break;
      }
      case VertexKind::optimizer:
      case VertexKind::offload: break;  // shortened schedules have none
    }
  }
}

// A cut may be anywhere in the repeating part. Moves cuts forward until no vertex before a cut depends on one after a
// cut. Returns false if there are no such positions.
bool SteadyState::close_cuts() {
  for (bool moved = true; moved;) {
    moved = false;
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (blocks_back(v) == 0) continue;
      const auto after_cut = [&](VertexId need) { return blocks_back(need) == 0; };
      const auto needs = graph_.needs(v);
      if (std::none_of(needs.begin(), needs.end(), after_cut)) continue;
      ShortSchedule::Cut& cut = cuts_[graph_.rank_of(v)];
      cut.at = position_[v];
      if (cut.at < cut.begin) return false;
      moved = true;
    }
  }
  return true;
}

// Number of blocks from the block of a vertex to its rank's cut; 0: after the cut.
std::int64_t SteadyState::blocks_back(VertexId v) const {
  const ShortSchedule::Cut& cut = cuts_[graph_.rank_of(v)];
  return position_[v] >= cut.at ? 0 : (cut.at - position_[v] + cut.block - 1) / cut.block;
}

// Whether consecutive blocks have equal vertices but for the microbatch. Drops an incomplete first block.
bool SteadyState::repeat_alike() {
  const std::vector<int> numbers = numbers_by_route(graph_.schedule().parts().route_of);
  const auto number = [&](const Vertex& of) {
    return numbers.empty() ? of.microbatch : numbers[to_size(of.microbatch)];
  };
  for (std::size_t rank = 0; rank < repeats_.size(); ++rank) {
    std::vector<VertexId>& vertices = repeats_[rank].vertices;
    const std::int64_t per_block = repeats_[rank].per_block;
    if (per_block == 0) return false;
    vertices.erase(vertices.begin(), vertices.begin() + std::ssize(vertices) % per_block);
    for (std::size_t i = to_size(per_block); i < vertices.size(); ++i) {
      const Vertex& late = graph_[vertices[i]];
      const Vertex& early = graph_[vertices[i - to_size(per_block)]];
      if (late.kind != early.kind || late.op != early.op || late.stage != early.stage || late.slice != early.slice ||
          late.lane != early.lane || number(late) != number(early) + unit_) {
        return false;
      }
    }
  }
  return true;
}

std::optional<SteadyState::Extension> SteadyState::extension(const Prices& prices, const Timeline& timeline) {
  std::optional<Extension> out = extension_at_cuts(prices, timeline, 0);
  if (out || prices.sharing.empty() || !cut_earlier()) return out;
  return cut_before_->extension(prices, timeline);
}

std::optional<SteadyState::Extension> SteadyState::estimate(const Prices& prices, const Timeline& timeline) const {
  constexpr double kDrift = 1e-6;
  if (auto out = extension_at_cuts(prices, timeline, kDrift)) return out;
  return cut_before_ ? cut_before_->estimate(prices, timeline) : std::nullopt;
}

// Makes cuts one block earlier; returns false if there are none.
bool SteadyState::cut_earlier() {
  constexpr int kMostEarlier = 2;
  if (cut_before_) return true;
  if (!usable_ || earlier_ == kMostEarlier) return false;
  std::vector<ShortSchedule::Cut> cuts = cuts_;
  for (ShortSchedule::Cut& cut : cuts) {
    cut.at -= cut.block;
    if (cut.at < cut.begin) return false;
  }
  cut_before_.reset(new SteadyState(graph_, removed_, unit_, std::move(cuts), earlier_ + 1));
  return true;
}

std::optional<SteadyState::Extension> SteadyState::extension_at_cuts(const Prices& prices, const Timeline& timeline,
                                                                     double tolerance) const {
  Extension out{.busy = std::vector<Duration>(to_size(graph_.schedule().num_ranks()), Duration{0})};
  if (removed_ == 0) return out;
  const auto queues = [](const SharedLink& link) { return link.policy == Sharing::queue && !link.uses.empty(); };
  if (!usable_ || std::any_of(prices.sharing.links.begin(), prices.sharing.links.end(), queues)) return std::nullopt;
  constexpr std::int64_t kMostBlocks = 256;  // of a cycle
  std::int64_t depth = reach_[0];
  for (std::int64_t cycle = 1; cycle <= std::min<std::int64_t>(kMostBlocks, removed_); ++cycle) {
    if (cycle < std::ssize(reach_)) depth = std::max(depth, reach_[cycle]);
    depth = std::max(depth, cycle + 1);  // the order of a lane
    const auto too_short = [&](const Repeats& of) { return std::ssize(of.vertices) < depth * of.per_block; };
    if (std::any_of(repeats_.begin(), repeats_.end(), too_short)) return std::nullopt;
    if (removed_ % cycle != 0) continue;
    const std::optional<Duration> growth = growth_of(timeline, cycle, depth, tolerance);
    if (!growth) continue;
    out.cycle = cycle;
    if (tolerance == 0 && !prices.sharing.empty() && !repeats_in_flight(timeline, cycle, *growth)) return std::nullopt;
    out.time = *growth * (removed_ / cycle);
    for (std::size_t rank = 0; rank < repeats_.size(); ++rank) {
      const std::vector<VertexId>& vertices = repeats_[rank].vertices;
      for (std::size_t i = vertices.size() - to_size(repeats_[rank].per_block); i < vertices.size(); ++i) {
        if (graph_[vertices[i]].kind != VertexKind::transfer) out.busy[rank] += prices.duration[vertices[i]];
      }
      out.busy[rank] *= removed_;
    }
    return out;
  }
  return std::nullopt;
}

// The largest time by which a vertex of the last `depth` blocks starts later than that `cycle` blocks earlier, if all
// differ by at most `tolerance`, a fraction.
std::optional<Duration> SteadyState::growth_of(const Timeline& timeline, std::int64_t cycle, std::int64_t depth,
                                               double tolerance) const {
  Duration least = Duration::max();
  Duration most{0};
  for (const auto& [vertices, per_block] : repeats_) {
    const auto distance = to_size(cycle * per_block);
    for (std::size_t i = vertices.size() - to_size((depth - cycle) * per_block); i < vertices.size(); ++i) {
      const VertexId late = vertices[i];
      const VertexId early = vertices[i - distance];
      const Duration later = timeline.start[late] - timeline.start[early];
      const Duration later_end = timeline.end[late] - timeline.end[early];
      least = std::min({least, later, later_end});
      most = std::max({most, later, later_end});
      const auto apart = static_cast<double>((most - least).count());
      if (apart > tolerance * static_cast<double>(most.count())) return std::nullopt;
    }
  }
  return most;
}

// The first start of a vertex after the cuts in the long run.
Duration SteadyState::first_changed(const Timeline& timeline, std::int64_t cycle, Duration growth) const {
  Duration first = Duration::max();
  for (VertexId v = 0; v < graph_.size(); ++v) {
    const std::int64_t back = blocks_back(v);
    if (back <= cycle) first = std::min(first, timeline.start[v] + (back > 0 ? growth : Duration{0}));
  }
  return first;
}

// Marks the vertices before the cuts that, as all that follow them there, start and end `growth` later than `cycle`
// blocks earlier.
std::vector<char> SteadyState::later_by(const Timeline& timeline, std::int64_t cycle, Duration growth) const {
  std::vector<char> out(graph_.size(), 0);
  for (const auto& [vertices, per_block] : repeats_) {
    const auto distance = to_size(cycle * per_block);
    for (std::size_t i = vertices.size(); i-- > distance;) {
      if (timeline.start[vertices[i]] - timeline.start[vertices[i - distance]] != growth ||
          timeline.end[vertices[i]] - timeline.end[vertices[i - distance]] != growth) {
        break;
      }
      out[vertices[i]] = 1;
    }
  }
  return out;
}

// Whether every vertex before the cuts that may overlap with the removed blocks starts `growth` later than `cycle`
// blocks earlier.
bool SteadyState::repeats_in_flight(const Timeline& timeline, std::int64_t cycle, Duration growth) const {
  Duration longest{0};
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if (graph_[v].kind == VertexKind::transfer) longest = std::max(longest, timeline.end[v] - timeline.start[v]);
  }
  const Duration first = first_changed(timeline, cycle, growth);
  const Duration from = first - growth - longest;
  // A collective that is under way would end before the blocks that are added.
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if (is_data_collective(graph_, graph_[v]) && timeline.start[v] < first && timeline.end[v] > from) return false;
  }
  const std::vector<char> repeats = later_by(timeline, cycle, growth);
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if (repeats[v] == 0 && timeline.start[v] >= from && blocks_back(v) > 0) return false;
  }
  return true;
}

bool SteadyState::memory_repeats(const Timeline& timeline, const Extension& of) const {
  const Duration growth = of.time / (removed_ / of.cycle);
  const Duration from = first_changed(timeline, of.cycle, growth) - growth;
  const std::vector<char> repeats = later_by(timeline, of.cycle, growth);
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if (repeats[v] == 0 && timeline.end[v] >= from && blocks_back(v) > 0) return false;
  }
  return true;
}

std::optional<SteadyState::PathPart> SteadyState::repeating_part(std::span<const VertexId> path,
                                                                 const Timeline& timeline, const Extension& of) const {
  constexpr std::int64_t kNone = -1;
  std::vector<std::int64_t> index(graph_.size(), kNone);  // in the repeating vertices of its rank
  for (const Repeats& each : repeats_) {
    for (std::size_t i = 0; i < each.vertices.size(); ++i) index[each.vertices[i]] = static_cast<std::int64_t>(i);
  }
  const std::vector<char> later = later_by(timeline, of.cycle, of.time / (removed_ / of.cycle));
  const auto repeats = [&](VertexId v) {
    if (index[v] == kNone) return false;
    const auto& [vertices, per_block] = repeats_[to_size(graph_.rank_of(v))];
    const auto next = to_size(index[v] + of.cycle * per_block);
    return next >= vertices.size() || later[vertices[next]] != 0;
  };
  std::size_t last = path.size();
  while (last > 0 && blocks_back(path[last - 1]) == 0) --last;
  std::map<std::pair<int, std::int64_t>, std::size_t> passed;  // by rank and place in its cycle: where on the path
  for (std::size_t i = last; i-- > 0;) {
    if (!repeats(path[i])) return std::nullopt;
    const int rank = graph_.rank_of(path[i]);
    const std::int64_t per_block = repeats_[to_size(rank)].per_block;
    const auto [same, first] = passed.try_emplace({rank, index[path[i]] % (per_block * of.cycle)}, i);
    if (const std::int64_t apart = index[path[same->second]] - index[path[i]]; !first && apart > 0) {
      return PathPart{i + 1, same->second + 1, apart / per_block};
    }
    const auto needs = graph_.needs(path[i]);
    if (!std::all_of(needs.begin(), needs.end(), repeats)) return std::nullopt;
  }
  return std::nullopt;
}

bool SteadyState::roots_repeat(std::span<const IdleRoot> roots, std::int64_t blocks) const {
  std::int64_t depth = blocks + 1;
  for (std::int64_t i = 0; i <= std::min(blocks, std::ssize(reach_) - 1); ++i) depth = std::max(depth, reach_[i]);
  for (const auto& [vertices, per_block] : repeats_) {
    const std::int64_t size = std::ssize(vertices);
    if (size < (depth + blocks) * per_block) return false;
    for (std::int64_t i = size - depth * per_block; i < size; ++i) {
      if (!(roots[vertices[to_size(i)]] == roots[vertices[to_size(i - blocks * per_block)]])) return false;
    }
  }
  return true;
}

bool SteadyState::lanes_continue() const {
  std::vector<char> continues(graph_.lanes().size(), 0);
  for (VertexId v = 0; v < graph_.size(); ++v) {
    const bool step = graph_[v].kind == VertexKind::collective || graph_[v].kind == VertexKind::optimizer;
    if (!step && blocks_back(v) <= 1) continues[to_size(graph_[v].lane)] = 1;
  }
  for (std::size_t lane = 0; lane < continues.size(); ++lane) {
    if (continues[lane] == 0 && graph_.lanes()[lane].kind != LaneKind::collective) return false;
  }
  return true;
}

}  // namespace sluice::sim
