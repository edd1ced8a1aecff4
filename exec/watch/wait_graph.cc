#include "exec/watch/wait_graph.h"

#include <algorithm>

namespace sluice::exec {
namespace {

bool is_idle(Activity activity) { return activity == Activity::starting || activity == Activity::between; }

// Whether the worker has recorded that it ended.
bool has_left(Activity activity) { return activity == Activity::failed || activity == Activity::stopped; }

// Whether the recorded vertices are in the graph, and a recorded rank among the workers.
bool makes_sense(const Doing& doing, const OpGraph& graph, std::size_t num_workers) {
  if (is_idle(doing.activity) || doing.activity == Activity::finished) return true;
  if (doing.activity == Activity::coordinating) return doing.waits_for < num_workers;
  if (doing.vertex >= graph.size()) return has_left(doing.activity) && doing.vertex == Doing::no_vertex;
  return doing.activity != Activity::waiting || doing.waits_for < graph.size();
}

bool same_wait(const Doing& a, const Doing& b) {
  return a.activity == b.activity && a.step == b.step && a.vertex == b.vertex && a.waits_for == b.waits_for &&
         a.since_ns == b.since_ns;
}

}  // namespace

std::vector<VertexId> transfer_readers(const OpGraph& graph) {
  std::vector<VertexId> readers(graph.size(), graph.size());
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind == VertexKind::transfer) continue;
    for (const VertexId need : graph.needs(v)) {
      if (graph[need].kind != VertexKind::transfer) continue;
      if (graph.rank_of(v) == graph.lanes()[graph[need].lane].peer) readers[need] = v;
    }
  }
  return readers;
}

WaitGraph::WaitGraph(const OpGraph& graph, std::span<const VertexId> readers, const std::vector<RecorderOwner>& owners,
                     const WaitLimits& limits, const std::vector<WorkerView>& workers, std::int64_t now_ns,
                     WaitMemory& memory)
    : graph_(graph),
      readers_(readers),
      owners_(owners),
      limits_(limits),
      workers_(workers.begin(), workers.end()),
      now_ns_(now_ns),
      memory_(memory),
      nodes_(2 * workers.size()),
      remembered_(2 * workers.size(), 0) {
  memory_.trouble.resize(workers.size());
  memory_.done.resize(2 * workers.size());
  for (WorkerView& worker : workers_) {
    const bool sane =
        makes_sense(worker.compute, graph, workers.size()) && makes_sense(worker.collective, graph, workers.size());
    if (!sane) worker = {};
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    WaitMemory::Trouble& trouble = memory_.trouble[i];
    if (trouble.state != workers[i].process) trouble = {workers[i].process, now_ns};
    if (trouble.state != ProcessState::running) continue;
    // Time in which it was suspended does not count.
    workers_[i].compute.since_ns = std::max(workers_[i].compute.since_ns, trouble.since_ns);
    workers_[i].collective.since_ns = std::max(workers_[i].collective.since_ns, trouble.since_ns);
  }
  for (int node = 0; node < std::ssize(nodes_); ++node) inspect(node);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (remembered_[i] == 0) memory_.done[i].reset();
  }
  // An idle thread waits, or is at fault, only if another thread waits for it.
  std::vector<char> awaited(nodes_.size(), 0);
  for (const bool idle : {false, true}) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      WaitNode& node = nodes_[i];
      if (node.idle != idle) continue;
      if (idle && awaited[i] == 0) node.waits_for.clear();
      for (const int other : node.waits_for) awaited[other] = 1;
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    WaitNode& node = nodes_[i];
    if (!node.idle || awaited[i] == 0 || !node.waits_for.empty()) continue;
    const auto limit_ns = limits.outside_ns(doing(static_cast<int>(i)));
    if (now_ns - node.since_ns <= limit_ns) continue;
    node.cause = RootCause::stopped;
    node.broken = true;
  }
}

int WaitGraph::world_rank(int pipeline_rank, int like_node) const {
  const RecorderOwner& like = owner(like_node);
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    const RecorderOwner& owner = owners_[i];
    if (owner.pipeline_rank == pipeline_rank && owner.data_rank == like.data_rank &&
        owner.tensor_rank == like.tensor_rank) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool WaitGraph::ended(int node) const {
  const WorkerView& worker = this->worker(node);
  if (!worker.seen) return false;
  if (has_left(doing(node).activity)) return true;
  const bool done = worker.compute.activity == Activity::finished &&
                    (is_idle(worker.collective.activity) || worker.collective.activity == Activity::finished);
  return worker.process == ProcessState::dead && !done;
}

bool WaitGraph::away(int node) const {
  return !worker(node).seen || ended(node) || worker(node).process == ProcessState::suspended;
}

bool WaitGraph::is_past(const Doing& doing, int step, VertexId v) const {
  switch (doing.activity) {
    case Activity::starting: return false;
    case Activity::between:
    case Activity::coordinating: return doing.step >= step;
    case Activity::finished: return true;
    default: return doing.step > step || (doing.step == step && doing.vertex > v);
  }
}

bool WaitGraph::sends(int node, VertexId v) const {
  const Vertex& vertex = graph_[v];
  return vertex.kind == VertexKind::transfer && graph_.lanes()[vertex.lane].rank == owner(node).pipeline_rank;
}

void WaitGraph::inspect(int node) {
  const WorkerView& worker = this->worker(node);
  const Doing& doing = this->doing(node);
  WaitNode& here = at(node);
  here.since_ns = doing.since_ns;
  if (!worker.seen || doing.activity == Activity::finished) return;
  if (ended(node)) {
    // A worker that recorded its end did not die of something else, even if its process has ended by now.
    const bool dead =
        worker.process == ProcessState::dead && !has_left(worker.compute.activity) && !has_left(doing.activity);
    here.cause = dead ? RootCause::dead : RootCause::failed;
    if (dead) here.since_ns = memory_.trouble[node / 2].since_ns;
    here.broken = now_ns_ - here.since_ns >= limits_.grace_ns;
    return;
  }
  if (worker.process == ProcessState::suspended) {
    here.cause = RootCause::stopped;
    here.since_ns = memory_.trouble[node / 2].since_ns;
    here.broken = now_ns_ - here.since_ns > limits_.floor_ns;
    return;
  }
  switch (doing.activity) {
    case Activity::starting: return inspect_idle(node);
    case Activity::between: return measures(doing) ? inspect_measurement(node) : inspect_idle(node);
    case Activity::coordinating: return inspect_control(node);
    case Activity::waiting:
      return sends(node, doing.waits_for) ? inspect_send(node, doing.waits_for) : inspect_wait(node, doing.waits_for);
    case Activity::reducing: {
      std::vector<int> peers;
      for (const RecorderOwner& other : owners_) {
        if (other.pipeline_rank == owner(node).pipeline_rank && other.data_rank == owner(node).data_rank) {
          peers.push_back(other.world_rank);
        }
      }
      return inspect_collective(node, peers);
    }
    case Activity::dispatching: return inspect_collective(node, expert_group(owners_, node / 2));
    case Activity::exchanging:
      return inspect_collective(node, collective_ranks(graph_, owners_, doing.vertex, node / 2));
    case Activity::working:
      // A send may block until it is received.
      if (sends(node, doing.vertex)) inspect_send(node, doing.vertex);
      if (here.waits_for.empty() && now_ns_ - doing.since_ns > limits_.deadline_ns(doing.vertex)) {
        here.cause = RootCause::slow;
        here.broken = true;
      }
      return;
    case Activity::finished:
    case Activity::failed:
    case Activity::stopped: return;
  }
}

// Records that what a thread waits for has been complete since `since_ns` at the latest.
void WaitGraph::set_done(int node, std::int64_t since_ns, std::int64_t allowed_ns, RootCause cause) {
  std::optional<WaitMemory::Done>& done = memory_.done[node];
  if (!done || !same_wait(done->wait, doing(node))) done = WaitMemory::Done{doing(node), now_ns_};
  remembered_[node] = 1;
  WaitNode& here = at(node);
  here.cause = cause;
  here.since_ns = std::max(doing(node).since_ns, std::min(since_ns, done->first_seen_ns));
  here.broken = now_ns_ - here.since_ns > allowed_ns;
}

void WaitGraph::wait_or_lose(int node, int other, VertexId awaited, RootCause cause) {
  const Doing& there = doing(other);
  if (away(other) || !is_past(there, doing(node).step, awaited)) {
    at(node).waits_for.push_back(other);
    return;
  }
  // Its current activity began after it had completed `awaited`.
  set_done(node, there.since_ns, limits_.deadline_ns(awaited), cause);
  at(node).culprit = other / 2;
}

void WaitGraph::inspect_wait(int node, VertexId awaited) {
  const Vertex& vertex = graph_[awaited];
  const int mine = owner(node).pipeline_rank;
  if (vertex.kind == VertexKind::transfer) {
    const int sender = world_rank(graph_.lanes()[vertex.lane].rank, node);
    if (sender >= 0) wait_or_lose(node, 2 * sender, awaited, RootCause::lost);
    return;
  }
  int rank = graph_.rank_of(awaited);
  const bool collective = vertex.kind == VertexKind::collective;
  if (collective) {
    const auto ranks = graph_.collective(vertex).ranks;
    if (std::find(ranks.begin(), ranks.end(), mine) != ranks.end()) rank = mine;
  }
  const int worker = world_rank(rank, node);
  const int other = 2 * worker + (collective ? 1 : 0);
  if (worker >= 0 && other != node) wait_or_lose(node, other, awaited, RootCause::stopped);
}

// Waits for the receiver until it can take the message; from then on the send counts as an op in progress.
void WaitGraph::inspect_send(int node, VertexId transfer) {
  const int receiver = world_rank(graph_.lanes()[graph_[transfer].lane].peer, node);
  if (receiver < 0) return;
  const Doing& there = doing(2 * receiver);
  const VertexId reader = readers_[transfer];
  const bool at_reader = there.step == doing(node).step && there.vertex == reader;
  const bool has_it = is_past(there, doing(node).step, reader) ||
                      (at_reader && (there.activity == Activity::working || there.activity == Activity::reducing ||
                                     there.activity == Activity::dispatching));
  const bool takes_it = at_reader && there.activity == Activity::waiting && there.waits_for == transfer;
  if (away(2 * receiver) || (!has_it && !takes_it)) {
    at(node).waits_for.push_back(2 * receiver);
  } else if (doing(node).activity == Activity::waiting) {
    set_done(node, there.since_ns, limits_.deadline_ns(transfer), RootCause::lost);
    at(node).culprit = node / 2;
  }
}

// An all-reduce or a collective waits for all ranks that have not joined it.
void WaitGraph::inspect_collective(int node, const std::vector<int>& ranks) {
  const Doing& here = doing(node);
  std::int64_t latest = here.since_ns;
  for (const int rank : ranks) {
    const int other = 2 * rank + node % 2;
    if (other == node) continue;
    const Doing& there = doing(other);
    const bool come = there.activity == here.activity && there.step == here.step && there.vertex == here.vertex;
    if (away(other) || (!come && !is_past(there, here.step, here.vertex))) {
      at(node).waits_for.push_back(other);
    } else {
      latest = std::max(latest, there.since_ns);
    }
  }
  if (!at(node).waits_for.empty()) return;
  set_done(node, latest, limits_.deadline_ns(here.vertex), RootCause::lost);
  at(node).all_there = true;
  at(node).culprit = node / 2;
}

void WaitGraph::inspect_control(int node) {
  const Doing& here = doing(node);
  const int other = 2 * static_cast<int>(here.waits_for);
  const Doing& there = doing(other);
  const bool answers = there.activity == Activity::coordinating && static_cast<int>(there.waits_for) == node / 2;
  if (away(other) || (!answers && there.activity != Activity::finished)) {
    at(node).waits_for.push_back(other);
    return;
  }
  set_done(node, std::max(here.since_ns, there.since_ns), limits_.outside_ns(here), RootCause::lost);
  at(node).all_there = true;
  at(node).culprit = node / 2;
}

// What a rank waits for in a measurement is not recorded: any rank that cannot act may be it.
void WaitGraph::inspect_measurement(int node) {
  WaitNode& here = at(node);
  for (int other = 0; other < std::ssize(nodes_); other += 2) {
    if (other != node && worker(other).seen && away(other)) here.waits_for.push_back(other);
  }
  if (!here.waits_for.empty() || now_ns_ - here.since_ns <= limits_.outside_ns(doing(node))) return;
  here.cause = RootCause::stopped;
  here.broken = true;
}

void WaitGraph::inspect_idle(int node) {
  at(node).idle = true;
  if (node % 2 == 0) return;
  // The collective thread begins a step with its compute thread, unless that waits for it.
  const int compute = node - 1;
  const Doing& there = doing(compute);
  const bool awaits_this = there.activity == Activity::waiting && there.waits_for < graph_.size() &&
                           graph_[there.waits_for].kind == VertexKind::collective;
  if (!awaits_this && there.activity != Activity::finished) at(node).waits_for.push_back(compute);
}

std::vector<int> WaitGraph::cycle() const {
  // Removes nodes that wait for no remaining node, until only cycles and what leads into them remain.
  std::vector<std::vector<int>> waiters(nodes_.size());
  std::vector<std::size_t> left(nodes_.size());
  std::vector<int> free;
  for (int node = 0; node < std::ssize(nodes_); ++node) {
    const auto& targets = nodes_[node].waits_for;
    left[node] = targets.size();
    if (targets.empty()) free.push_back(node);
    for (const int other : targets) waiters[other].push_back(node);
  }
  while (!free.empty()) {
    const int node = free.back();
    free.pop_back();
    for (const int waiter : waiters[node]) {
      if (--left[waiter] == 0) free.push_back(waiter);
    }
  }
  const auto first = std::find_if(left.begin(), left.end(), [](std::size_t n) { return n > 0; });
  if (first == left.end()) return {};
  std::vector<int> path;
  int node = static_cast<int>(first - left.begin());
  while (std::find(path.begin(), path.end(), node) == path.end()) {
    path.push_back(node);
    for (const int other : nodes_[node].waits_for) {
      if (left[other] == 0) continue;
      node = other;
      break;
    }
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), node));
  return path;
}

}  // namespace sluice::exec
