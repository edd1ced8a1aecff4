#include "traces/measured/step_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/to_size.h"
#include "traces/measured/pass_index.h"

namespace sluice::traces {
namespace {

// The resolution of a profiler: times on a worker that differ by less are equal.
constexpr Duration kSameTime = std::chrono::microseconds(5);
// Receives that start this much after the last pass of their direction, and sends that end this much before the first
// one, were recorded but never launched (StragglerAnalysis).
constexpr Duration kNeverLaunched = std::chrono::microseconds(50);
// StragglerAnalysis sets transfers to 0 that end earlier than this before the last member of their group starts.
constexpr Duration kClockError = std::chrono::milliseconds(10);

// Lists of numbers by row.
class Rows {
 public:
  template <typename Visit>
  Rows(std::size_t rows, std::size_t entries, const Visit& each) : begin_(rows + 1, 0), entries_(entries) {
    each([&](std::int32_t row, std::int32_t) { ++begin_[to_size(row) + 1]; });
    for (std::size_t i = 0; i < rows; ++i) begin_[i + 1] += begin_[i];
    std::vector<std::int32_t> next(begin_.begin(), std::prev(begin_.end()));
    each([&](std::int32_t row, std::int32_t entry) { entries_[to_size(next[to_size(row)]++)] = entry; });
  }
  std::size_t size() const { return entries_.size(); }
  std::span<const std::int32_t> of(std::int32_t row) const {
    const auto begin = to_size(begin_[to_size(row)]);
    return std::span(entries_).subspan(begin, to_size(begin_[to_size(row) + 1]) - begin);
  }

 private:
  std::vector<std::int32_t> begin_;
  std::vector<std::int32_t> entries_;
};

class GraphBuilder {
 public:
  GraphBuilder(const MeasuredRun& run, int step, ReceiveRule rule)
      : run_(run), step_(step), rule_(rule), ops_(ops_of_step(run, step)), passes_(run, ops_) {}

  StepGraph graph() {
    receive_of_.assign(ops_.size(), kNoOp);
    send_of_.assign(ops_.size(), kNoOp);
    place_.assign(ops_.size(), 0);
    place_in_kind_.assign(ops_.size(), 0);
    leader_.resize(ops_.size());
    edges_.reserve(ops_.size() * 5 / 2);
    for (std::size_t i = 0; i < ops_.size(); ++i) leader_[i] = static_cast<std::int32_t>(i);
    for (const MeasuredOp& op : ops_) overlapped_ |= op.kind == MeasuredKind::separate_reduce;
    for (int worker = 0; worker < run_.workers(); ++worker) add_worker(worker);
    pair_transfers();
    group_collectives();
    return ordered();
  }

 private:
  const MeasuredOp& at(std::int32_t i) const { return ops_[to_size(i)]; }
  std::int32_t index_of(const MeasuredOp& op) const { return static_cast<std::int32_t>(&op - ops_.data()); }

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("step {}: {}", run_.steps[to_size(step_)], what));
  }
  std::string op_name(const MeasuredOp& op) const {
    std::string name =
        fmt::format("{} {}", run_.name_of(op.worker), kMeasuredKindNames[to_size(static_cast<int>(op.kind))]);
    if (op.microbatch >= 0) name += fmt::format(" of microbatch {}", op.microbatch);
    return name;
  }

  void need(std::int32_t op, std::int32_t needed) {
    if (needed != kNoOp) edges_.emplace_back(op, needed);
  }

  void add_worker(int worker) {
    const std::span<const MeasuredOp> all = run_.of(step_, worker);
    std::vector<std::int32_t> passes;
    std::array<std::vector<std::int32_t>, kNumMeasuredKinds> by_kind;
    for (const MeasuredOp& op : all) {
      const std::int32_t i = index_of(op);
      if (is_pass(op.kind)) passes.push_back(i);
      by_kind[to_size(static_cast<int>(op.kind))].push_back(i);
    }
    const auto of = [&](MeasuredKind kind) -> const std::vector<std::int32_t>& {
      return by_kind[to_size(static_cast<int>(kind))];
    };
    for (std::size_t i = 0; i < passes.size(); ++i) place_[to_size(passes[i])] = static_cast<std::int32_t>(i);
    chain(passes);
    if (rule_ == ReceiveRule::early && !run_.estimated_transfers) {
      for (int kind = 0; kind < kNumMeasuredKinds; ++kind) {
        if (is_pipeline_transfer(static_cast<MeasuredKind>(kind))) chain(by_kind[to_size(kind)]);
      }
    }
    if (run_.estimated_transfers) {
      add_estimated(all, passes);
    } else {
      match(passes, of(MeasuredKind::forward_receive), of(MeasuredKind::forward_send), true);
      match(passes, of(MeasuredKind::backward_receive), of(MeasuredKind::backward_send), false);
    }
    if (rule_ == ReceiveRule::early && !run_.estimated_transfers) {
      hold_first_backward_transfers(passes, of(MeasuredKind::backward_send), of(MeasuredKind::backward_receive));
    }
    add_collectives(passes, of);
  }

  // An estimated receive follows the pass of the neighbouring stage, and a pass the estimated send of the pass before.
  void add_estimated(std::span<const MeasuredOp> all, const std::vector<std::int32_t>& passes) {
    using Key = std::tuple<MeasuredKind, int, int>;  // kind of the transfer, chunk, microbatch
    std::map<Key, std::int32_t> transfers;
    for (const MeasuredOp& op : all) {
      if (is_pipeline_transfer(op.kind)) transfers[{op.kind, op.chunk, op.microbatch}] = index_of(op);
    }
    const auto find = [&](const MeasuredOp& pass, MeasuredKind forward, MeasuredKind backward) {
      const auto found =
          transfers.find({pass.kind == MeasuredKind::forward ? forward : backward, pass.chunk, pass.microbatch});
      return found == transfers.end() ? kNoOp : found->second;
    };
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const MeasuredOp& pass = at(passes[i]);
      const bool weights = pass.kind == MeasuredKind::weight_gradient;
      if (!weights && passes_.stage_before(pass) >= 0) {
        const std::int32_t receive = find(pass, MeasuredKind::forward_receive, MeasuredKind::backward_receive);
        need(receive == kNoOp ? passes[i] : receive, producer(passes[i]));
        need(passes[i], receive);
      }
      if (weights || i + 1 == passes.size()) continue;
      const std::int32_t send = find(pass, MeasuredKind::forward_send, MeasuredKind::backward_send);
      if (send == kNoOp) continue;
      need(send, passes[i]);
      need(passes[i + 1], send);
    }
  }

  void chain(const std::vector<std::int32_t>& ops) {
    for (std::size_t i = 1; i < ops.size(); ++i) need(ops[i], ops[i - 1]);
  }

  // Matches the receives and sends of a direction with the passes that need or cause them.
  void match(const std::vector<std::int32_t>& passes, const std::vector<std::int32_t>& receives,
             const std::vector<std::int32_t>& sends, bool forward) {
    std::vector<std::int32_t> own;
    std::vector<std::int32_t> needing;
    std::vector<std::int32_t> leading;
    for (const std::int32_t pass : passes) {
      const MeasuredOp& op = at(pass);
      if (forward ? op.kind != MeasuredKind::forward : !is_backward(op.kind)) continue;
      place_in_kind_[to_size(pass)] = static_cast<std::int32_t>(own.size());
      own.push_back(pass);
      if (passes_.receives(op)) {
        needing.push_back(pass);
      } else if (passes_.stage_before(op) >= 0) {
        need(pass, producer(pass));
      }
      if (passes_.sends(op)) leading.push_back(pass);
    }
    if (own.empty()) return;
    // A profiler may record receives after the last pass, or sends before the first, that were never launched, and
    // empty ones of the first and the last stage.
    std::vector<std::int32_t> useful;
    Duration last_start{std::numeric_limits<std::int64_t>::min()};
    Duration first_end = Duration::max();
    for (const std::int32_t pass : own) {
      last_start = std::max(last_start, at(pass).start);
      first_end = std::min(first_end, at(pass).end);
    }
    for (const std::int32_t receive : receives) {
      if (at(receive).start <= last_start + kNeverLaunched) useful.push_back(receive);
    }
    order_by_pass(useful, own);
    add_receives(passes, own, needing, useful);
    useful.clear();
    for (const std::int32_t send : sends) {
      if (at(send).end >= first_end - kNeverLaunched) useful.push_back(send);
    }
    order_by_pass(useful, own);
    const std::vector<std::int32_t>& causes = useful.size() == leading.size() ? leading : own;
    if (useful.empty()) return;
    if (useful.size() != causes.size()) {
      fail(fmt::format("{}: {} sends of {}: expected {}", run_.name_of(at(own[0]).worker), useful.size(),
                       forward ? "activations" : "gradients", leading.size()));
    }
    std::map<int, std::int32_t> last;  // by rank that it goes to
    for (std::size_t i = 0; i < useful.size(); ++i) {
      need(useful[i], causes[i]);
      send_of_[to_size(causes[i])] = useful[i];
      follow(last, passes_.rank_after(at(causes[i])), useful[i]);
    }
  }

  // Transfers of a link run in order, unless they overlapped; those of different links do not wait for each other.
  void follow(std::map<int, std::int32_t>& last, int link, std::int32_t transfer) {
    if (rule_ == ReceiveRule::early) return;
    const auto [found, is_new] = last.try_emplace(link, transfer);
    if (is_new) return;
    const std::int32_t before = std::exchange(found->second, transfer);
    if (at(before).end <= at(transfer).start + kSameTime) need(transfer, before);
  }

  // Sorts transfers in the order of their passes, if they name their microbatches.
  void order_by_pass(std::vector<std::int32_t>& transfers, const std::vector<std::int32_t>& own) const {
    using Place = std::tuple<int, int, std::size_t>;  // microbatch, chunk and index of a pass
    std::vector<Place> places;
    for (std::size_t i = 0; i < own.size(); ++i) places.emplace_back(at(own[i]).microbatch, at(own[i]).chunk, i);
    std::sort(places.begin(), places.end());
    std::vector<std::pair<std::size_t, std::int32_t>> sorted;
    for (const std::int32_t transfer : transfers) {
      const int microbatch = at(transfer).microbatch;
      const int chunk = at(transfer).chunk;
      // The last pass of this microbatch and chunk.
      const auto after = std::lower_bound(places.begin(), places.end(), Place{microbatch, chunk + 1, 0});
      if (microbatch < 0 || after == places.begin()) return;
      const auto& [its_microbatch, its_chunk, place] = *std::prev(after);
      if (its_microbatch != microbatch || its_chunk != chunk) return;
      sorted.emplace_back(place, transfer);
    }
    std::sort(sorted.begin(), sorted.end());
    std::transform(sorted.begin(), sorted.end(), transfers.begin(), [](const auto& each) { return each.second; });
  }

  void add_receives(const std::vector<std::int32_t>& passes, const std::vector<std::int32_t>& own,
                    const std::vector<std::int32_t>& needing, const std::vector<std::int32_t>& receives) {
    std::size_t skipped = 0;  // passes without a receive
    const std::vector<std::int32_t>* takers = &needing;
    if (receives.size() != needing.size() && !receives.empty()) {
      takers = &own;
      skipped = own.size() - receives.size();
      // Unless empty ones were recorded too, of which the first may be missing.
      if (receives.size() > own.size() || skipped > 1 || needing.size() == own.size()) {
        fail(fmt::format("{}: {} receives of {}: expected {}", run_.name_of(at(own[0]).worker), receives.size(),
                         at(own[0]).kind == MeasuredKind::forward ? "activations" : "gradients", needing.size()));
      }
      if (run_.has_transfers && run_.chunks == 1) {
        fail(fmt::format("{} receives {}: a rank {} it is missing", run_.name_of(at(own[0]).worker),
                         at(own[0]).kind == MeasuredKind::forward ? "activations" : "gradients",
                         at(own[0]).kind == MeasuredKind::forward ? "before" : "after"));
      }
    }
    std::map<int, std::int32_t> last;  // by rank that it comes from
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const std::int32_t pass = (*takers)[i + skipped];
      need(pass, receives[i]);
      receive_of_[to_size(pass)] = receives[i];
      follow(last, passes_.rank_before(at(pass)), receives[i]);
      if (rule_ == ReceiveRule::early) {
        const std::int32_t self = place_in_kind_[to_size(pass)];
        if (self > 0) need(receives[i], own[to_size(self - 1)]);
        continue;
      }
      // The last pass before `pass` that had ended.
      const auto own_pass = passes.begin() + place_[to_size(pass)];
      const auto later = std::upper_bound(passes.begin(), own_pass, at(receives[i]).start + kSameTime,
                                          [&](Duration time, std::int32_t each) { return time < at(each).end; });
      if (later != passes.begin()) need(receives[i], *std::prev(later));
    }
    for (const std::int32_t pass : needing) {
      if (receive_of_[to_size(pass)] == kNoOp) need(pass, producer(pass));
    }
  }

  std::int32_t producer(std::int32_t pass) const {
    const std::int32_t found = passes_.before(at(pass));
    if (found == kNoOp && passes_.stage_before(at(pass)) >= 0) {
      fail(fmt::format("{}: the pass of stage {} is missing", op_name(at(pass)), passes_.stage_before(at(pass))));
    }
    return found;
  }

  void hold_first_backward_transfers(const std::vector<std::int32_t>& passes, const std::vector<std::int32_t>& sends,
                                     const std::vector<std::int32_t>& receives) {
    const auto first =
        std::find_if(passes.begin(), passes.end(), [&](std::int32_t pass) { return is_backward(at(pass).kind); });
    if (first == passes.end() || first - passes.begin() < 2) return;
    const std::int32_t held = *std::prev(first, 2);
    if (!sends.empty()) need(sends[0], held);
    if (!receives.empty()) need(receives[0], held);
  }

  template <typename Of>
  void add_collectives(const std::vector<std::int32_t>& passes, const Of& of) {
    if (passes.empty()) return;
    const std::vector<std::int32_t>& gathers = of(MeasuredKind::parameter_gather);
    const std::vector<std::int32_t>& scatters = of(MeasuredKind::gradient_scatter);
    std::vector<std::int32_t> stream = gathers;
    stream.insert(stream.end(), scatters.begin(), scatters.end());
    std::sort(stream.begin(), stream.end(), [&](std::int32_t a, std::int32_t b) { return at(a).start < at(b).start; });
    chain(stream);
    precede_forwards(passes, gathers);
    const std::int32_t last =
        *std::max_element(passes.begin(), passes.end(), [&](auto a, auto b) { return at(a).end < at(b).end; });
    std::vector<std::int32_t> tail;
    const auto append = [&](MeasuredKind kind) { tail.insert(tail.end(), of(kind).begin(), of(kind).end()); };
    append(MeasuredKind::garbage_collection);
    append(MeasuredKind::layernorm_reduce);
    append(MeasuredKind::embedding_reduce);
    if (!follows_backwards(passes, scatters)) append(MeasuredKind::gradient_scatter);
    append(MeasuredKind::separate_reduce);
    append(MeasuredKind::clip);
    append(MeasuredKind::optimizer);
    if (tail.empty()) return;
    if (rule_ == ReceiveRule::observed) {
      std::stable_sort(tail.begin(), tail.end(),
                       [&](std::int32_t a, std::int32_t b) { return at(a).start < at(b).start; });
    }
    need(tail[0], last);
    chain(tail);
    if (follows_backwards(passes, scatters)) {
      add_overlapped_scatters(passes, scatters);
      const auto reduction = std::find_if(
          tail.begin(), tail.end(), [&](std::int32_t op) { return at(op).kind != MeasuredKind::garbage_collection; });
      if (reduction != tail.end() && !scatters.empty()) need(*reduction, scatters.back());
    }
  }

  // A gather precedes the first forward of its chunk; of several of a chunk, the last one counts.
  void precede_forwards(const std::vector<std::int32_t>& passes, const std::vector<std::int32_t>& gathers) {
    std::vector<char> done(to_size(run_.chunks), 0);
    for (auto gather = gathers.rbegin(); gather != gathers.rend(); ++gather) {
      char& seen = done[to_size(at(*gather).chunk)];
      if (std::exchange(seen, 1) != 0) continue;
      for (const std::int32_t pass : passes) {
        if (at(pass).kind != MeasuredKind::forward || at(pass).chunk != at(*gather).chunk) continue;
        need(pass, *gather);
        break;
      }
    }
  }

  // Whether gradient scatters start among the passes.
  bool follows_backwards(const std::vector<std::int32_t>& passes, const std::vector<std::int32_t>& scatters) const {
    if (rule_ == ReceiveRule::early || scatters.empty()) return overlapped_;
    return at(scatters.front()).start + kSameTime < at(passes.back()).end;
  }

  void add_overlapped_scatters(const std::vector<std::int32_t>& passes, const std::vector<std::int32_t>& scatters) {
    std::vector<char> done(to_size(run_.chunks), 0);
    for (const std::int32_t scatter : scatters) {
      char& seen = done[to_size(at(scatter).chunk)];
      if (rule_ == ReceiveRule::early && std::exchange(seen, 1) != 0) continue;
      std::int32_t last = kNoOp;
      for (const std::int32_t pass : passes) {
        if (rule_ == ReceiveRule::observed && at(pass).end > at(scatter).start + kSameTime) break;
        const bool own = at(pass).kind != MeasuredKind::forward && at(pass).chunk == at(scatter).chunk;
        if (own || rule_ == ReceiveRule::observed) last = pass;
      }
      need(scatter, last);
    }
  }

  std::int32_t lead(std::int32_t op) {
    while (leader_[to_size(op)] != op) op = leader_[to_size(op)] = leader_[to_size(leader_[to_size(op)])];
    return op;
  }
  void join(std::int32_t a, std::int32_t b) {
    a = lead(a);
    b = lead(b);
    leader_[to_size(std::max(a, b))] = std::min(a, b);
  }

  // Receives form a group with their sends. A receive without a recorded send follows the pass of its sender.
  void pair_transfers() {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const std::int32_t receive = receive_of_[i];
      if (receive == kNoOp || !passes_.receives(ops_[i])) continue;
      const std::int32_t from = producer(static_cast<std::int32_t>(i));
      const std::int32_t send = send_of_[to_size(from)];
      send == kNoOp ? need(receive, from) : join(receive, send);
    }
  }

  void group_collectives() {
    // Members share these numbers; -1: any.
    using Key = std::tuple<MeasuredKind, int, int, int, int>;  // kind, replica, rank, shard, number
    std::map<Key, std::int32_t> first;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const MeasuredOp& op = ops_[i];
      const int replica = run_.replica_of(op.worker);
      const int rank = run_.rank_of(op.worker);
      const int shard = run_.shard_of(op.worker);
      Key key;
      switch (op.kind) {
        case MeasuredKind::parameter_gather:
        case MeasuredKind::gradient_scatter:
        case MeasuredKind::separate_reduce: key = {op.kind, -1, rank, shard, op.number}; break;
        case MeasuredKind::embedding_reduce: key = {op.kind, replica, -1, shard, op.number}; break;
        case MeasuredKind::clip: key = {op.kind, -1, -1, -1, op.number}; break;
        default: continue;
      }
      const auto [found, is_new] = first.try_emplace(key, static_cast<std::int32_t>(i));
      if (!is_new) join(found->second, static_cast<std::int32_t>(i));
    }
  }

  // Sorts the groups topologically. Frees what it has used: a step of a long timeline has millions of ops.
  StepGraph ordered() {
    const std::size_t n = ops_.size();
    for (auto* const used : {&receive_of_, &send_of_, &place_, &place_in_kind_}) std::exchange(*used, {});
    std::vector<std::int32_t> group(n);
    for (std::size_t i = 0; i < n; ++i) group[i] = lead(static_cast<std::int32_t>(i));
    std::exchange(leader_, {});
    const Rows needs(n, edges_.size(), [&](auto&& visit) {
      for (const auto& [op, needed] : edges_) visit(op, needed);
    });
    std::exchange(edges_, {});
    StepGraph graph;
    graph.ops.reserve(n);
    std::vector<std::int32_t> position(n, kNoOp);
    {
      const Rows members(n, n, [&](auto&& visit) {
        for (std::size_t i = 0; i < n; ++i) visit(group[i], static_cast<std::int32_t>(i));
      });
      for (const std::int32_t leader : leaders_in_order(group, needs)) {
        graph.group_begin.push_back(static_cast<std::int32_t>(graph.ops.size()));
        for (const std::int32_t op : members.of(leader)) {
          position[to_size(op)] = static_cast<std::int32_t>(graph.ops.size());
          graph.ops.push_back(&at(op));
        }
      }
    }
    graph.group_begin.push_back(static_cast<std::int32_t>(graph.ops.size()));
    for (std::size_t i = 0; i < n; ++i) {
      if (position[i] == kNoOp) {
        fail(fmt::format("{} can never start: the orders of the workers contradict each other", op_name(ops_[i])));
      }
    }
    graph.need_begin.reserve(n + 1);
    graph.needs.reserve(needs.size());
    for (const MeasuredOp* op : graph.ops) {
      graph.need_begin.push_back(static_cast<std::int32_t>(graph.needs.size()));
      for (const std::int32_t needed : needs.of(index_of(*op))) graph.needs.push_back(position[to_size(needed)]);
    }
    graph.need_begin.push_back(static_cast<std::int32_t>(graph.needs.size()));
    set_times(graph);
    return graph;
  }

  // The leaders of the groups in topological order, without those that can never start. `needs` by op.
  static std::vector<std::int32_t> leaders_in_order(const std::vector<std::int32_t>& group, const Rows& needs) {
    const std::size_t n = group.size();
    const auto each_edge = [&](auto&& visit) {
      for (std::size_t op = 0; op < n; ++op) {
        for (const std::int32_t needed : needs.of(static_cast<std::int32_t>(op)))
          visit(group[to_size(needed)], group[op]);
      }
    };
    const Rows users(n, needs.size(), each_edge);
    std::vector<std::int32_t> open(n, 0);
    each_edge([&](std::int32_t, std::int32_t user) { ++open[to_size(user)]; });
    std::vector<std::int32_t> order;
    for (std::size_t i = 0; i < n; ++i) {
      if (group[i] == static_cast<std::int32_t>(i) && open[i] == 0) order.push_back(group[i]);
    }
    for (std::size_t done = 0; done < order.size(); ++done) {
      for (const std::int32_t user : users.of(order[done])) {
        if (--open[to_size(user)] == 0) order.push_back(user);
      }
    }
    return order;
  }

  void set_times(StepGraph& graph) const {
    graph.transfer.resize(graph.size());
    graph.delay.resize(graph.size());
    for (std::size_t g = 0; g + 1 < graph.group_begin.size(); ++g) {
      Duration last_start{std::numeric_limits<std::int64_t>::min()};
      Duration ready = Duration::zero();
      for (auto p = graph.group_begin[g]; p < graph.group_begin[g + 1]; ++p) {
        last_start = std::max(last_start, graph.ops[to_size(p)]->start);
        for (auto i = graph.need_begin[to_size(p)]; i < graph.need_begin[to_size(p) + 1]; ++i) {
          ready = std::max(ready, graph.ops[to_size(graph.needs[to_size(i)])]->end);
        }
      }
      for (auto p = graph.group_begin[g]; p < graph.group_begin[g + 1]; ++p) {
        Duration time = graph.ops[to_size(p)]->end - last_start;
        if (time <= -kClockError || rule_ == ReceiveRule::observed) time = std::max(time, Duration::zero());
        graph.transfer[to_size(p)] = static_cast<double>(time.count());
        graph.delay[to_size(p)] = static_cast<double>(std::max(last_start - ready, Duration::zero()).count());
      }
    }
  }

  const MeasuredRun& run_;
  int step_;
  ReceiveRule rule_;
  std::span<const MeasuredOp> ops_;
  PassIndex passes_;
  bool overlapped_ = false;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges_;  // an op, and one that it needs
  std::vector<std::int32_t> receive_of_;                      // of passes
  std::vector<std::int32_t> send_of_;
  std::vector<std::int32_t> place_;          // of a pass among those of its worker
  std::vector<std::int32_t> place_in_kind_;  // and among those of its direction
  std::vector<std::int32_t> leader_;         // of groups: a forest
};

}  // namespace

StepGraph step_graph(const MeasuredRun& run, int step, ReceiveRule rule) {
  return GraphBuilder(run, step, rule).graph();
}

void drop_steps_without_graph(MeasuredRun& run, const std::string& source) {
  std::vector<std::int32_t> number(run.steps.size(), -1);
  std::vector<std::int64_t> kept;
  std::string why;
  std::size_t dropped = 0;
  constexpr std::size_t kMostNamed = 5;
  for (std::size_t step = 0; step < run.steps.size(); ++step) {
    try {
      step_graph(run, static_cast<int>(step), ReceiveRule::observed);
      number[step] = static_cast<std::int32_t>(kept.size());
      kept.push_back(run.steps[step]);
    } catch (const InputError& error) {
      why = error.what();
      if (++dropped <= kMostNamed) run.notes.push_back(why + ": left out");
    }
  }
  if (kept.empty()) throw InputError(fmt::format("{}: no step can be replayed: {}", source, why));
  if (dropped == 0) return;
  if (dropped > kMostNamed) run.notes.push_back(fmt::format("and {} more steps", dropped - kMostNamed));
  std::erase_if(run.ops, [&](const MeasuredOp& op) { return number[to_size(op.step)] < 0; });
  for (MeasuredOp& op : run.ops) op.step = number[to_size(op.step)];
  run.steps = std::move(kept);
  arrange_ops(run);
}

}  // namespace sluice::traces
