#include "sim/planner/partition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "model/to_size.h"
#include "sim/engine/parallel.h"
#include "sim/engine/steady_state.h"
#include "sim/planner/partition_bounds.h"

namespace sluice::sim {
namespace {

using StageLayers = std::vector<int>;

constexpr std::size_t kLanes = 4;  // simulations that may run concurrently; any number of threads runs them
constexpr std::size_t kBatch = 16;
constexpr std::size_t kMostSimulatedMoves = 96;    // that are simulated from one partition
constexpr std::int64_t kPatience = 4;              // times the least number of simulations
constexpr std::int64_t kMostMoveWork = 4'000'000;  // moves times stages: only some moves of more are looked at

// Returns a schedule with the placement of the scenario's, and few microbatches where it has a flush.
Schedule placement_of(const Scenario& scenario) {
  const Family& family = find_family(scenario.schedule);
  const FamilyParams params = family_params(scenario);
  constexpr double kManyOps = 1e5;
  if (family.asynchronous) {
    const bool many = num_ops(family, params) > kManyOps;
    return make_schedule(family,
                         many ? fewer_microbatches(family, params, std::int64_t{16} * params.ranks).params : params);
  }
  if (auto brief = shorten(family, params, 2 * params.ranks)) return std::move(brief->schedule);
  return make_schedule(family, params);
}

class PartitionSearch {
 public:
  PartitionSearch(const Scenario& scenario, const PartitionLimits& limits, const std::atomic<bool>* stop)
      : scenario_(scenario),
        limits_(limits),
        stop_(stop),
        timed_(!find_family(scenario.schedule).asynchronous),
        bounds_(scenario, placement_of(scenario), scenario.microbatches, timed_) {
    scenario_.first_stage_layers = scenario_.last_stage_layers = 0;
    find_given(scenario);
  }

  Partition run() {
    if (bounds_.num_stages() == 1) {
      evaluate({{bounds_.num_layers()}});
      proven_ = true;
      return result();
    }
    std::vector<StageLayers> starts = {even_work(true), even_work(false)};
    if (!given_.empty()) starts.insert(starts.begin(), given_);
    evaluate(starts);
    if (stopped()) return result();
    most_ = std::max(limits_.simulations, limits_.vertices / std::max<std::int64_t>(1, vertices()));
    descend(best_, most_ / 2);
    proven_ = prove();
    if (!proven_) {
      kick();
      proven_ = prove();
    }
    return result();
  }

 private:
  std::int64_t spent() const { return std::ssize(known_); }
  std::int64_t vertices() const {
    std::int64_t most = 0;
    for (const auto& lane : lanes_) most = std::max(most, lane ? lane->num_vertices() : 0);
    return most;
  }
  bool stopped() const { return stop_ != nullptr && *stop_; }

  void find_given(const Scenario& scenario) try {
    for (const StageContents& stage :
         split_stages(*scenario.model, bounds_.schedule(), scenario.stage_layers, scenario.first_stage_layers,
                      scenario.last_stage_layers, scenario.mtp_stage)) {
      given_.push_back(stage.layers);
    }
  } catch (const InputError&) {
    given_.clear();
  }

  PartitionKey key_of(const PlanResult& result) const {
    if (result.status != PlanStatus::simulated) return {};
    const PartitionKey::Memory memory = bounds_.memory_class(result.needed_bytes);
    if (memory == PartitionKey::Memory::over) return {memory, result.needed_bytes};
    return {memory, (timed_ ? result.makespan : result.iteration).count()};
  }

  // Simulates the partitions that are not known yet. The first of the best ones becomes the best.
  void evaluate(const std::vector<StageLayers>& partitions) {
    std::vector<const StageLayers*> open;
    std::set<StageLayers> seen;
    for (const StageLayers& layers : partitions) {
      if (known_.count(layers) == 0 && seen.insert(layers).second) open.push_back(&layers);
    }
    std::vector<PlanResult> results(open.size());
    // The memory of a slower partition than one that fits clearly does not matter.
    const bool only_faster = timed_ && best_key_.memory == PartitionKey::Memory::fits;
    const Duration worth = only_faster ? Duration(best_key_.value) : Duration::max();
    parallel_for(kLanes, [&](std::int64_t lane) {
      Scenario scenario = scenario_;
      for (std::size_t i = to_size(lane); i < open.size(); i += kLanes) {
        if (stopped()) return;
        scenario.stage_layers = *open[i];
        std::unique_ptr<StructureRuns>& runs = lanes_[to_size(lane)];
        if (!runs) runs = std::make_unique<StructureRuns>(scenario);
        results[i] = runs->run(scenario, worth);
      }
    });
    if (stopped()) return;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const PartitionKey key = key_of(results[i]);
      known_.emplace(*open[i], key);
      if (*open[i] == given_) given_result_ = results[i];
      if (best_.empty() || key < best_key_) {
        best_ = *open[i];
        best_key_ = key;
        best_result_ = std::move(results[i]);
      }
    }
  }

  // Gives layers one by one to the stage where its rank (or, not by_rank, itself) then has the least work.
  StageLayers even_work(bool by_rank) const {
    const Schedule& schedule = bounds_.schedule();
    StageLayers layers(to_size(bounds_.num_stages()), 0);
    std::vector<std::int64_t> stage_work(layers.size());
    std::vector<std::int64_t> rank_work(to_size(schedule.num_ranks()), 0);
    const auto with = [&](int stage, int more) {
      return bounds_.busy(bounds_.work(stage, bounds_.num_layers(), layers[to_size(stage)] + more).times);
    };
    for (int stage = 0; stage < bounds_.num_stages(); ++stage) {
      stage_work[to_size(stage)] = with(stage, 0);
      rank_work[to_size(schedule.rank_of(stage, 0))] += with(stage, 0);
    }
    for (int i = 0; i < bounds_.num_layers(); ++i) {
      int least = 0;
      std::pair<std::int64_t, std::int64_t> least_work;
      for (int stage = 0; stage < bounds_.num_stages(); ++stage) {
        if (layers[to_size(stage)] >= bounds_.most_layers_of(stage)) continue;
        const std::int64_t of_stage = with(stage, 1);
        const std::int64_t of_rank =
            rank_work[to_size(schedule.rank_of(stage, 0))] - stage_work[to_size(stage)] + of_stage;
        const std::pair work = by_rank ? std::pair(of_rank, of_stage) : std::pair(of_stage, of_rank);
        if (stage > 0 && work >= least_work) continue;
        least = stage;
        least_work = work;
      }
      ++layers[to_size(least)];
      rank_work[to_size(schedule.rank_of(least, 0))] += with(least, 0) - stage_work[to_size(least)];
      stage_work[to_size(least)] = with(least, 0);
    }
    return layers;
  }

  // How far the work of ranks, and of stages, is from even.
  double unevenness(const StageLayers& layers) const {
    const Schedule& schedule = bounds_.schedule();
    std::vector<double> of_rank(to_size(schedule.num_ranks()), 0);
    double stages = 0;
    double all = 0;
    int before = 0;
    for (int stage = 0; stage < bounds_.num_stages(); ++stage) {
      const auto work = static_cast<double>(bounds_.busy(bounds_.work(stage, before, layers[to_size(stage)]).times));
      before += layers[to_size(stage)];
      of_rank[to_size(schedule.rank_of(stage, 0))] += work;
      all += work;
      stages += work * work;
    }
    if (all == 0) return 0;
    double ranks = 0;
    for (const double work : of_rank)
      ranks += std::pow(work / all, 4) * std::pow(static_cast<double>(of_rank.size()), 3);
    return ranks + 0.01 * stages / (all * all) * static_cast<double>(layers.size());
  }

  // Returns the partitions with one layer on another stage that may be better than the best, the most even first.
  std::vector<StageLayers> moves(const StageLayers& from) const {
    std::vector<std::pair<double, std::pair<std::size_t, std::size_t>>> order;
    StageLayers layers = from;
    const std::int64_t stages = bounds_.num_stages();
    const std::int64_t stride = std::max<std::int64_t>(1, stages * stages * stages / kMostMoveWork);
    for (std::int64_t pair = spent() % stride; pair < stages * stages; pair += stride) {
      const auto source = to_size(pair / stages);
      const auto target = to_size(pair % stages);
      if (from[source] == 0 || target == source) continue;
      --layers[source];
      ++layers[target];
      if (known_.count(layers) == 0 && bounds_.least(layers) < best_key_) {
        order.emplace_back(unevenness(layers), std::pair(source, target));
      }
      ++layers[source];
      --layers[target];
    }
    const std::size_t kept = std::min(kMostSimulatedMoves, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end());
    std::vector<StageLayers> out;
    for (std::size_t i = 0; i < kept; ++i) {
      out.push_back(from);
      --out.back()[order[i].second.first];
      ++out.back()[order[i].second.second];
    }
    return out;
  }

  // Moves single layers while the best partition changes, with at most this number of simulations.
  void descend(StageLayers from, std::int64_t most) {
    const std::int64_t end = std::min(most_, spent() + most);
    for (bool better = true; better && !stopped();) {
      better = false;
      const std::vector<StageLayers> next = moves(from);
      for (std::size_t i = 0; i < next.size() && !better && spent() < end && !stopped(); i += kBatch) {
        const PartitionKey before = best_key_;
        const std::size_t count = std::min({kBatch, next.size() - i, to_size(end - spent())});
        evaluate(
            {next.begin() + static_cast<std::ptrdiff_t>(i), next.begin() + static_cast<std::ptrdiff_t>(i + count)});
        better = best_key_ < before;
      }
      if (better) from = best_;
    }
  }

  // Simulates, in the order of their lower bounds, all partitions that may be better. Returns whether none is left.
  bool prove() {
    auto open = bounds_.below(best_key_, limits_.nodes, to_size(limits_.nodes));
    if (!open) return false;
    std::erase_if(*open, [&](const StageLayers& layers) { return known_.count(layers) > 0; });
    if (std::ssize(*open) > most_ - spent()) return false;
    std::vector<std::pair<PartitionKey, std::size_t>> order;
    for (std::size_t i = 0; i < open->size(); ++i) order.emplace_back(bounds_.least((*open)[i]), i);
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size() && order[i].first < best_key_; i += kBatch) {
      std::vector<StageLayers> batch;
      for (std::size_t k = i; k < std::min(order.size(), i + kBatch); ++k) batch.push_back((*open)[order[k].second]);
      evaluate(batch);
      if (stopped()) return false;
    }
    return true;
  }

  // Moves a random layer: anywhere, to another stage of its rank, or in exchange for one of the other rank.
  void move_any(std::mt19937& random, StageLayers& layers) const {
    const Schedule& schedule = bounds_.schedule();
    const auto any = [&](std::size_t count) { return static_cast<std::size_t>(random()) % count; };
    const auto any_of_rank = [&](std::size_t stage) {
      const auto held = schedule.stages_of(schedule.rank_of(static_cast<int>(stage), 0));
      return to_size(held[any(held.size())]);
    };
    const std::size_t how = any(3);
    const std::size_t source = any(layers.size());
    const std::size_t target = how == 1 ? any_of_rank(source) : any(layers.size());
    const std::size_t back_source = any_of_rank(target);
    const std::size_t back_target = any_of_rank(source);
    if (layers[source] == 0 || source == target) return;
    --layers[source];
    ++layers[target];
    if (how < 2 || layers[back_source] == 0) return;
    --layers[back_source];
    ++layers[back_target];
  }

  // Leaves local optima by one to three random moves from the best partition, until many in a row are no better.
  void kick() {
    std::mt19937 random(1);
    std::int64_t end = spent() + kPatience * limits_.simulations;
    for (std::int64_t tries = 20 * most_; tries > 0 && spent() < std::min(end, most_) && !stopped();) {
      std::set<StageLayers> batch;
      const std::size_t room = std::min(kBatch, to_size(most_ - spent()));
      for (; batch.size() < room && tries > 0; --tries) {
        StageLayers layers = best_;
        for (auto count = 1 + random() % 3; count > 0; --count) move_any(random, layers);
        if (known_.count(layers) == 0 && bounds_.least(layers) < best_key_) batch.insert(layers);
      }
      const PartitionKey before = best_key_;
      evaluate({batch.begin(), batch.end()});
      if (best_key_ == before) continue;
      descend(best_, most_ - spent());
      end = spent() + kPatience * limits_.simulations;
    }
  }

  Partition result() {
    Partition out;
    out.layers = best_;
    out.mtp_layers = scenario_.model->mtp_layers;
    out.mtp_stage = out.given_mtp_stage = scenario_.mtp_stage;
    out.result = best_result_;
    out.given = given_;
    out.given_result = given_result_;
    out.proven = proven_;
    out.simulated = spent();
    if (!timed_ || best_key_.memory > PartitionKey::Memory::tight) return out;
    const Duration bound(proven_ ? best_key_.value : bounds_.least_of_all(best_key_));
    out.bound =
        scenario_.correction ? from_seconds(scenario_.correction->at(to_seconds(bound)).seconds, "calibration") : bound;
    return out;
  }

  Scenario scenario_;
  PartitionLimits limits_;
  const std::atomic<bool>* stop_;
  bool timed_;
  PartitionBounds bounds_;
  std::array<std::unique_ptr<StructureRuns>, kLanes> lanes_;
  std::map<StageLayers, PartitionKey> known_;
  std::int64_t most_ = 0;  // largest number of simulations
  StageLayers given_;
  PlanResult given_result_{.status = PlanStatus::refused};
  StageLayers best_;
  PartitionKey best_key_;
  PlanResult best_result_{.status = PlanStatus::refused};
  bool proven_ = false;
};

// Whether the result of one search is better than that of another.
bool precedes(const Partition& one, const Partition& other) {
  const auto key = [](const PlanResult& result) {
    const bool simulated = result.status == PlanStatus::simulated;
    return std::tuple(!simulated, !result.fits, result.tight,
                      result.fits ? result.iteration.count() : result.needed_bytes);
  };
  return key(one.result) < key(other.result);
}

// Number of stages, after the first inner one and before the last, with another number of layers than the one before.
int changes_in(const StageLayers& layers) {
  int changes = 0;
  for (std::size_t stage = 2; stage + 1 < layers.size(); ++stage) changes += layers[stage] != layers[stage - 1] ? 1 : 0;
  return changes;
}

// Returns the partitions with nearly the outer stages of `best` and regular inner ones: as even as possible, with the
// remainder at their begin, in their middle or at their end.
std::vector<StageLayers> regular_layers(const StageLayers& best) {
  constexpr int kNear = 2;
  std::vector<StageLayers> out;
  const int inner = static_cast<int>(best.size()) - 2;
  const int all = std::accumulate(best.begin(), best.end(), 0);
  if (inner < 2) return out;
  for (int first = std::max(0, best.front() - kNear); first <= best.front() + kNear; ++first) {
    for (int last = std::max(0, best.back() - kNear); last <= best.back() + kNear; ++last) {
      const int rest = all - first - last;
      if (rest < 0) continue;
      const int extra = rest % inner;
      for (const int begin : {1, 1 + (inner - extra) / 2, 1 + inner - extra}) {
        StageLayers layers(best.size(), rest / inner);
        layers.front() = first;
        layers.back() = last;
        for (int stage = begin; stage < begin + extra; ++stage) ++layers[to_size(stage)];
        if (std::find(out.begin(), out.end(), layers) == out.end()) out.push_back(std::move(layers));
      }
    }
  }
  return out;
}

}  // namespace

Partition best_partition(const Scenario& scenario, const PartitionLimits& limits, const std::atomic<bool>* stop) {
  if (!scenario.model) throw InputError(scenario.source + ": /model: required (--model)");
  if (!scenario.cluster) throw InputError(scenario.source + ": /cluster: required (--cluster)");
  refuse_vocabulary(placement_of(scenario), "their partition is not searched: --stage-layers sets it");
  Partition best = PartitionSearch(scenario, limits, stop).run();
  if (scenario.model->mtp_layers == 0) return best;
  // With multi-token prediction on the last stage, and on the stage before an only head.
  const int last = placement_of(scenario).num_stages() - 1;
  Scenario moved = scenario;
  moved.mtp_stage = scenario.mtp_stage == kLastStage || scenario.mtp_stage == last ? last - 1 : kLastStage;
  if (last < 2 || (stop != nullptr && *stop)) return best;
  Partition other = PartitionSearch(moved, limits, stop).run();
  const std::int64_t simulated = best.simulated + other.simulated;
  if (other.result.status == PlanStatus::simulated) {
    const Duration bound = std::min(best.bound, other.bound);
    const bool proven = best.proven && other.proven;
    if (precedes(other, best)) {
      other.given = std::move(best.given);
      other.given_mtp_stage = best.given_mtp_stage;
      other.given_result = std::move(best.given_result);
      best = std::move(other);
    }
    best.bound = bound;
    best.proven = proven;
  }
  best.simulated = simulated;
  return best;
}

Partition regular_partition(const Scenario& scenario, const PartitionLimits& limits, const std::atomic<bool>* stop) {
  Partition best = best_partition(scenario, limits, stop);
  if (best.result.status != PlanStatus::simulated || !best.result.fits || best.layers.size() < 2) return best;
  const int changes = changes_in(best.layers);
  std::vector<StageLayers> candidates = regular_layers(best.layers);
  std::erase_if(candidates, [&](const StageLayers& layers) { return changes_in(layers) >= changes; });
  if (best.given_mtp_stage == best.mtp_stage && !best.given.empty() && changes_in(best.given) < changes) {
    candidates.push_back(best.given);
  }
  const auto order = [&](const StageLayers& layers) {
    const int far = std::abs(layers.front() - best.layers.front()) + std::abs(layers.back() - best.layers.back());
    return std::pair(changes_in(layers), far);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const StageLayers& a, const StageLayers& b) { return order(a) < order(b); });
  if (std::ssize(candidates) > limits.simulations) candidates.resize(to_size(limits.simulations));
  Scenario regular = scenario;
  regular.first_stage_layers = regular.last_stage_layers = 0;
  regular.mtp_stage = best.mtp_stage;
  regular.stage_layers = best.layers;
  StructureRuns runs(regular);
  const double longest = to_seconds(best.result.iteration) * (1 + kEqualTimes);
  for (StageLayers& layers : candidates) {
    if (stop != nullptr && *stop) break;
    regular.stage_layers = layers;
    PlanResult result = runs.run(regular);
    ++best.simulated;
    if (result.status != PlanStatus::simulated || !result.fits || result.tight > best.result.tight) continue;
    if (to_seconds(result.iteration) > longest) continue;
    best.proven = best.proven && result.iteration == best.result.iteration;
    best.layers = std::move(layers);
    best.result = std::move(result);
    break;
  }
  return best;
}

}  // namespace sluice::sim
