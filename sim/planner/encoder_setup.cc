#include "sim/planner/encoder_setup.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/cost/price.h"
#include "model/errors.h"
#include "model/timeline/memory.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/engine/perturbed.h"
#include "sim/engine/predict.h"

namespace sluice::sim {
namespace {

constexpr double kVerticesToMove = 1e7;  // 1 to 3 s
constexpr std::int64_t kMostSchedules = 6000;

bool of_encoder(const Op& op) { return op.stage == 0; }

// The lists of all ranks, where the slices of an encoder's op are one, and the ranks of the encoder's ops.
struct EncoderLists {
  std::vector<std::vector<Op>> lists;
  std::vector<int> rank_of;  // by microbatch
};

// Simulates schedules that differ in where the encoder of each microbatch runs. Its prices are those of one of them.
class EncoderTimes {
 public:
  explicit EncoderTimes(const Setup& phases)
      : parts_(phases.schedule().parts()), options_(phases.lowering_options()), schedule_(phases.schedule()) {
    const OpGraph& graph = phases.graph();
    Prices prices = price(graph, phases.cost());
    if (phases.scenario().perturbation.slows()) slow_down(graph, phases.scenario().perturbation, prices);
    for (VertexId v = 0; v < graph.size(); ++v) known_.emplace(key(graph, v), prices.duration[v]);
    cluster_ = phases.scenario().cluster;
    latency_ = prices.lane_latency;
    sharing_ = prices.sharing;
  }

  EncoderLists lists() const {
    EncoderLists out{.lists = parts_.orders, .rank_of = {}};
    for (auto& list : out.lists) {
      std::erase_if(list, [](const Op& op) { return of_encoder(op) && op.slice > 0; });
    }
    for (int mb = 0; mb < schedule_.total_microbatches(); ++mb) out.rank_of.push_back(schedule_.rank_of(0, mb));
    return out;
  }

  Schedule schedule(const EncoderLists& from) const {
    ScheduleParts parts = parts_;
    for (std::size_t rank = 0; rank < from.lists.size(); ++rank) {
      std::vector<Op>& list = parts.orders[rank];
      list.clear();
      for (const Op& op : from.lists[rank]) {
        const int slices = of_encoder(op) ? schedule_.num_slices(op.microbatch) : 1;
        for (int i = 0; i < slices; ++i) {
          list.push_back(op);
          if (slices > 1) list.back().slice = static_cast<std::int16_t>(op.kind == OpKind::F ? i : slices - 1 - i);
        }
      }
    }
    for (std::size_t mb = 0; mb < parts.route_of.size(); ++mb) {
      parts.route_of[mb] = static_cast<std::uint8_t>(from.rank_of[mb]);
    }
    return Schedule(std::move(parts));
  }

  struct Run {
    Duration makespan{};
    int excess = 0;  // of memory, if that of the device is known: 1 within its margin, 2 does not fit
    std::vector<std::vector<std::pair<Duration, Duration>>> times;  // by rank and position, if the encoder takes none

    bool better_than(const Run& other) const {
      return std::tie(excess, makespan) < std::tie(other.excess, other.makespan);
    }
  };
  // Nothing for a deadlock, or for more than `most`. `free`: the encoder takes no time.
  std::optional<Run> run(const EncoderLists& lists, bool free = false, Duration most = Duration::max()) {
    ++runs_;
    try {
      const Schedule schedule = this->schedule(lists);
      const OpGraph graph = lower(schedule, options_);
      Prices prices{.duration = {}, .lane_latency = latency_, .sharing = sharing_};
      prices.duration.reserve(graph.size());
      for (VertexId v = 0; v < graph.size(); ++v) {
        const bool none = free && graph[v].kind != VertexKind::collective && graph[v].stage == 0;
        prices.duration.push_back(none ? Duration{0} : known_.at(key(graph, v)));
      }
      const Timeline timeline = simulate(graph, prices);
      Run out{.makespan = *std::max_element(timeline.end.begin(), timeline.end.end()), .times = {}};
      if (out.makespan > most) return std::nullopt;
      if (!free) {
        if (!cluster_ || !graph.has_bytes()) return out;
        const Fit fit = fit_of(*cluster_, memory_over_time(graph, timeline, false));
        out.excess = !fit.fits ? 2 : cluster_->gpu.within_margin(fit.needed_bytes) ? 1 : 0;
        return out;
      }
      out.times.resize(lists.lists.size());
      for (VertexId v = 0; v < graph.size(); ++v) {
        if (graph[v].kind != VertexKind::compute || (graph[v].stage == 0 && graph[v].slice > 0)) continue;
        out.times[to_size(graph[v].lane)].emplace_back(timeline.start[v], timeline.end[v]);
      }
      return out;
    } catch (const ScheduleError&) {
      return std::nullopt;
    }
  }

  // Time that one rank takes for an encoder's op of a microbatch, and of its transfer.
  Duration time(OpKind kind, int microbatch, int rank) const {
    Duration sum{0};
    for (int slice = 0; slice < schedule_.num_slices(microbatch); ++slice) {
      const auto found =
          known_.find(pack(VertexKind::compute, kind, 0, rank, schedule_.shape_index(microbatch), slice));
      if (found != known_.end()) sum += found->second;
    }
    return sum;
  }
  Duration transfer(OpKind kind, int microbatch, int rank) const {
    const int stage = kind == OpKind::F ? 0 : 1;
    const auto found = known_.find(pack(VertexKind::transfer, kind, stage, rank, schedule_.shape_index(microbatch), 0));
    return found == known_.end() ? Duration{0} : found->second + *std::max_element(latency_.begin(), latency_.end());
  }
  int ranks() const { return schedule_.num_ranks(); }
  // Ranks that encode: a schedule has at most 255 routes.
  int encoders() const { return schedule_.num_routes(); }
  std::int64_t runs() const { return runs_; }

 private:
  static std::uint64_t pack(VertexKind kind, OpKind op, int stage, int rank, int shape, int slice) {
    std::uint64_t out = static_cast<std::uint64_t>(kind) * kNumOpKinds + static_cast<std::uint64_t>(op);
    out = (out << 15U) + static_cast<std::uint64_t>(stage + 1);
    out = (out << 13U) + static_cast<std::uint64_t>(rank);
    out = (out << 14U) + static_cast<std::uint64_t>(shape);
    return (out << 15U) + static_cast<std::uint64_t>(slice);
  }

  std::uint64_t key(const OpGraph& graph, VertexId v) const {
    const Vertex& vertex = graph[v];
    const Lane& lane = graph.lanes()[vertex.lane];
    if (vertex.kind == VertexKind::collective) {
      const Collective collective = graph.collective(vertex);
      return pack(vertex.kind, OpKind::F, collective.stage, lane.rank, static_cast<int>(collective.kind),
                  static_cast<int>(collective.buckets));
    }
    if (vertex.kind == VertexKind::optimizer) return pack(vertex.kind, OpKind::F, vertex.stage, lane.rank, 0, 0);
    const bool gradient = vertex.kind == VertexKind::transfer && vertex.op != OpKind::F;
    const OpKind op = gradient ? OpKind::B : vertex.op;  // the same is sent after I
    return pack(vertex.kind, op, vertex.stage, gradient ? lane.peer : lane.rank,
                schedule_.shape_index(vertex.microbatch), vertex.slice);
  }

  ScheduleParts parts_;
  LoweringOptions options_;
  const Schedule& schedule_;
  std::unordered_map<std::uint64_t, Duration> known_;
  std::vector<Duration> latency_;
  LinkSharing sharing_;
  std::optional<Cluster> cluster_;
  std::int64_t runs_ = 0;
};

// Fills the waits of ranks with the encoder's ops of one kind, on a clock on which those of backwards run in reverse.
class Filling {
 public:
  struct Busy {
    std::int64_t start = 0;
    std::int64_t end = 0;
    Op op;
  };

  // No request is placed before the deadline of the one `window` before it.
  Filling(std::vector<std::vector<Busy>> ranks, std::int64_t origin, std::size_t window)
      : ranks_(std::move(ranks)), origin_(origin), window_(window), next_(ranks_.size(), 0) {}

  // Must be added in the order of their deadlines.
  void add_deadline(std::int64_t deadline) { deadlines_.push_back(deadline); }

  // Places `op` of request `i`, on a rank from `first` to `last` that takes `time` for it and `hop` to send it. Returns
  // the rank.
  template <typename Time, typename Hop>
  int place(std::size_t i, const Op& op, int first, int last, Time&& time, Hop&& hop) {
    for (;;) {
      if (i >= window_) origin_ = std::max(origin_, deadlines_[i - window_]);
      int best = -1;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (int rank = first; rank <= last; ++rank) {
        const std::int64_t arrival = earliest(to_size(rank), time(rank)) + time(rank) + hop(rank);
        if (arrival >= least) continue;
        least = arrival;
        best = rank;
      }
      if (least <= deadlines_[i]) {
        put(to_size(best), op, time(best));
        return best;
      }
      std::int64_t length = 0;
      for (int rank = first; rank <= last; ++rank) length = std::max(length, time(rank) + hop(rank));
      pause(deadlines_[i], length);
    }
  }

  std::vector<std::vector<Busy>> take() { return std::move(ranks_); }

 private:
  std::int64_t after(std::size_t rank, std::size_t index) const {
    return index == 0 ? origin_ : std::max(origin_, ranks_[rank][index - 1].end);
  }

  // All earlier waits are shorter or too early, as all requests take the same time.
  std::int64_t earliest(std::size_t rank, std::int64_t time) {
    std::size_t& next = next_[rank];
    while (next < ranks_[rank].size() && ranks_[rank][next].start - after(rank, next) < time) ++next;
    return after(rank, next);
  }

  void put(std::size_t rank, const Op& op, std::int64_t time) {
    const std::int64_t start = earliest(rank, time);
    ranks_[rank].insert(ranks_[rank].begin() + static_cast<std::ptrdiff_t>(next_[rank]), {start, start + time, op});
    ++next_[rank];
  }

  // Delays everything that starts at `clock` or later.
  void pause(std::int64_t clock, std::int64_t length) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<Busy>& list = ranks_[rank];
      const auto from = std::lower_bound(list.begin(), list.end(), clock,
                                         [](const Busy& busy, std::int64_t at) { return busy.start < at; });
      next_[rank] = std::min(next_[rank], to_size(from - list.begin()));
      for (auto each = from; each != list.end(); ++each) {
        each->start += length;
        each->end += length;
      }
    }
    for (std::int64_t& deadline : deadlines_) deadline += deadline >= clock ? length : 0;
  }

  std::vector<std::vector<Busy>> ranks_;
  std::int64_t origin_;
  std::size_t window_;
  std::vector<std::size_t> next_;  // by rank: before this op is the earliest wait that may be long enough
  std::vector<std::int64_t> deadlines_;
};

using Busy = Filling::Busy;

class BubbleSearch {
 public:
  BubbleSearch(const Setup& phases, unsigned seed)
      : times_(phases), random_(seed), size_(static_cast<double>(phases.graph().size())), best_(times_.lists()) {
    least_ = times_.run(best_).value();
    in_phases_ = least_.makespan;
  }

  Schedule run(bool search) {
    const EncoderLists phases = best_;
    const EncoderTimes::Run alone = times_.run(phases, true).value();
    // Encoding far ahead takes memory.
    for (std::size_t window = phases.rank_of.size(); window > 0; window /= 2) {
      if (take_if_better(fill(phases, alone, window))) break;
    }
    if (search) improve();
    return times_.schedule(best_);
  }

  EncoderRun result() const {
    return {.in_phases = in_phases_, .makespan = least_.makespan, .schedules = times_.runs()};
  }

 private:
  // Returns whether it fits clearly.
  bool take_if_better(const EncoderLists& lists) {
    const auto run = times_.run(lists);
    if (!run) return false;
    if (run->better_than(least_)) {
      least_ = *run;
      best_ = lists;
    }
    return run->excess == 0;
  }

  EncoderLists fill(const EncoderLists& phases, const EncoderTimes::Run& alone, std::size_t window) const {
    std::vector<std::vector<Busy>> ranks(phases.lists.size());
    std::vector<Busy> forwards;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (std::size_t i = 0; i < phases.lists[rank].size(); ++i) {
        const auto [start, end] = alone.times[rank][i];
        const Busy busy{start.count(), end.count(), phases.lists[rank][i]};
        if (of_encoder(busy.op)) continue;
        ranks[rank].push_back(busy);
        if (busy.op.stage == 1 && busy.op.kind == OpKind::F && busy.op.slice == 0) forwards.push_back(busy);
      }
    }
    EncoderLists out = phases;
    std::stable_sort(forwards.begin(), forwards.end(), [](const Busy& a, const Busy& b) { return a.start < b.start; });
    Filling first(std::move(ranks), 0, window);
    for (const Busy& each : forwards) first.add_deadline(each.start);
    for (std::size_t i = 0; i < forwards.size(); ++i) {
      const int mb = forwards[i].op.microbatch;
      out.rank_of[to_size(mb)] = first.place(
          i, {.microbatch = mb}, 0, times_.encoders() - 1,
          [&](int rank) { return times_.time(OpKind::F, mb, rank).count(); },
          [&](int rank) { return times_.transfer(OpKind::F, mb, rank).count(); });
    }
    ranks = first.take();
    if (has_backwards(phases)) ranks = fill_backwards(reversed(std::move(ranks)), out, window);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      out.lists[rank].clear();
      for (const Busy& busy : ranks[rank]) out.lists[rank].push_back(busy.op);
    }
    return out;
  }

  static bool has_backwards(const EncoderLists& lists) {
    return std::any_of(lists.lists.begin(), lists.lists.end(), [](const std::vector<Op>& list) {
      return std::any_of(list.begin(), list.end(), [](const Op& op) { return of_encoder(op) && op.kind == OpKind::B; });
    });
  }

  static std::vector<std::vector<Busy>> reversed(std::vector<std::vector<Busy>> ranks) {
    for (std::vector<Busy>& list : ranks) {
      std::reverse(list.begin(), list.end());
      for (Busy& busy : list) busy = {-busy.end, -busy.start, busy.op};
    }
    return ranks;
  }

  std::vector<std::vector<Busy>> fill_backwards(std::vector<std::vector<Busy>> ranks, const EncoderLists& at,
                                                std::size_t window) const {
    std::vector<Busy> gradients;
    std::int64_t origin = 0;
    for (const std::vector<Busy>& list : ranks) {
      for (const Busy& busy : list) {
        origin = std::min(origin, busy.start);
        const bool gradient = busy.op.kind == OpKind::B || busy.op.kind == OpKind::I;
        if (busy.op.stage == 1 && gradient && busy.op.slice == 0) gradients.push_back(busy);
      }
    }
    std::stable_sort(gradients.begin(), gradients.end(),
                     [](const Busy& a, const Busy& b) { return a.start < b.start; });
    Filling last(std::move(ranks), origin, window);
    for (const Busy& each : gradients) last.add_deadline(each.start);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const int mb = gradients[i].op.microbatch;
      const int rank = at.rank_of[to_size(mb)];
      last.place(
          i, {.microbatch = mb, .kind = OpKind::B}, rank, rank,
          [&](int on) { return times_.time(OpKind::B, mb, on).count(); },
          [&](int on) { return times_.transfer(OpKind::B, mb, on).count(); });
    }
    return reversed(last.take());
  }

  std::size_t pick(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }

  // Threshold accepting: moves that lengthen the iteration by less than a threshold, which falls to 0.
  void improve() {
    const auto budget = std::min(kMostSchedules, static_cast<std::int64_t>(kVerticesToMove / size_));
    EncoderLists current = best_;
    Duration now = least_.makespan;
    const Duration warmth = times_.time(OpKind::F, 0, 0) + times_.time(OpKind::B, 0, 0);
    for (std::int64_t i = 0; i < budget; ++i) {
      EncoderLists other = current;
      if (!move(other)) continue;
      const auto run = times_.run(other, false, now + warmth * (budget - i) / (4 * budget));
      if (!run || run->excess > least_.excess) continue;
      current = std::move(other);
      now = run->makespan;
      if (!run->better_than(least_)) continue;
      least_ = *run;
      best_ = current;
    }
  }

  // Moves an op of the encoder in its list, or both of a microbatch to another rank.
  bool move(EncoderLists& lists) {
    const std::size_t mb = pick(lists.rank_of.size());
    std::vector<Op>& from = lists.lists[to_size(lists.rank_of[mb])];
    const auto is_its = [&](const Op& op) { return of_encoder(op) && to_size(op.microbatch) == mb; };
    std::vector<std::size_t> at;
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (is_its(from[i])) at.push_back(i);
    }
    if (times_.encoders() == 1 || pick(2) == 0) {
      const std::size_t index = at[pick(at.size())];
      const Op op = from[index];
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(index));
      insert(from, op, index);
      return true;
    }
    const int to = static_cast<int>(pick(to_size(times_.encoders())));
    if (to == lists.rank_of[mb]) return false;
    std::vector<Op> ops;
    for (const std::size_t index : at) ops.push_back(from[index]);
    const std::size_t length = from.size();
    std::erase_if(from, is_its);
    lists.rank_of[mb] = to;
    std::vector<Op>& list = lists.lists[to_size(to)];
    for (std::size_t i = 0; i < ops.size(); ++i) insert(list, ops[i], at[i] * list.size() / length);
    return true;
  }

  // Near `index`, mostly.
  void insert(std::vector<Op>& list, const Op& op, std::size_t index) {
    const double distance = std::geometric_distribution<int>(0.25)(random_) * (pick(2) == 0 ? 1 : -1);
    const double place = std::clamp(static_cast<double>(index) + distance, 0.0, static_cast<double>(list.size()));
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(place), op);
  }

  EncoderTimes times_;
  std::mt19937 random_;
  double size_;  // of a graph
  EncoderLists best_;
  EncoderTimes::Run least_;
  Duration in_phases_{};
};

}  // namespace

std::unique_ptr<Setup> encoder_setup(const Scenario& scenario, EncoderRun& run, bool search) {
  const std::string place = scenario.source + ": /parallelism/encoder_placement: bubbles: not supported with ";
  if (scenario.documents) throw InputError(place + "documents of different length");
  if (scenario.communicators) throw InputError(place + "queues of communicators");
  if (scenario.training.activation_offload != 0) throw InputError(place + "offloaded activations");
  auto phases = std::make_unique<Setup>(scenario);
  if (phases->schedule().has_joint_blocks())
    throw InputError(place + phases->schedule().family() + ", which has joint blocks");
  BubbleSearch bubbles(*phases, static_cast<unsigned>(scenario.perturbation.seed));
  Schedule found = bubbles.run(search);
  run = bubbles.result();
  return std::make_unique<Setup>(scenario, std::move(found));
}

}  // namespace sluice::sim
