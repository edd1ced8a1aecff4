#include "sim/planner/batch_setup.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "model/batches/packing.h"
#include "model/cost/price.h"
#include "model/errors.h"
#include "model/graph/op_graph.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/engine/parallel.h"
#include "sim/engine/perturbed.h"
#include "sim/engine/predict.h"

namespace sluice::sim {
namespace {

using namespace model;  // NOLINT(google-build-using-namespace)

// The rows of a graph: vertices that differ only in their microbatch have the same one.
class MicrobatchRows {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};  // of collectives and optimizer steps

  explicit MicrobatchRows(const OpGraph& graph);
  std::uint32_t of(VertexId v) const { return rows_[v]; }
  std::size_t count() const { return count_; }

 private:
  std::vector<std::uint32_t> rows_;
  std::size_t count_ = 0;
};

// An order of microbatches: at position i of a schedule runs number order[i].
struct FoundOrder {
  std::vector<int> order;
  Duration makespan{};
  bool best = false;  // all orders were tried
  std::int64_t tried = 0;
};

// Vertices to simulate, which take 1 to 3 s.
constexpr double kVerticesToSimulate = 1e8;

// A priced graph whose microbatches can change places.
class Reordered {
 public:
  Reordered(const OpGraph& graph, const Prices& prices) : graph_(graph), rows_(graph), prices_(prices) {
    const auto microbatches = to_size(graph.schedule().total_microbatches());
    times_.assign(rows_.count() * microbatches, Duration{0});
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (rows_.of(v) == MicrobatchRows::kNone) continue;
      times_[rows_.of(v) * microbatches + to_size(graph[v].microbatch)] = prices.duration[v];
    }
  }

  Duration makespan(const std::vector<int>& order) {
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (rows_.of(v) == MicrobatchRows::kNone) continue;
      prices_.duration[v] = times_[rows_.of(v) * order.size() + to_size(order[to_size(graph_[v].microbatch)])];
    }
    ++tried_;
    const Timeline timeline = simulate(graph_, prices_);
    return *std::max_element(timeline.end.begin(), timeline.end.end());
  }

  std::int64_t tried() const { return tried_; }

 private:
  const OpGraph& graph_;
  MicrobatchRows rows_;
  Prices prices_;
  std::vector<Duration> times_;  // by row and microbatch
  std::int64_t tried_ = 0;
};

// The number of orders that differ, or more than `most`.
double distinct_orders(const std::vector<int>& kind, double most) {
  std::map<int, int> seen;
  double orders = 1;
  for (std::size_t i = 0; i < kind.size() && orders <= most; ++i) {
    orders *= static_cast<double>(i + 1) / ++seen[kind[i]];
  }
  return orders;
}

class MicrobatchSearch {
 public:
  MicrobatchSearch(const OpGraph& graph, const Prices& prices, const std::vector<int>& kind,
                   const std::vector<double>& work)
      : kind_(kind), run_(graph, prices), most_orders_(kVerticesToSimulate / static_cast<double>(graph.size())) {
    given_.resize(kind.size());
    std::iota(given_.begin(), given_.end(), 0);
    ascending_ = given_;
    std::stable_sort(ascending_.begin(), ascending_.end(),
                     [&](int a, int b) { return work[to_size(a)] < work[to_size(b)]; });
  }

  FoundOrder run() {
    found_ = {.order = given_, .makespan = run_.makespan(given_)};
    found_.best = distinct_orders(kind_, most_orders_) <= most_orders_;
    found_.best ? try_all() : improve_starts();
    found_.tried = run_.tried() - (found_.best ? 1 : 0);  // the given order is one of all
    return std::move(found_);
  }

 private:
  bool take_if_faster(const std::vector<int>& order, Duration makespan) {
    if (makespan >= found_.makespan) return false;
    found_.order = order;
    found_.makespan = makespan;
    return true;
  }

  void try_all() {
    const auto by_kind = [&](int a, int b) { return kind_[to_size(a)] < kind_[to_size(b)]; };
    std::vector<int> order = given_;
    std::stable_sort(order.begin(), order.end(), by_kind);
    do take_if_faster(order, run_.makespan(order));
    while (std::next_permutation(order.begin(), order.end(), by_kind));
  }

  // Best orders rise, then fall (steeply at first where the pipeline is long).
  std::vector<int> rising_then_falling(std::size_t rising) const {
    std::vector<int> order(ascending_.begin(), ascending_.begin() + static_cast<std::ptrdiff_t>(rising));
    order.insert(order.end(), ascending_.rbegin(), ascending_.rend() - static_cast<std::ptrdiff_t>(rising));
    return order;
  }
  std::vector<int> middle_heaviest() const {
    std::vector<int> order;
    for (std::size_t i = 0; i < ascending_.size(); i += 2) order.push_back(ascending_[i]);
    for (std::size_t i = ascending_.size() / 2 * 2; i > 0; i -= 2) order.push_back(ascending_[i - 1]);
    return order;
  }

  void improve_starts() {
    std::vector<std::vector<int>> starts = {given_, ascending_, middle_heaviest()};
    for (std::size_t rising = 0; rising < ascending_.size(); rising = 2 * rising + 1) {
      starts.push_back(rising_then_falling(rising));
    }
    std::vector<std::pair<Duration, std::vector<int>>> by_time;
    for (std::vector<int>& order : starts) {
      const Duration makespan = run_.makespan(order);
      take_if_faster(order, makespan);
      by_time.emplace_back(makespan, std::move(order));
    }
    std::stable_sort(by_time.begin(), by_time.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [makespan, order] : by_time) improve(std::move(order), makespan);
  }

  bool may_try() const { return static_cast<double>(run_.tried()) < most_orders_; }

  // Exchanges two microbatches, or moves one, while that helps.
  void improve(std::vector<int> order, Duration makespan) {
    for (bool improved = true; improved && may_try();) {
      improved = false;
      for (std::size_t i = 0; i < order.size(); ++i) {
        for (std::size_t j = 0; j < order.size() && may_try(); ++j) {
          if (i == j) continue;
          std::vector<int> other = order;
          const auto at = other.begin();
          const auto from = static_cast<std::ptrdiff_t>(i);
          const auto to = static_cast<std::ptrdiff_t>(j);
          if (i < j) std::swap(other[i], other[j]);
          if (i > j) std::rotate(at + to, at + from, at + from + 1);
          improved = keep_if_faster(order, std::move(other), makespan) || improved;
          if (i >= j) continue;
          other = order;
          std::rotate(other.begin() + from, other.begin() + from + 1, other.begin() + to + 1);
          improved = keep_if_faster(order, std::move(other), makespan) || improved;
        }
      }
    }
  }

  bool keep_if_faster(std::vector<int>& order, std::vector<int> other, Duration& makespan) {
    const Duration found = run_.makespan(other);
    if (found >= makespan) return false;
    makespan = found;
    order = std::move(other);
    take_if_faster(order, found);
    return true;
  }

  const std::vector<int>& kind_;
  Reordered run_;
  double most_orders_;
  std::vector<int> given_;
  std::vector<int> ascending_;
  FoundOrder found_;
};

MicrobatchRows::MicrobatchRows(const OpGraph& graph) {
  std::map<std::tuple<VertexKind, OpKind, int, int, LaneId, OpKind, int, int>, std::uint32_t> known;
  rows_.assign(graph.size(), kNone);
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind == VertexKind::collective || vertex.kind == VertexKind::optimizer) continue;
    const Vertex& other = vertex.kind == VertexKind::joint ? graph.joint_partner(vertex) : vertex;
    const auto [entry, added] = known.try_emplace(
        {vertex.kind, vertex.op, vertex.stage, vertex.slice, vertex.lane, other.op, other.stage, other.slice},
        static_cast<std::uint32_t>(known.size()));
    rows_[v] = entry->second;
  }
  count_ = known.size();
}

// Finds the order with the least makespan. `prices` are those of the microbatches in their order. Microbatches with
// equal `kind` are alike; a larger `work` takes longer. Precondition: no joint blocks, and one route.
FoundOrder best_order(const OpGraph& graph, const Prices& prices, const std::vector<int>& kind,
                      const std::vector<double>& work) {
  return MicrobatchSearch(graph, prices, kind, work).run();
}

// A replica, priced and simulated.
struct Simulated {
  std::unique_ptr<Setup> setup;
  Prices prices;
  Timeline timeline;

  Duration makespan() const { return *std::max_element(timeline.end.begin(), timeline.end.end()); }
};

// Sums of durations, over replicas and microbatches.
class MeanTimes {
 public:
  void add(const OpGraph& graph, const MicrobatchRows& rows, const Prices& prices) {
    const std::lock_guard lock(mutex_);
    sums_.resize(rows.count());
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (rows.of(v) == MicrobatchRows::kNone) continue;
      sums_[rows.of(v)].first += prices.duration[v];
      ++sums_[rows.of(v)].second;
    }
  }

  Prices means(const OpGraph& graph, const MicrobatchRows& rows, Prices prices) const {
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (rows.of(v) == MicrobatchRows::kNone) continue;
      const auto& [sum, count] = sums_[rows.of(v)];
      prices.duration[v] = sum / count;
    }
    return prices;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<Duration, std::int64_t>> sums_;
};

Scenario with_groups(Scenario scenario, std::vector<ContextGroup> groups) {
  BatchRequest request = scenario.documents->request;
  scenario.documents = std::make_shared<Batch>(batch_of_groups(std::move(request), std::move(groups)));
  scenario.microbatches = scenario.documents->microbatches();
  return scenario;
}

Duration makespan_with(const Scenario& scenario, std::vector<ContextGroup> groups) {
  const Setup setup(with_groups(scenario, std::move(groups)));
  Prices prices = price(setup.graph(), setup.cost());
  if (scenario.perturbation.slows()) slow_down(setup.graph(), scenario.perturbation, prices);
  const Timeline timeline = simulate(setup.graph(), prices);
  return *std::max_element(timeline.end.begin(), timeline.end.end());
}

// Without dynamic context parallelism: all documents, in their order, on as many ranks as the longest needs.
std::vector<ContextGroup> groups_on_equal_ranks(const BatchRequest& request) {
  const ContextProblem problem = context_problem(request);
  const std::int64_t longest = *std::max_element(problem.documents.begin(), problem.documents.end());
  const int ranks = least_ranks(longest, problem.most_tokens);
  std::vector<ContextGroup> out(1);
  int first = 0;
  for (const std::int64_t tokens : problem.documents) {
    if (first == problem.ranks) {
      first = 0;
      if (request.pipelined) out.emplace_back();
    }
    out.back().push_back({.tokens = tokens, .ranks = ranks, .first = first});
    first += ranks;
  }
  return out;
}

// The times of forward and backward of every length on every number of ranks, of the pipeline rank that needs longest.
class DocumentTimes {
 public:
  DocumentTimes(const Scenario& scenario, const ContextProblem& problem) {
    std::vector<ContextGroup> alone;
    for (const std::int64_t tokens : std::set(problem.documents.begin(), problem.documents.end())) {
      for (int ranks = least_ranks(tokens, problem.most_tokens); ranks <= problem.ranks; ranks *= 2) {
        alone.push_back({{.tokens = tokens, .ranks = ranks, .first = 0}});
      }
    }
    const Scenario probe = with_groups(scenario, alone);
    const Schedule schedule = make_schedule(probe);
    const ScenarioCosts costs(probe, schedule);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const SharedDocument& document = alone[i].front();
      times_[{document.tokens, document.ranks}] = time(costs.cost(), schedule, schedule.shape(static_cast<int>(i)));
    }
  }

  double operator()(std::int64_t tokens, int ranks) const { return times_.at({tokens, ranks}); }

 private:
  static double time(const CostModel& cost, const Schedule& schedule, const MicrobatchShape& shape) {
    double longest = 0;
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      double sum = 0;
      for (const int stage : schedule.stages_of(rank)) {
        sum += cost.compute_s(OpKind::F, stage, shape, 0);
        if (!shape.forward_only) sum += cost.compute_s(OpKind::B, stage, shape, 0) + cost.recompute_s(stage, shape, 0);
      }
      longest = std::max(longest, sum);
    }
    return longest;
  }

  std::map<std::pair<std::int64_t, int>, double> times_;
};

// Without a pipeline, one group; with one, where groups are its microbatches, as many as by Megatron-LM's rule, or a
// multiple of them if that is faster.
Scenario fastest_grouping(const Scenario& scenario) {
  ContextProblem problem = context_problem(scenario.documents->request);
  const DocumentTimes times(scenario, problem);
  problem.time = std::ref(times);
  if (!scenario.documents->request.pipelined) return with_groups(scenario, {fastest_group(problem)});
  std::vector<ContextGroup> best = scenario.documents->groups;
  Duration least = makespan_with(scenario, best);
  PackingProblem packing{.weight = {}, .tokens = problem.documents};
  for (const std::int64_t tokens : problem.documents) {
    const int ranks = least_ranks(tokens, problem.most_tokens);
    packing.weight.push_back(ranks * times(tokens, ranks));
  }
  for (std::size_t count = best.size(); count <= problem.documents.size(); count *= 2) {
    packing.bins = static_cast<int>(count);
    const Packing bins = pack_greedily(packing).value();  // bins have no limit
    std::vector<ContextProblem> parts(
        count, {.documents = {}, .ranks = problem.ranks, .most_tokens = problem.most_tokens, .time = problem.time});
    for (std::size_t i = 0; i < bins.size(); ++i) parts[to_size(bins[i])].documents.push_back(problem.documents[i]);
    std::vector<ContextGroup> groups;
    for (const ContextProblem& part : parts) groups.push_back(fastest_group(part));
    const Duration makespan = makespan_with(scenario, groups);
    if (makespan >= least) continue;
    least = makespan;
    best = std::move(groups);
  }
  return with_groups(scenario, std::move(best));
}

class BatchSimulation {
 public:
  BatchSimulation(const Scenario& scenario, Schedule equal)
      : scenario_(scenario),
        batch_(*scenario.documents),
        model_(scenario.model ? &*scenario.model : nullptr),
        equal_(std::move(equal)) {
    if (searches()) check_order();
  }

  BatchSetup run() {
    replicas_ = in_step(batch_.replicas);
    BatchRun out{.microbatches = batch_.replicas};
    out.replicas.resize(replicas_.size());
    parallel_for(std::ssize(replicas_), [&](std::int64_t i) {
      const Simulated one = simulated(replicas_[to_size(i)]);
      out.replicas[to_size(i)] = replica_run(replicas_[to_size(i)], one);
      means_.add(one.setup->graph(), MicrobatchRows(one.setup->graph()), one.prices);
    });
    if (searches()) find_orders(out);
    out.slowest = static_cast<int>(slowest(out) - out.replicas.begin());
    Simulated last = simulated(replicas_[to_size(out.slowest)]);
    const OpGraph& graph = last.setup->graph();
    last.timeline = simulate(graph, means_.means(graph, MicrobatchRows(graph), last.prices));
    out.even = last.makespan();
    if (!batch_.before.empty()) out.before = makespan_of(in_step(batch_.before));
    if (!batch_.groups.empty()) out.before = makespan_with(scenario_, groups_on_equal_ranks(batch_.request));
    return {std::move(last.setup), std::move(out)};
  }

 private:
  bool searches() const { return batch_.request.order == MicrobatchOrder::best; }

  void check_order() const {
    const bool simple =
        !equal_.has_joint_blocks() && equal_.num_routes() == 1 && equal_.weight_policy() == WeightPolicy::flush;
    if (simple) return;
    throw InputError(scenario_.source + ": /batch/order: the best order is not searched for with " + equal_.family() +
                     ", since it has joint blocks, two routes or no flush");
  }

  // Where replicas wait for each other at every microbatch, the slowest of each number.
  std::vector<Microbatches> in_step(const std::vector<Microbatches>& replicas) const {
    if (!batch_.request.in_step) return replicas;
    Microbatches out = replicas.front();
    for (const Microbatches& replica : replicas) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (work_of(replica[i], model_) > work_of(out[i], model_)) out[i] = replica[i];
      }
    }
    return {out};
  }

  Simulated simulated(const Microbatches& microbatches) const {
    Simulated out;
    out.setup = std::make_unique<Setup>(scenario_, with_microbatches(equal_, batch_, microbatches));
    const OpGraph& graph = out.setup->graph();
    out.prices = price(graph, out.setup->cost());
    if (scenario_.perturbation.slows()) slow_down(graph, scenario_.perturbation, out.prices);
    out.timeline = simulate(graph, out.prices);
    return out;
  }

  ReplicaRun replica_run(const Microbatches& microbatches, const Simulated& one) const {
    ReplicaRun out{.makespan = one.makespan()};
    if (!batch_.groups.empty()) {
      out.tokens = batch_.tokens();
      out.documents = std::ssize(context_problem(batch_.request).documents);
    } else {
      for (const Documents& documents : microbatches) {
        out.tokens += tokens_of(documents);
        out.documents += std::ssize(documents);
      }
    }
    const std::vector<RankMemory> memory = memory_over_time(one.setup->graph(), one.timeline, false);
    for (std::size_t rank = 0; rank < memory.size(); ++rank) {
      if (memory[rank].peak_bytes <= out.peak_bytes) continue;
      out.peak_bytes = memory[rank].peak_bytes;
      out.peak_rank = static_cast<int>(rank);
    }
    return out;
  }

  Duration makespan_of(const std::vector<Microbatches>& replicas) const {
    std::vector<Duration> makespans(replicas.size());
    parallel_for(std::ssize(replicas),
                 [&](std::int64_t i) { makespans[to_size(i)] = simulated(replicas[to_size(i)]).makespan(); });
    return *std::max_element(makespans.begin(), makespans.end());
  }

  static std::vector<ReplicaRun>::const_iterator slowest(const BatchRun& run) {
    return std::max_element(run.replicas.begin(), run.replicas.end(),
                            [](const ReplicaRun& a, const ReplicaRun& b) { return a.makespan < b.makespan; });
  }

  // Searches replicas, the slowest first, until the others are faster than the slowest result.
  void find_orders(BatchRun& run) {
    std::vector<std::size_t> order(replicas_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return run.replicas[a].makespan > run.replicas[b].makespan; });
    Duration most{0};
    for (const std::size_t i : order) {
      if (run.replicas[i].makespan <= most) break;
      const FoundOrder found = reorder(i, run);
      run.orders += found.tried;
      if (found.makespan <= most) continue;
      most = found.makespan;
      run.best_order = found.best;
    }
  }

  FoundOrder reorder(std::size_t i, BatchRun& run) {
    const Simulated one = simulated(replicas_[i]);
    std::map<Documents, int> kinds;
    std::vector<int> kind;
    std::vector<double> work;
    for (const Documents& documents : replicas_[i]) {
      kind.push_back(kinds.try_emplace(documents, static_cast<int>(kinds.size())).first->second);
      work.push_back(work_of(documents, model_));
    }
    FoundOrder found = best_order(one.setup->graph(), one.prices, kind, work);
    const auto apply = [&](Microbatches& to) {
      Microbatches ordered;
      for (const int microbatch : found.order) ordered.push_back(to[to_size(microbatch)]);
      to = std::move(ordered);
    };
    apply(replicas_[i]);
    if (batch_.request.in_step) {  // all wait for each other
      std::for_each(run.microbatches.begin(), run.microbatches.end(), apply);
    } else {
      apply(run.microbatches[i]);
    }
    run.replicas[i] = replica_run(replicas_[i], simulated(replicas_[i]));
    return found;
  }

  const Scenario& scenario_;
  const Batch& batch_;
  const Model* model_;
  Schedule equal_;
  std::vector<Microbatches> replicas_;
  MeanTimes means_;
};

}  // namespace

BatchSetup batch_setup(const Scenario& scenario, Schedule equal) {
  return BatchSimulation(scenario, std::move(equal)).run();
}

BatchSetup batch_setup(const Scenario& scenario) {
  const bool search = scenario.documents->request.grouping == ContextGrouping::fastest;
  const Scenario grouped = search ? fastest_grouping(scenario) : scenario;
  Scenario equal = grouped;
  equal.documents.reset();
  return batch_setup(grouped, make_schedule(equal));
}

void fit_all_replicas(const Scenario& scenario, const BatchRun& run, Prediction& prediction) {
  if (!prediction.fit) return;
  for (const ReplicaRun& replica : run.replicas) {
    const std::int64_t needed = needed_bytes(scenario.cluster->gpu, replica.peak_bytes);
    if (needed <= prediction.fit->needed_bytes) continue;
    prediction.fit->needed_bytes = needed;
    prediction.fit->rank = replica.peak_rank;
  }
  prediction.fit->fits = prediction.fit->needed_bytes <= prediction.fit->capacity_bytes;
}

}  // namespace sluice::sim
