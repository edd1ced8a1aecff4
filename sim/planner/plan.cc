#include "sim/planner/plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/to_size.h"
#include "sim/engine/parallel.h"
#include "sim/planner/partition.h"

namespace sluice::sim {
namespace {

constexpr std::size_t kFirstRound = 64;
constexpr std::size_t kLargestRound = 4096;
constexpr PartitionLimits kRefinement = {.vertices = 3'000'000, .simulations = 24, .nodes = 50'000};
constexpr std::int64_t kMostKeptVertices = 100'000;  // of a structure that is kept between rounds

}  // namespace

Plan::Plan(Scenario base, PlanSpace space, int keep, bool everything, const Predicate& subset)
    : base_(std::move(base)), space_(std::move(space)), keep_(std::max(1, keep)), everything_(everything) {
  points_ = enumerate(base_, space_);
  results_.resize(points_.size());
  std::map<std::tuple<std::string_view, int, int, int, int>, int> known;
  for (const PlanPoint& point : points_) {
    const auto [found, added] = known.try_emplace(
        {point.family->name, point.pp, point.chunks, point.microbatches, point.slices}, static_cast<int>(known.size()));
    structure_of_.push_back(found->second);
    in_subset_.push_back(subset && subset(point) ? 1 : 0);
  }
  structures_.resize(known.size());
}

Plan::~Plan() = default;

std::vector<Plan::Work> Plan::next() {
  std::vector<Work> work;
  const auto add = [&](int point, bool simulate) {
    work.push_back({.point = point, .structure = structure_of_[point], .simulate = simulate});
  };
  if (round_size_ == 0) {
    for (int point = 0; point < std::ssize(points_); ++point) add(point, false);
  }
  while (work.empty() && taken_ < queue_.size()) {
    const std::size_t end = std::min(queue_.size(), taken_ + round_size_);
    for (; taken_ < end; ++taken_) {
      if (!everything_ && dominated(queue_[taken_])) {
        results_[queue_[taken_]].status = PlanStatus::bounded;
      } else {
        add(queue_[taken_], true);
      }
    }
    round_size_ = std::min(kLargestRound, 2 * round_size_);
  }
  std::stable_sort(work.begin(), work.end(), [](const Work& a, const Work& b) { return a.structure < b.structure; });
  return work;
}

std::vector<PlanResult> Plan::work_out(std::span<const Work> work, const std::atomic<bool>* stop,
                                       const std::function<void(std::int64_t)>& progress) {
  std::vector<PlanResult> results(work.size());
  std::vector<std::pair<std::size_t, std::size_t>> runs;  // of one structure
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (i == 0 || work[i].structure != work[i - 1].structure) runs.emplace_back(i, i);
    runs.back().second = i + 1;
  }
  parallel_for(std::ssize(runs), [&](std::int64_t index) {
    const auto [begin, end] = runs[index];
    std::unique_ptr<StructureRuns>& structure = structures_[work[begin].structure];
    for (std::size_t i = begin; i < end; ++i) {
      if (stop != nullptr && *stop) return;
      try {
        const Scenario scenario = scenario_of(base_, space_, points_[work[i].point]);
        if (!structure) structure = std::make_unique<StructureRuns>(scenario);
        results[i] = work[i].simulate ? structure->run(scenario) : structure->assess(scenario);
      } catch (const InputError& error) {
        results[i].status = PlanStatus::refused;
        results[i].reason = error.what();
      }
      if (progress) progress(1);
    }
    if (structure && structure->num_vertices() > kMostKeptVertices) structure.reset();
  });
  return results;
}

void Plan::take(std::span<const Work> work, std::span<const PlanResult> results) {
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (results[i].status == PlanStatus::open && work[i].simulate) continue;  // stopped
    PlanResult& known = results_[work[i].point];
    const Duration bound = known.bound;
    known = results[i];
    if (!work[i].simulate) continue;
    known.bound = bound;
    record(work[i].point);
  }
}

std::int64_t Plan::num_closed() const {
  return std::count_if(queue_.begin(), queue_.end(),
                       [&](int point) { return results_[point].status != PlanStatus::open; });
}

// After the first round, queues the configurations that may fit for simulation, by bound.
void Plan::end_round() {
  if (round_size_ > 0) return;
  round_size_ = kFirstRound;
  std::vector<char> needed(structures_.size(), 0);
  for (int point = 0; point < std::ssize(points_); ++point) {
    if (results_[point].status != PlanStatus::open) continue;
    queue_.push_back(point);
    needed[structure_of_[point]] = 1;
  }
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (needed[i] == 0) structures_[i].reset();
  }
  std::stable_sort(queue_.begin(), queue_.end(), [&](int a, int b) { return results_[a].bound < results_[b].bound; });
}

// Adds a simulated point to the fastest ones and to the front.
void Plan::record(int point) {
  const PlanResult& result = results_[point];
  if (result.status != PlanStatus::simulated || !result.fits) return;
  if (in_subset_[point] != 0 && !result.tight) {
    fastest_of_subset_ = std::min(fastest_of_subset_, result.iteration);
  }
  std::vector<Duration>& times = result.tight ? fastest_tight_ : fastest_;
  times.insert(std::upper_bound(times.begin(), times.end(), result.iteration), result.iteration);
  if (std::ssize(times) > keep_) times.pop_back();
  const std::pair here(result.iteration, result.needed_bytes);
  const auto better = [&](const auto& other) { return other.first <= here.first && other.second <= here.second; };
  if (std::any_of(front_.begin(), front_.end(), better)) return;
  std::erase_if(front_, [&](const auto& other) { return other.first >= here.first && other.second >= here.second; });
  front_.push_back(here);
}

bool Plan::dominated(int point) const {
  const PlanResult& result = results_[point];
  if (in_subset_[point] != 0 && fastest_of_subset_ >= result.bound) return false;
  const auto faster = [&](const std::vector<Duration>& times) {
    return std::lower_bound(times.begin(), times.end(), result.bound) - times.begin();
  };
  const auto ahead = result.tight ? std::ssize(fastest_) + faster(fastest_tight_) : faster(fastest_);
  if (ahead < keep_) return false;
  return std::any_of(front_.begin(), front_.end(), [&](const auto& other) {
    return other.first <= result.bound && other.second <= result.needed_bytes;
  });
}

std::vector<int> Plan::ranking() const {
  std::vector<int> out;
  for (int point = 0; point < std::ssize(points_); ++point) {
    if (results_[point].status == PlanStatus::simulated && results_[point].fits) out.push_back(point);
  }
  std::stable_sort(out.begin(), out.end(), [&](int a, int b) {
    const PlanResult& x = results_[a];
    const PlanResult& y = results_[b];
    return std::tie(x.tight, x.iteration, x.needed_bytes) < std::tie(y.tight, y.iteration, y.needed_bytes);
  });
  return out;
}

// The points whose partitions are worth a search.
std::vector<int> Plan::leaders(int count) const {
  std::vector<int> order = ranking();
  if (std::ssize(order) > count) order.resize(to_size(count));
  if (const int best = best_of_subset(); best >= 0) order.push_back(best);
  const auto without_layers = [&](int index) {
    PlanPoint point = points_[to_size(index)];
    point.first_layers = point.last_layers = 0;
    return point;
  };
  std::vector<int> out;
  for (const int point : order) {
    const PlanPoint& of = points_[to_size(point)];
    const auto same = [&](int other) { return without_layers(other) == without_layers(point); };
    if (of.pp * of.chunks > 1 && std::none_of(out.begin(), out.end(), same)) out.push_back(point);
  }
  return out;
}

void Plan::refine(int count, const std::atomic<bool>* stop) {
  if (!base_.stage_layers.empty() || base_.first_stage_layers > 0 || base_.last_stage_layers > 0) return;
  const std::vector<int> points = leaders(count);
  std::vector<Partition> found(points.size());
  parallel_for(std::ssize(points), [&](std::int64_t i) {
    const Scenario scenario = scenario_of(base_, space_, points_[to_size(points[to_size(i)])]);
    found[to_size(i)] = best_partition(scenario, kRefinement, stop);
  });
  for (std::size_t i = 0; i < points.size(); ++i) {
    PlanPoint& point = points_[to_size(points[i])];
    PlanResult& known = results_[to_size(points[i])];
    PlanResult& better = found[i].result;
    if (better.status != PlanStatus::simulated || !better.fits) continue;
    if (std::tie(better.tight, better.iteration) >= std::tie(known.tight, known.iteration)) continue;
    PlanPoint refined = point;
    refined.stage_layers = std::move(found[i].layers);
    refined.first_layers = refined.last_layers = 0;
    if (space_.refusal && !space_.refusal(refined).empty()) continue;
    better.bound = found[i].bound;
    known = std::move(better);
    point = std::move(refined);
  }
}

int Plan::best_of_subset() const {
  const std::vector<int> fitting = ranking();
  const auto found = std::find_if(fitting.begin(), fitting.end(), [&](int point) { return in_subset_[point] != 0; });
  return found == fitting.end() ? -1 : *found;
}

std::vector<int> Plan::pareto_front() const {
  std::vector<int> out;
  std::vector<int> fitting = ranking();
  std::stable_sort(fitting.begin(), fitting.end(), [&](int a, int b) {
    const PlanResult& x = results_[a];
    const PlanResult& y = results_[b];
    return std::tie(x.iteration, x.needed_bytes) < std::tie(y.iteration, y.needed_bytes);
  });
  for (const int point : fitting) {
    if (out.empty() || results_[point].needed_bytes < results_[out.back()].needed_bytes) out.push_back(point);
  }
  return out;
}

}  // namespace sluice::sim
