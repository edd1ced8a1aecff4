#include "exec/watch/wait_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <tuple>

#include "exec/watch/recorder_file.h"
#include "exec/watch/wait_graph.h"

namespace sluice::exec {
namespace {

std::string seconds(std::int64_t ns) { return fmt::format("{:.1f} s", static_cast<double>(ns) / 1e9); }

// Describes what a WaitGraph found.
class WaitWords {
 public:
  WaitWords(const OpGraph& graph, const std::vector<RecorderOwner>& owners, const WaitLimits& limits,
            const WaitGraph& waits, std::int64_t now_ns)
      : graph_(graph), owners_(owners), limits_(limits), waits_(waits), now_ns_(now_ns) {
    parallel_ = std::any_of(owners.begin(), owners.end(),
                            [](const RecorderOwner& owner) { return owner.data_rank > 0 || owner.tensor_rank > 0; });
  }

  std::string rank(int world_rank) const { return rank_name(owners_[world_rank], parallel_); }

  // The name of the vertex that a thread is in, or "".
  std::string op(int node) const {
    const Doing& doing = waits_.doing(node);
    switch (doing.activity) {
      case Activity::starting:
      case Activity::between:
      case Activity::coordinating:
      case Activity::finished: return "";
      default: return doing.vertex < graph_.size() ? graph_.name(doing.vertex) : "";
    }
  }

  // The predicate of `node`, which waits for `other`.
  std::string wait(int node, int other) const {
    const Doing& doing = waits_.doing(node);
    const std::string whom = other / 2 != node / 2 ? rank(other / 2)
                             : other % 2 == 0      ? "its compute thread"
                                                   : "its collective thread";
    switch (doing.activity) {
      case Activity::reducing: return fmt::format("waits in an all-reduce of {} for {}", op(node), whom);
      case Activity::dispatching: return fmt::format("exchanges tokens of experts in {} with {}", op(node), whom);
      case Activity::exchanging: return fmt::format("waits in {} for {}", op(node), whom);
      case Activity::working: return fmt::format("sends {} to {}", sent(doing.vertex), whom);
      case Activity::waiting:
        if (waits_.sends(node, doing.waits_for)) return fmt::format("sends {} to {}", sent(doing.waits_for), whom);
        return fmt::format("waits for {} from {}", awaited(doing), whom);
      case Activity::coordinating: return fmt::format("waits {} for {}", outside(doing), whom);
      case Activity::between:
        if (measures(doing)) return fmt::format("measures together with {}", whom);
        [[fallthrough]];
      default: return fmt::format("waits for a step to begin from {}", whom);
    }
  }

  // The predicate of the last node of a chain.
  std::string state(int node) const {
    const WaitNode& here = waits_.nodes()[node];
    const Doing& doing = waits_.doing(node);
    const std::string duration = " for " + seconds(now_ns_ - here.since_ns);
    if (!waits_.worker(node).seen) return "is not visible from this host";
    if (here.cause == RootCause::dead) return "died " + place(node);
    const bool stopped = doing.activity == Activity::stopped;
    if (here.cause == RootCause::failed) return (stopped ? "was stopped " : "failed ") + place(node);
    if (waits_.worker(node).process == ProcessState::suspended) {
      return fmt::format("has been suspended {}{}", place(node), duration);
    }
    switch (doing.activity) {
      case Activity::starting: return "has been starting" + duration;
      case Activity::between: return fmt::format("has been {}{}", outside(doing), duration);
      case Activity::coordinating:
        return fmt::format("has waited {} for {}{}{}", outside(doing), rank(static_cast<int>(doing.waits_for)),
                           duration, here.cause == RootCause::lost ? ": a message between the two is lost" : "");
      case Activity::finished: return "has finished";
      case Activity::working:
      case Activity::reducing:
      case Activity::dispatching:
      case Activity::exchanging:
      case Activity::waiting:
      case Activity::failed:
      case Activity::stopped: break;
    }
    if (here.all_there) {
      return fmt::format("has been in {}{} since its last rank joined: a message between its ranks is lost", op(node),
                         duration);
    }
    if (doing.activity == Activity::waiting) return fmt::format("has waited for {}{}", awaited(doing), duration);
    return fmt::format("has been inside {}{}", op(node), duration);
  }

  // Follows `state` for an op past its deadline.
  std::string beyond(int node) const {
    const WaitNode& here = waits_.nodes()[node];
    if (here.cause != RootCause::slow) return "";
    return ", past its deadline of " + seconds(limits_.deadline_ns(waits_.doing(node).vertex));
  }

  // A process dies or is suspended as a whole, whichever of its threads tells where.
  std::string subject(int node) const {
    const bool whole = node % 2 == 0 || waits_.nodes()[node].cause == RootCause::dead ||
                       waits_.worker(node).process == ProcessState::suspended;
    return whole ? rank(node / 2) : "the collective thread of " + rank(node / 2);
  }

  // The op whose result is sent, as "F(stage 1, mb 0)".
  std::string sent(VertexId transfer) const { return op_of(graph_[transfer]); }

  // What a thread waits for: for a message the op that reads it, otherwise the name of the vertex.
  std::string awaited(const Doing& doing) const {
    const Vertex& message = graph_[doing.waits_for];
    if (message.kind != VertexKind::transfer) return graph_.name(doing.waits_for);
    const Vertex& reader = graph_[doing.vertex];
    const bool forward = message.op == OpKind::F;
    const auto is_for = [&](const Vertex& op) {
      return op.microbatch == message.microbatch && op.slice == message.slice &&
             op.stage == message.stage + (forward ? 1 : -1) && (op.op == OpKind::F) == forward && op.op != OpKind::W;
    };
    if (is_for(reader)) return op_of(reader);
    if (reader.kind == VertexKind::joint && is_for(graph_.joint_partner(reader))) {
      return op_of(graph_.joint_partner(reader));
    }
    return graph_.name(doing.waits_for);
  }

 private:
  std::string op_of(const Vertex& vertex) const {
    return to_string(
        Op{.microbatch = vertex.microbatch, .stage = vertex.stage, .slice = vertex.slice, .kind = vertex.op},
        graph_.schedule().sliced());
  }

  // "between steps, after step 3," or "at the checkpoint, after step 3,", without the last comma if `end` is "".
  static std::string outside(const Doing& doing, std::string_view end = ",") {
    const std::string_view phase = name_of(static_cast<ControlPhase>(doing.vertex));
    const std::string text = phase.empty() ? "between steps" : fmt::format("at {}", phase);
    return doing.step < 0 ? text : fmt::format("{}, after step {}{}", text, doing.step + 1, end);
  }

  std::string place(int node) const {
    const Doing& doing = waits_.doing(node);
    switch (doing.activity) {
      case Activity::starting: return "while starting";
      case Activity::between:
      case Activity::coordinating: return outside(doing, "");
      case Activity::waiting: return fmt::format("in step {}, waiting for {}", doing.step + 1, awaited(doing));
      default:
        return op(node).empty() ? fmt::format("in step {}", doing.step + 1)
                                : fmt::format("in step {}, inside {}", doing.step + 1, op(node));
    }
  }

  const OpGraph& graph_;
  const std::vector<RecorderOwner>& owners_;
  const WaitLimits& limits_;
  const WaitGraph& waits_;
  std::int64_t now_ns_;
  bool parallel_ = false;
};

// The nodes that reach a set of roots.
struct Reach {
  std::vector<int> next;      // next node on the way to a root; -1: a root, or does not reach one
  std::vector<int> distance;  // -1: does not reach a root
};

Reach reach(std::span<const WaitNode> nodes, const std::vector<int>& roots) {
  std::vector<std::vector<int>> waiters(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const int other : nodes[i].waits_for) {
      waiters[other].push_back(static_cast<int>(i));
    }
  }
  Reach found{.next = std::vector<int>(nodes.size(), -1), .distance = std::vector<int>(nodes.size(), -1)};
  std::deque<int> queue(roots.begin(), roots.end());
  for (const int root : roots) found.distance[root] = 0;
  while (!queue.empty()) {
    const int node = queue.front();
    queue.pop_front();
    for (const int waiter : waiters[node]) {
      if (found.distance[waiter] >= 0) continue;
      found.distance[waiter] = found.distance[node] + 1;
      found.next[waiter] = node;
      queue.push_back(waiter);
    }
  }
  return found;
}

constexpr int kPerhaps = 8;  // may still turn out to be no fault
constexpr int kNoTrouble = 9;

// Rank of an explanation; smaller explains more. Dead and failed workers are named before their grace period is over,
// so that their consequences do not come first.
int tier(const WaitGraph& waits, int node) {
  const WaitNode& here = waits.nodes()[node];
  const Activity activity = waits.doing(node).activity;
  switch (here.cause) {
    case RootCause::dead:
      // The compute thread tells more than a collective thread that does nothing or waits for it.
      if (node % 2 == 1 &&
          (activity == Activity::starting || activity == Activity::between || activity == Activity::waiting)) {
        return kNoTrouble;
      }
      // Killed inside an op: the others ended because of it.
      return activity == Activity::working || activity == Activity::reducing || activity == Activity::dispatching ? 0
                                                                                                                  : 1;
    case RootCause::failed:
      // A worker that was stopped is a consequence: what it was stopped for comes first. A collective thread that ended
      // with its worker explains less than the compute thread.
      if (activity == Activity::stopped) return here.broken ? 7 : kPerhaps;
      return activity == Activity::failed ? 2 : kNoTrouble;
    case RootCause::stopped: return here.broken ? (here.idle ? 7 : 4) : kPerhaps;
    case RootCause::slow: return 5;
    case RootCause::lost: return here.broken ? 6 : kPerhaps;
    case RootCause::cycle:
    case RootCause::none: break;
  }
  return kNoTrouble;
}

// Returns the node whose fault explains most; without a fault the end of the chain that most workers wait for; -1 if no
// worker is active.
int worst(const WaitGraph& waits) {
  const auto nodes = waits.nodes();
  std::tuple<int, std::int64_t, int> best(kNoTrouble, 0, -1);  // tier, since, node
  for (int node = 0; node < std::ssize(nodes); ++node) {
    const WaitNode& here = nodes[node];
    const int rank = tier(waits, node);
    if (!here.waits_for.empty() || rank == kNoTrouble) continue;
    best = std::min(best, {rank, rank < 3 ? waits.doing(node).since_ns : here.since_ns, node});
  }
  if (std::get<2>(best) >= 0) return std::get<2>(best);
  std::tuple<std::ptrdiff_t, std::int64_t, int> most(0, 0, -1);  // how many wait (negative), since, node
  for (int node = 0; node < std::ssize(nodes); ++node) {
    const WaitNode& here = nodes[node];
    if (!here.waits_for.empty()) continue;
    const Reach found = reach(nodes, {node});
    const auto waiting = std::count_if(found.distance.begin(), found.distance.end(), [](int d) { return d > 0; });
    const bool acts = waits.worker(node).seen && waits.doing(node).activity != Activity::finished && !here.idle;
    if (waiting == 0 && !acts) continue;
    if (std::get<2>(most) < 0 || std::tuple(-waiting, here.since_ns, node) < most) {
      most = {-waiting, here.since_ns, node};
    }
  }
  return std::get<2>(most);
}

void join(WaitReport& report, const std::string& subject) {
  report.chain = subject;
  for (std::size_t i = 0; i < report.links.size(); ++i) {
    report.chain += (i == 0 ? " " : ", which ") + report.links[i].text;
  }
}

WaitReport report_cycle(const WaitWords& words, const WaitGraph& waits, const WaitLimits& limits,
                        std::vector<int> cycle, std::int64_t now_ns) {
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
  WaitReport report{.cause = RootCause::cycle, .world_rank = cycle.front() / 2};
  const Doing& first = waits.doing(cycle.front());
  report.step = first.step;
  report.op = words.op(cycle.front());
  if (!report.op.empty()) report.vertex = first.vertex;
  std::int64_t since = first.since_ns;
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const int node = cycle[i];
    since = std::max(since, waits.doing(node).since_ns);
    report.links.push_back(
        {node / 2, static_cast<WorkerThread>(node % 2), words.wait(node, cycle[(i + 1) % cycle.size()])});
  }
  report.broken = now_ns - since > limits.floor_ns;
  join(report, words.subject(cycle.front()));
  report.root = fmt::format("{} has been in a wait-for cycle of {} threads for {}", words.subject(cycle.front()),
                            cycle.size(), seconds(now_ns - since));
  const Reach found = reach(waits.nodes(), cycle);
  for (std::size_t i = 0; i < found.distance.size(); i += 2) {
    const int rank = static_cast<int>(i) / 2;
    if (rank != report.world_rank && (found.distance[i] >= 0 || found.distance[i + 1] >= 0)) {
      report.waiting.push_back(rank);
    }
  }
  return report;
}

WaitReport report_root(const OpGraph& graph, const WaitWords& words, const WaitGraph& waits, int root) {
  const WaitNode& end = waits.nodes()[root];
  const Doing& doing = waits.doing(root);
  WaitReport report{.broken = end.broken, .cause = end.cause, .world_rank = root / 2, .step = doing.step};
  report.op = words.op(root);
  if (!report.op.empty()) report.vertex = doing.vertex;
  report.root = words.subject(root) + " " + words.state(root) + words.beyond(root);

  // If the worker has ended or is suspended, both of its threads are roots.
  const bool whole = end.cause == RootCause::dead || end.cause == RootCause::failed ||
                     waits.worker(root).process == ProcessState::suspended;
  const int other = root ^ 1;
  std::vector<int> roots = {root};
  if (whole && waits.nodes()[other].waits_for.empty()) roots.push_back(other);
  const Reach found = reach(waits.nodes(), roots);
  const auto farthest = std::max_element(found.distance.begin(), found.distance.end());
  int node = static_cast<int>(farthest - found.distance.begin());
  if (*farthest == 0) node = root;
  // Skip the collective thread of a worker whose compute thread is the next link: it adds nothing.
  if (node % 2 == 1 && *farthest > 1 && found.next[node] == node - 1) node -= 1;
  const std::string first = words.subject(node);
  const auto add = [&](int who, std::string text) {
    report.links.push_back({who / 2, static_cast<WorkerThread>(who % 2), std::move(text)});
  };
  while (found.next[node] >= 0) {
    const int next = found.next[node];
    add(node, words.wait(node, next));
    node = next;
  }
  const bool message = end.cause == RootCause::lost && !end.all_there;
  const bool unseen_end = end.cause == RootCause::stopped && end.culprit >= 0;
  if (message && end.culprit != root / 2) {
    // The sender is at fault.
    report.world_rank = end.culprit;
    report.vertex = doing.waits_for;
    report.op = graph.name(doing.waits_for);
    add(node, words.wait(node, 2 * end.culprit));
    add(2 * end.culprit, "has sent it: the message is lost");
    report.root = fmt::format("{}, sent by {} in step {}, is lost: {} {}", report.op, words.rank(end.culprit),
                              doing.step + 1, words.subject(root), words.state(root));
  } else if (message) {
    add(node, words.state(node) + ", although it was received");
  } else if (unseen_end) {
    add(node, words.state(node) + ", although it is complete");
    report.root += ", although it is complete";
  } else {
    add(node, words.state(node));
  }
  join(report, first);
  for (std::size_t i = 0; i < found.distance.size(); i += 2) {
    const int rank = static_cast<int>(i) / 2;
    if (rank == report.world_rank) continue;
    const bool waits_for_it = found.distance[i] > 0 || found.distance[i + 1] > 0 || (message && rank == root / 2);
    if (waits_for_it) report.waiting.push_back(rank);
  }
  return report;
}

}  // namespace

struct WaitChains::Memory : WaitMemory {
  std::vector<VertexId> readers;
};

std::int64_t WaitLimits::deadline_ns(VertexId v) const {
  if (!expected_ns) return floor_ns;
  // In floating point, to avoid overflow.
  const double allowed = multiple * static_cast<double>(expected_ns(v));
  return allowed > 9e18 ? std::int64_t{9'000'000'000'000'000'000}
                        : std::max(floor_ns, static_cast<std::int64_t>(allowed));
}

std::int64_t WaitLimits::outside_ns(const Doing& doing) const {
  const bool between =
      doing.activity == Activity::between && static_cast<ControlPhase>(doing.vertex) == ControlPhase::none;
  return std::max(floor_ns, between ? idle_ns : control_ns);
}

std::string WaitReport::text() const {
  std::string out = root;
  if (links.size() > 1) out += "\n" + chain;
  if (!waiting.empty()) {
    out += fmt::format("\nwaiting for it: {} {}", waiting.size() == 1 ? "rank" : "ranks", fmt::join(waiting, ", "));
  }
  return out;
}

std::string rank_name(const RecorderOwner& owner, bool parallel) {
  if (!parallel) return fmt::format("rank {}", owner.world_rank);
  return fmt::format("rank {} (pipeline {}, data {}, tensor {})", owner.world_rank, owner.pipeline_rank,
                     owner.data_rank, owner.tensor_rank);
}

std::vector<int> collective_ranks(const OpGraph& graph, const std::vector<RecorderOwner>& owners, VertexId v,
                                  int world_rank) {
  const Collective collective = graph.collective(graph[v]);
  const RecorderOwner& me = owners[world_rank];
  const bool over_data =
      collective.kind == CollectiveKind::gradient_reduce || collective.kind == CollectiveKind::parameter_gather;
  const bool over_tensor = collective.kind == CollectiveKind::global_norm;
  // The global norm is over all replicas, because they hold different experts. Gradients of experts are reduced over
  // the ranks that have the same ones.
  const bool has_experts = me.expert_ranks > 0;
  const auto has_same_experts = [&](const RecorderOwner& other) {
    return has_experts && (other.world_rank - me.world_rank) % me.expert_ranks == 0;
  };
  std::vector<int> ranks;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const RecorderOwner& other = owners[i];
    const bool in_pipeline =
        std::find(collective.ranks.begin(), collective.ranks.end(), other.pipeline_rank) != collective.ranks.end();
    const bool of_replicas = over_data && has_same_experts(other);
    const bool of_norm = over_tensor && has_experts;
    if (in_pipeline &&
        (of_replicas || of_norm ||
         ((over_data || other.data_rank == me.data_rank) && (over_tensor || other.tensor_rank == me.tensor_rank)))) {
      ranks.push_back(static_cast<int>(i));
    }
  }
  return ranks;
}

std::vector<int> expert_group(const std::vector<RecorderOwner>& owners, int world_rank) {
  const int size = std::max(owners[world_rank].expert_ranks, 1);
  std::vector<int> ranks;
  for (const RecorderOwner& other : owners) {
    if (other.world_rank / size == world_rank / size) ranks.push_back(other.world_rank);
  }
  return ranks;
}

WaitChains::WaitChains(const OpGraph& graph, std::vector<RecorderOwner> owners, WaitLimits limits)
    : graph_(graph), owners_(std::move(owners)), limits_(std::move(limits)), memory_(std::make_unique<Memory>()) {
  memory_->readers = transfer_readers(graph);
}

WaitChains::~WaitChains() = default;

WaitReport WaitChains::examine(const std::vector<WorkerView>& workers, std::int64_t now_ns) {
  const WaitGraph waits(graph_, memory_->readers, owners_, limits_, workers, now_ns, *memory_);
  const WaitWords words(graph_, owners_, limits_, waits, now_ns);
  const int root = worst(waits);
  // A cycle explains less than a certain fault and more than a possible one.
  if (root < 0 || tier(waits, root) >= kPerhaps) {
    const std::vector<int> cycle = waits.cycle();
    if (!cycle.empty()) return report_cycle(words, waits, limits_, cycle, now_ns);
  }
  if (root < 0) return {};
  return report_root(graph_, words, waits, root);
}

}  // namespace sluice::exec
