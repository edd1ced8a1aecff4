#include "sim/planner/plan.h"

#include <algorithm>
#include <array>
#include <limits>
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
constexpr int kMostOffloaded = 6;            // times the bytes that are left without optimizer states, at most
constexpr int kMostGain = 10;                // percent that layers of stages are assumed to gain at most
constexpr int kGroupsPerThread = 4;          // of structures, at least
constexpr std::int64_t kMostKept = 100'000;  // vertices and ops of a structure that is kept between rounds

// Whether two configurations hold the same bytes for the whole run, since they are equal but for what they recompute
// and the order of their ranks.
bool hold_the_same(PlanPoint one, const PlanPoint& other) {
  one.recompute = other.recompute;
  one.recompute_layers = other.recompute_layers;
  one.recompute_modules = other.recompute_modules;
  one.pipeline_before_data = other.pipeline_before_data;
  return one == other;
}

// Gives a configuration with full recomputation the smallest number of recomputed layers per stage with which it fits
// as it does, where this is faster: time and memory are monotone in the number.
void recompute_less(const Scenario& base, const PlanSpace& space, PlanPoint& point, PlanResult& result) {
  if (point.recompute != Training::Recompute::full) return;
  Scenario scenario = scenario_of(base, space, point);
  StructureRuns runs(scenario);
  const int stages = point.pp * point.chunks;
  int most = point.stage_layers.empty() ? (base.model->layers + stages - 1) / stages
                                        : *std::max_element(point.stage_layers.begin(), point.stage_layers.end());
  if (point.recompute_layers > 0) most = std::min(most, point.recompute_layers);
  int least = 1;
  while (least <= most) {
    const int layers = least + (most - least) / 2;
    scenario.training.recompute_layers = layers;
    PlanResult with = runs.run(scenario);
    if (with.status != PlanStatus::simulated) return;
    if (!with.fits || (with.tight && !result.tight)) {
      least = layers + 1;
      continue;
    }
    most = layers - 1;
    if (with.iteration >= result.iteration) continue;
    with.bound = Duration{0};
    result = std::move(with);
    point.recompute_layers = layers;
  }
}

// Gives a configuration the dispatcher that is fastest with its schedule, where this is faster.
void choose_dispatcher(const Scenario& base, const PlanSpace& space, PlanPoint& point, PlanResult& result) {
  if (!point.dispatcher) return;
  PlanPoint with = point;
  StructureRuns runs(scenario_of(base, space, point));
  for (const Training::TokenDispatcher each : space.dispatchers) {
    with.dispatcher = each;
    PlanResult other = runs.run(scenario_of(base, space, with));
    if (other.status != PlanStatus::simulated || !other.fits) continue;
    if (std::tie(other.tight, other.iteration) >= std::tie(result.tight, result.iteration)) continue;
    other.bound = Duration{0};
    result = std::move(other);
    point.dispatcher = each;
  }
}

// Whether the encoder may run where ranks wait.
bool has_bubbles(const PlanPoint& point) {
  return point.pp > 1 && !point.family->asynchronous && point.family->replicas == 1 &&
         point.family->vocabulary_barriers == 0;
}

// Gives a configuration the placement of the encoder that is fastest with its schedule, of more than plans enumerate.
void choose_encoder(const Scenario& base, const PlanSpace& space, PlanPoint& point, PlanResult& result) {
  std::vector<EncoderChoices> all;
  const auto add = [&](EncoderPlacement placement, int dp) {
    all.push_back(base.encoder);
    all.back().placement = placement;
    all.back().dp = dp;
  };
  if (scenario_of(base, space, point).encoder.placement == EncoderPlacement::bubbles) add(EncoderPlacement::bubbles, 1);
  if (space.may_place_encoder && has_bubbles(point)) {
    add(EncoderPlacement::phases, 1);
    for (int ranks = 1; 2 * ranks <= point.pp; ++ranks) add(EncoderPlacement::own_ranks, ranks);
  }
  PlanPoint with = point;
  for (const EncoderChoices& each : all) {
    with.encoder = each;
    Scenario scenario = scenario_of(base, space, with);
    scenario.encoder.search = true;
    PlanResult other = StructureRuns(scenario).run(scenario);
    if (other.status != PlanStatus::simulated || !other.fits) continue;
    if (std::tie(other.tight, other.iteration) >= std::tie(result.tight, result.iteration)) continue;
    other.bound = Duration{0};
    result = std::move(other);
    point.encoder = each;
  }
}

}  // namespace

Plan::Plan(Scenario base, PlanSpace space, int keep, bool everything, const Predicate& subset)
    : base_(std::move(base)),
      space_(std::move(space)),
      keep_(std::max(1, keep)),
      everything_(everything),
      subset_(subset) {
  for (PlanPoint& point : enumerate(base_, space_)) {
    add_point(point);
    if (!space_.may_place_encoder || !has_bubbles(point)) continue;
    point.encoder = base_.encoder;
    point.encoder->placement = EncoderPlacement::bubbles;
    add_point(point);
  }
}

Plan::~Plan() = default;

void Plan::add_point(const PlanPoint& point) {
  const auto [found, added] =
      structure_numbers_.try_emplace({point.family, point.pp, point.chunks, point.microbatches, point.slices},
                                     static_cast<int>(structure_numbers_.size()));
  if (added) structures_.emplace_back();
  structure_of_.push_back(found->second);
  in_subset_.push_back(subset_ && subset_(point) ? 1 : 0);
  points_.push_back(point);
  results_.emplace_back();
}

bool Plan::memory_binds() const {
  const std::vector<int> order = ranking();
  if (order.empty() || results_[to_size(order.front())].tight) return true;
  return points_[to_size(order.front())].recompute == Training::Recompute::full;
}

// Adds the configurations that do not fit, with optimizer states on the host, and has them assessed.
void Plan::add_offloaded() {
  space_.may_offload = false;
  const std::size_t before = points_.size();
  for (std::size_t i = 0; i < before; ++i) {
    const PlanResult& result = results_[i];
    const bool fits = result.status == PlanStatus::simulated ? result.fits : result.status != PlanStatus::over;
    PlanPoint point = points_[i];
    if (result.needed_bytes / kMostOffloaded > base_.cluster->gpu.memory_bytes) continue;  // does not fit even then
    if (fits || point.family->asynchronous || (point.dp > 1 && !point.distributed_optimizer)) continue;
    point.offloads_optimizer = true;
    if (!space_.refusal || space_.refusal(point).empty()) add_point(point);
  }
  round_size_ = points_.size() > before ? 0 : round_size_;
}

std::vector<Plan::Work> Plan::next() {
  std::vector<Work> work;
  const auto add = [&](int point, bool simulate) {
    work.push_back({.point = point, .structure = structure_of_[point], .simulate = simulate});
  };
  if (round_size_ == 0) {
    for (std::size_t point = num_assessed_; point < points_.size(); ++point) add(static_cast<int>(point), false);
  }
  while (round_size_ > 0 && work.empty() && taken_ < queue_.size()) {
    const std::size_t end = std::min(queue_.size(), taken_ + round_size_);
    for (; taken_ < end; ++taken_) {
      if (!everything_ && dominated(results_[queue_[taken_]], queue_[taken_])) {
        results_[queue_[taken_]].status = PlanStatus::bounded;
      } else {
        add(queue_[taken_], true);
      }
    }
    round_size_ = std::min(kLargestRound, 2 * round_size_);
  }
  if (work.empty() && space_.may_offload && memory_binds()) {
    add_offloaded();
    return next();
  }
  group(work);
  return work;
}

// Puts configurations of one group next to each other; of those to assess also such that differ in their families
// alone.
void Plan::group(std::vector<Work>& work) const {
  const bool simulate = !work.empty() && work.front().simulate;
  std::map<std::array<int, 4>, int> numbers;
  std::vector<int> group_of(structures_.size());
  for (const auto& [key, structure] : structure_numbers_) {
    const auto& [family, pp, chunks, microbatches, slices] = key;
    group_of[to_size(structure)] =
        numbers.try_emplace({pp, chunks, microbatches, slices}, static_cast<int>(numbers.size())).first->second;
  }
  const bool few = std::ssize(numbers) < std::ptrdiff_t{kGroupsPerThread} * num_threads();
  for (Work& each : work) each.group = simulate || few ? each.structure : group_of[to_size(each.structure)];
  const auto sizes = [&](const Work& of) {
    const PlanPoint& point = points_[to_size(of.point)];
    return std::tuple(of.group, point.tp, point.cp, point.dp, point.ep, point.etp, point.micro_batch,
                      point.first_layers, point.last_layers, point.distributed_optimizer, point.overlap_grad_reduce,
                      point.overlap_param_gather, point.pipeline_before_data, point.recompute, point.recompute_layers);
  };
  std::stable_sort(work.begin(), work.end(),
                   [&](const Work& a, const Work& b) { return simulate ? a.group < b.group : sizes(a) < sizes(b); });
}

PlanResult Plan::work_out(const Work& work, SharedCosts& shared) {
  std::unique_ptr<StructureRuns>& structure = structures_[to_size(work.structure)];
  try {
    const Scenario scenario = scenario_of(base_, space_, points_[to_size(work.point)]);
    if (!structure) structure = std::make_unique<StructureRuns>(scenario);
    if (!work.simulate) return structure->assess(scenario, shared);
    if (!everything_ && scenario.encoder.apart()) {
      PlanResult alone = structure->run(language_model_of(scenario));
      alone.bound = alone.iteration;
      if (alone.status == PlanStatus::simulated && (!alone.fits || dominated(alone, work.point))) {
        alone.status = PlanStatus::bounded;
        return alone;
      }
    }
    return structure->run(scenario);
  } catch (const InputError& error) {
    PlanResult out{.status = PlanStatus::refused};
    out.reason = error.what();
    return out;
  }
}

std::vector<PlanResult> Plan::work_out(std::span<const Work> work, const std::atomic<bool>* stop,
                                       const std::function<void(std::int64_t)>& progress) {
  std::vector<PlanResult> results(work.size());
  std::vector<std::pair<std::size_t, std::size_t>> runs;  // of one group
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (i == 0 || work[i].group != work[i - 1].group) runs.emplace_back(i, i);
    runs.back().second = i + 1;
  }
  parallel_for(std::ssize(runs), [&](std::int64_t index) {
    const auto [begin, end] = runs[index];
    SharedCosts shared;
    std::map<int, std::size_t> last;  // by structure
    for (std::size_t i = begin; i < end; ++i) {
      if (stop != nullptr && *stop) return;
      const auto [before, first] = last.try_emplace(work[i].structure, i);
      const bool over = !work[i].simulate && !first && results[before->second].standing_over &&
                        hold_the_same(points_[work[i].point], points_[work[before->second].point]);
      results[i] = over ? results[before->second] : work_out(work[i], shared);
      before->second = i;
      if (progress) progress(1);
    }
    for (const auto& [structure, unused] : last) {
      std::unique_ptr<StructureRuns>& runs_of = structures_[to_size(structure)];
      if (runs_of && runs_of->num_vertices() + runs_of->num_ops() > kMostKept) runs_of.reset();
    }
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

// After an assessment, queues the configurations that may fit for simulation, by bound.
void Plan::end_round() {
  if (round_size_ > 0) return;
  round_size_ = kFirstRound;
  std::vector<char> needed(structures_.size(), 0);
  for (; num_assessed_ < points_.size(); ++num_assessed_) {
    const PlanResult& result = results_[num_assessed_];
    if (result.status != PlanStatus::open || result.needed_bytes == 0) continue;  // stopped before it was assessed
    queue_.push_back(static_cast<int>(num_assessed_));
    needed[to_size(structure_of_[num_assessed_])] = 1;
  }
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (needed[i] == 0) structures_[i].reset();
  }
  std::stable_sort(queue_.begin() + static_cast<std::ptrdiff_t>(taken_), queue_.end(),
                   [&](int a, int b) { return results_[a].bound < results_[b].bound; });
}

void Plan::record(int point) {
  const PlanResult& result = results_[point];
  if (result.status != PlanStatus::simulated || !result.fits) return;
  best_.add(result, keep_);
  if (in_subset_[point] != 0) best_of_subset_.add(result, keep_);
}

void Plan::Best::add(const PlanResult& result, int keep) {
  std::vector<Duration>& times = result.tight ? fastest_tight : fastest;
  times.insert(std::upper_bound(times.begin(), times.end(), result.iteration), result.iteration);
  if (std::ssize(times) > keep) times.pop_back();
  const std::pair here(result.iteration, result.needed_bytes);
  const auto better = [&](const auto& other) { return other.first <= here.first && other.second <= here.second; };
  if (std::any_of(front.begin(), front.end(), better)) return;
  std::erase_if(front, [&](const auto& other) { return other.first >= here.first && other.second >= here.second; });
  front.push_back(here);
}

bool Plan::Best::rule_out(const PlanResult& bounds, int keep) const {
  const auto faster = [&](const std::vector<Duration>& times) {
    return std::lower_bound(times.begin(), times.end(), bounds.bound) - times.begin();
  };
  const auto ahead = bounds.tight ? std::ssize(fastest) + faster(fastest_tight) : faster(fastest);
  if (ahead < keep) return false;
  return std::any_of(front.begin(), front.end(), [&](const auto& other) {
    return other.first <= bounds.bound && other.second <= bounds.needed_bytes;
  });
}

// Of encoders apart the memory is known too late to bound it: they must be among the first.
bool Plan::dominated(PlanResult bounds, int point) const {
  const bool apart = points_[to_size(point)].encoder.value_or(base_.encoder).apart();
  if (apart) bounds.needed_bytes = std::numeric_limits<std::int64_t>::max();
  return best_.rule_out(bounds, keep_) && (in_subset_[point] == 0 || best_of_subset_.rule_out(bounds, keep_));
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

// The points of a ranking whose partitions and numbers of recomputed layers are worth a search: the first, and in
// place of those that differ only in these, the best of further parallel sizes that may overtake them.
std::vector<int> Plan::leaders(const std::vector<int>& fitting, int count) const {
  std::vector<int> order(fitting.begin(), fitting.begin() + std::min<std::ptrdiff_t>(count, std::ssize(fitting)));
  const auto without_layers = [&](int index) {
    PlanPoint point = points_[to_size(index)];
    point.first_layers = point.last_layers = 0;
    if (space_.recompute_layers.empty()) point.recompute_layers = 0;
    return point;
  };
  std::vector<int> out;
  for (const int point : order) {
    const PlanPoint& of = points_[to_size(point)];
    const auto same = [&](int other) { return without_layers(other) == without_layers(point); };
    const bool choices =
        of.pp * of.chunks > 1 || of.recompute == Training::Recompute::full || of.dispatcher.has_value();
    if (choices && std::none_of(out.begin(), out.end(), same)) out.push_back(point);
  }
  const auto sizes = [&](int index) {
    const PlanPoint& of = points_[to_size(index)];
    return std::tie(of.tp, of.cp, of.pp, of.ep, of.etp, of.micro_batch, of.recompute);
  };
  for (std::size_t i = to_size(count); i < fitting.size() && std::ssize(out) < count; ++i) {
    const int point = fitting[i];
    const PlanPoint& of = points_[to_size(point)];
    const auto alike = [&](int other) { return sizes(other) == sizes(point); };
    const Duration first = results_[to_size(fitting.front())].iteration;
    if (results_[to_size(point)].iteration > first + first * kMostGain / 100) break;
    if (of.pp * of.chunks > 1 && std::none_of(out.begin(), out.end(), alike)) out.push_back(point);
  }
  return out;
}

void Plan::refine(int count, const std::atomic<bool>* stop) {
  if (!base_.stage_layers.empty() || base_.first_stage_layers > 0 || base_.last_stage_layers > 0) return;
  std::vector<int> indices = leaders(ranking(), count);
  for (const int point : leaders(ranking_of_subset(), count)) {
    if (std::find(indices.begin(), indices.end(), point) == indices.end()) indices.push_back(point);
  }
  const bool any_number = space_.recompute_layers.empty() && base_.training.recompute_layers == 0;
  struct Refined {
    // With fewer recomputed layers; and with the layers of every stage as well; and with its encoder elsewhere.
    PlanPoint fewer, layered, encoded;
    PlanResult fewer_result, layered_result, encoded_result;
  };
  std::vector<Refined> found(indices.size());
  parallel_for(std::ssize(indices), [&](std::int64_t i) {
    Refined& out = found[to_size(i)];
    const int index = indices[to_size(i)];
    out.fewer = points_[to_size(index)];
    out.fewer_result = results_[to_size(index)];
    choose_dispatcher(base_, space_, out.fewer, out.fewer_result);
    if (any_number) recompute_less(base_, space_, out.fewer, out.fewer_result);
    out.encoded = out.fewer;
    out.encoded_result = out.fewer_result;
    choose_encoder(base_, space_, out.encoded, out.encoded_result);
    if (scenario_of(base_, space_, out.fewer).encoder.apart())
      return;  // bounds of partitions are of the language model alone
    if (out.fewer.pp * out.fewer.chunks == 1 || out.fewer.family->vocabulary_barriers > 0) return;
    if (base_.documents || base_.training.forward_only()) return;  // bounds of partitions are of equal microbatches
    Partition partition = regular_partition(scenario_of(base_, space_, out.fewer), kRefinement, stop);
    out.layered = out.fewer;
    out.layered.stage_layers = std::move(partition.layers);
    out.layered.mtp_stage = partition.mtp_stage;
    out.layered.first_layers = out.layered.last_layers = 0;
    out.layered_result = std::move(partition.result);
    out.layered_result.bound = partition.bound;
    const bool simulated = out.layered_result.status == PlanStatus::simulated && out.layered_result.fits;
    if (simulated && any_number) recompute_less(base_, space_, out.layered, out.layered_result);
  });
  for (std::size_t i = 0; i < indices.size(); ++i) {
    adopt(indices[i], std::move(found[i].fewer), std::move(found[i].fewer_result));
    adopt(indices[i], std::move(found[i].layered), std::move(found[i].layered_result));
    adopt(indices[i], std::move(found[i].encoded), std::move(found[i].encoded_result));
  }
}

// Replaces a configuration by a better one that the space does not refuse and that does not leave the subset.
void Plan::adopt(int index, PlanPoint point, PlanResult result) {
  PlanResult& known = results_[to_size(index)];
  if (result.status != PlanStatus::simulated || !result.fits) return;
  if (std::tie(result.tight, result.iteration) >= std::tie(known.tight, known.iteration)) return;
  if (space_.refusal && !space_.refusal(point).empty()) return;
  if (in_subset_[to_size(index)] != 0 && !subset_(point)) return;
  known = std::move(result);
  points_[to_size(index)] = std::move(point);
}

int Plan::best_of_subset() const {
  const std::vector<int> fitting = ranking_of_subset();
  return fitting.empty() ? -1 : fitting.front();
}

std::vector<int> Plan::ranking_of_subset() const {
  std::vector<int> out = ranking();
  std::erase_if(out, [&](int point) { return in_subset_[point] == 0; });
  return out;
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
