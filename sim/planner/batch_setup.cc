#include "sim/planner/batch_setup.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "model/batches/batch.h"
#include "model/errors.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/engine/parallel.h"
#include "sim/engine/perturbed.h"
#include "sim/engine/predict.h"
#include "sim/planner/microbatch_order.h"

namespace sluice::sim {
namespace {

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

class BatchSimulation {
 public:
  explicit BatchSimulation(const Scenario& scenario)
      : scenario_(scenario),
        batch_(*scenario.documents),
        model_(scenario.model ? &*scenario.model : nullptr),
        equal_(schedule_of_equal(scenario)) {
    if (searches()) check_order();
  }

  BatchSetup run() {
    replicas_ = in_step(batch_.replicas);
    BatchRun out;
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
    return {std::move(last.setup), std::move(out)};
  }

 private:
  static Schedule schedule_of_equal(Scenario scenario) {
    scenario.documents.reset();
    return make_schedule(scenario);
  }

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
    out.setup = std::make_unique<Setup>(scenario_, with_microbatches(equal_, microbatches, batch_.request.place));
    const OpGraph& graph = out.setup->graph();
    out.prices = price(graph, out.setup->cost());
    if (scenario_.perturbation.slows()) slow_down(graph, scenario_.perturbation, out.prices);
    out.timeline = simulate(graph, out.prices);
    return out;
  }

  ReplicaRun replica_run(const Microbatches& microbatches, const Simulated& one) const {
    ReplicaRun out{.makespan = one.makespan()};
    for (const Documents& documents : microbatches) {
      out.tokens += tokens_of(documents);
      out.documents += std::ssize(documents);
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
    Microbatches ordered;
    for (const int microbatch : found.order) ordered.push_back(replicas_[i][to_size(microbatch)]);
    replicas_[i] = std::move(ordered);
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

BatchSetup batch_setup(const Scenario& scenario) { return BatchSimulation(scenario).run(); }

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
