#include "sim/planner/partition_bounds.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "model/scenario/costs.h"
#include "model/to_size.h"
#include "sim/engine/predict.h"
#include "sim/planner/structure_runs.h"

namespace sluice::sim {

using PartitionMemory = PartitionKey::Memory;

namespace {

constexpr std::int64_t kUnreachable = std::numeric_limits<std::int64_t>::max() / 4;
constexpr int kRoles = 4;

// The bytes that a stage holds for the whole run.
std::int64_t standing_of(const StageBytes& bytes) {
  return bytes.weights + (bytes.accumulated_gradients > 0 ? 0 : bytes.gradients) + bytes.optimizer;
}

// The contents of the stages where the first one has all layers.
std::vector<StageContents> all_in_first(const Scenario& scenario, const Schedule& schedule) {
  std::vector<int> layers(to_size(schedule.num_stages()), 0);
  layers.front() = scenario.model->layers;
  return split_stages(*scenario.model, schedule, layers, 0, 0, scenario.mtp_stage);
}

void at_most(PartitionBounds::Work& less, const PartitionBounds::Work& more) {
  for (Duration StageWork::*const time : {&StageWork::forward, &StageWork::gradient, &StageWork::weight,
                                          &StageWork::forward_path, &StageWork::gradient_path, &StageWork::after}) {
    less.times.*time = std::min(less.times.*time, more.times.*time);
  }
  less.standing = std::min(less.standing, more.standing);
  less.scratch = std::min(less.scratch, more.scratch);
}

}  // namespace

PartitionBounds::PartitionBounds(const Scenario& scenario, Schedule schedule, int microbatches, bool timed)
    : schedule_(std::move(schedule)),
      gpu_(scenario.cluster->gpu),
      layers_(scenario.model->layers),
      dense_(scenario.model->flat && scenario.model->has_experts() ? scenario.model->flat->dense_layers() : 0),
      of_route_(microbatches / schedule_.num_routes()),
      joint_(schedule_.has_joint_blocks() && scenario.training.joint_overlap != Training::JointOverlap::none) {
  holders_.resize(to_size(num_stages()));
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
    for (const int stage : schedule_.stages_of(rank)) holders_[to_size(stage)].push_back(rank);
  }
  copies_ = schedule_.num_ranks();
  if (scenario.model->mtp_layers > 0) {
    mtp_stage_ = scenario.mtp_stage == kLastStage ? num_stages() - 1 : scenario.mtp_stage;
  }
  for (const std::vector<int>& ranks : holders_) copies_ = std::min(copies_, static_cast<int>(ranks.size()));
  table_.resize(to_size(kRoles) * to_size(layers_ + 1) * to_size(dense_ + 1));
  fill(scenario, timed);
  make_monotone();
  if (timed) add_transfers(scenario);
}

PartitionBounds::Work& PartitionBounds::at(int role, int layers, int dense) {
  return table_[(to_size(role) * to_size(layers_ + 1) + to_size(layers)) * to_size(dense_ + 1) + to_size(dense)];
}

const PartitionBounds::Work& PartitionBounds::at(int role, int layers, int dense) const {
  return table_[(to_size(role) * to_size(layers_ + 1) + to_size(layers)) * to_size(dense_ + 1) + to_size(dense)];
}

bool PartitionBounds::has_role(int role) const {
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (role_of(stage) == role) return true;
  }
  return false;
}

int PartitionBounds::dense_in(int before, int layers) const { return std::clamp(dense_ - before, 0, layers); }

const PartitionBounds::Work& PartitionBounds::work(int stage, int before, int layers) const {
  return at(role_of(stage), layers, dense_in(before, layers));
}

// The contents that a stage with this number of layers may have, of them `dense` leading ones: one in a model with
// leading dense layers, else those of all places where it may begin.
std::vector<StageContents> PartitionBounds::contents_with(const Model& model, int layers, int dense) const {
  if (model.flat) return {{.layers = layers, .expert_layers = model.has_experts() ? layers - dense : 0}};
  std::vector<StageContents> out;
  for (int first = 0; first + layers <= layers_; ++first) {
    if (model.alike(first, layers) != first) continue;
    out.push_back(layers_from(model, first, layers));
  }
  return out;
}

// Computes the table: the least work of all contents of an entry. Times and bytes of a stage depend only on its
// contents, so that each of the stages has another content in one pass over them.
void PartitionBounds::fill(const Scenario& scenario, bool timed) {
  const Model& model = *scenario.model;
  struct Open {
    Work* into;
    StageContents contents;
    bool first;  // of the entry
  };
  std::array<std::vector<Open>, kRoles> open;  // by role, taken from the end
  for (int role = 0; role < kRoles; ++role) {
    if (!has_role(role)) continue;
    for (int layers = most_layers(role); layers >= 0; --layers) {
      for (int dense = std::min(layers, dense_); dense >= 0; --dense) {
        const std::vector<StageContents> possible = contents_with(model, layers, dense);
        for (const StageContents& contents : possible) {
          open[to_size(role)].push_back({&at(role, layers, dense), contents, &contents == &possible.back()});
        }
      }
    }
  }
  const std::vector<StageContents> empty = all_in_first(scenario, schedule_);
  while (std::any_of(open.begin(), open.end(), [](const auto& of) { return !of.empty(); })) {
    std::vector<StageContents> contents = empty;
    std::vector<std::optional<Open>> into(contents.size());
    for (int stage = 0; stage < num_stages(); ++stage) {
      auto& of = open[to_size(role_of(stage))];
      StageContents& held = contents[to_size(stage)];
      held.layers = held.expert_layers = held.first = 0;
      if (of.empty()) continue;
      into[to_size(stage)] = of.back();
      of.pop_back();
      const StageContents& taken = into[to_size(stage)]->contents;
      held.layers = taken.layers;
      held.expert_layers = taken.expert_layers;
      held.first = taken.first;
    }
    const ScenarioCosts costs(scenario, schedule_, contents);
    const std::vector<StageWork> times = timed ? compute_times(schedule_, costs) : std::vector<StageWork>(into.size());
    for (int stage = 0; stage < num_stages(); ++stage) {
      const std::optional<Open>& filled = into[to_size(stage)];
      if (!filled) continue;
      const StageBytes bytes = costs.footprint()->stage(stage);
      const Work work{times[to_size(stage)], standing_of(bytes), bytes.scratch};
      if (filled->first) {
        *filled->into = work;
      } else {
        at_most(*filled->into, work);
      }
    }
  }
}

// Lowers entries that exceed those of more layers, or of more dense ones with the same others.
void PartitionBounds::make_monotone() {
  for (int role = 0; role < kRoles; ++role) {
    for (int layers = most_layers(role) - 1; layers >= 0; --layers) {
      for (int dense = std::min(layers, dense_); dense >= 0; --dense) {
        at_most(at(role, layers, dense), at(role, layers + 1, dense));
        if (dense < dense_) at_most(at(role, layers, dense), at(role, layers + 1, dense + 1));
      }
    }
  }
}

// Adds the transfers that every stage of a role begins, whatever its layers.
void PartitionBounds::add_transfers(const Scenario& scenario) {
  const ScenarioCosts costs(scenario, schedule_, all_in_first(scenario, schedule_));
  const std::vector<StageWork> transfers = transfer_times(schedule_, costs);
  std::array<std::optional<StageWork>, kRoles> least;
  for (int stage = 0; stage < num_stages(); ++stage) {
    std::optional<StageWork>& of = least[to_size(role_of(stage))];
    const StageWork& here = transfers[to_size(stage)];
    if (!of) of = here;
    for (Duration StageWork::*const time :
         {&StageWork::forward, &StageWork::gradient, &StageWork::forward_path, &StageWork::gradient_path}) {
      (*of).*time = std::min((*of).*time, here.*time);
    }
    of->blocked = std::max(of->blocked, here.blocked);
  }
  for (int role = 0; role < kRoles; ++role) {
    if (!least[to_size(role)]) continue;
    for (int layers = 0; layers <= layers_; ++layers) {
      for (int dense = 0; dense <= dense_; ++dense) add_times(at(role, layers, dense).times, *least[to_size(role)]);
    }
  }
}

std::int64_t PartitionBounds::gradients(const StageWork& times) const {
  const std::int64_t both = (times.forward + times.gradient).count();
  return (joint_ ? both / 2 : both) * of_route_;
}

std::int64_t PartitionBounds::busy(const StageWork& times) const {
  return gradients(times) + times.weight.count() * of_route_ + (times.after - times.blocked).count();
}

PartitionMemory PartitionBounds::memory_class(std::int64_t needed_bytes) const {
  if (needed_bytes > gpu_.memory_bytes) return PartitionMemory::over;
  return gpu_.within_margin(needed_bytes) ? PartitionMemory::tight : PartitionMemory::fits;
}

PartitionKey PartitionBounds::key_of_bytes(std::int64_t standing) const {
  const std::int64_t needed = needed_bytes(gpu_, standing);
  const PartitionMemory memory = memory_class(needed);
  return {.memory = memory, .value = memory == PartitionMemory::over ? needed : 0};
}

PartitionKey PartitionBounds::least(std::span<const int> layers) const {
  std::vector<StageWork> times;
  std::vector<std::int64_t> standing;
  std::vector<std::int64_t> scratch;
  int before = 0;
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (layers[to_size(stage)] > most_layers_of(stage)) return {};
    const Work& of = work(stage, before, layers[to_size(stage)]);
    times.push_back(of.times);
    standing.push_back(of.standing);
    scratch.push_back(of.scratch);
    before += layers[to_size(stage)];
  }
  std::int64_t most = 0;
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
    std::int64_t bytes = 0;
    std::int64_t shared = 0;
    for (const int stage : schedule_.stages_of(rank)) {
      bytes += standing[to_size(stage)];
      shared = std::max(shared, scratch[to_size(stage)]);
    }
    most = std::max(most, bytes + shared);
  }
  PartitionKey key = key_of_bytes(most);
  if (key.memory != PartitionMemory::over)
    key.value = least_iteration(schedule_, of_route_ * schedule_.num_routes(), times, joint_).count();
  return key;
}

// Enumerates partial partitions, stage by stage, with a lower bound of each.
class PartitionTree {
 public:
  PartitionTree(const PartitionBounds& bounds, const PartitionKey& best, std::int64_t nodes, std::size_t most)
      : bounds_(bounds), best_(best), nodes_(nodes), most_(most) {
    const Schedule& schedule = bounds.schedule_;
    layers_.resize(to_size(bounds.num_stages()));
    path_.resize(layers_.size() + 1);
    return_.resize(layers_.size() + 1);
    ranks_.resize(to_size(schedule.num_ranks()));
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      Rank& of = ranks_[to_size(rank)];
      of.front = schedule.stages_of(rank).front();
      for (const int stage : schedule.stages_of(rank)) {
        add(of, bounds.at(bounds.role_of(stage), 0, 0));
        of.last = std::max(of.last, stage);
      }
    }
    least_per_layer();
  }

  std::optional<std::vector<std::vector<int>>> run() {
    if (!visit(0, 0)) return std::nullopt;
    return std::move(found_);
  }

 private:
  struct Rank {
    int front = 0;
    int last = 0;
    std::int64_t gradients = 0;
    std::int64_t busy = 0;
    std::int64_t standing = 0;
    std::int64_t scratch = 0;
  };

  void add(Rank& rank, const PartitionBounds::Work& of, int sign = 1) const {
    rank.gradients += sign * bounds_.gradients(of.times);
    rank.busy += sign * bounds_.busy(of.times);
    rank.standing += sign * of.standing;
  }

  // A layer adds at least this to the work of its rank.
  void least_per_layer() {
    per_layer_ = kUnreachable;
    for (int role = 0; role < kRoles; ++role) {
      if (!bounds_.has_role(role)) continue;
      const std::int64_t none = bounds_.busy(bounds_.at(role, 0, 0).times);
      for (int layers = 1; layers <= bounds_.most_layers(role); ++layers) {
        for (int dense = 0; dense <= std::min(layers, bounds_.dense_); ++dense) {
          per_layer_ = std::min(per_layer_, (bounds_.busy(bounds_.at(role, layers, dense).times) - none) / layers);
        }
      }
    }
  }

  // Returns whether partitions that begin like this one, with `left` more layers, may be better than the best.
  bool promising(int num_known, int left) const {
    std::int64_t bytes = 0;
    std::int64_t time = 0;
    std::int64_t room = 0;  // layers that fit on stages not known yet
    for (const Rank& rank : ranks_) {
      bytes = std::max(bytes, rank.standing + rank.scratch);
      const auto front = to_size(std::min(rank.front, num_known));
      const std::int64_t begin = path_[front];
      time = std::max({time, begin + rank.busy, begin + rank.gradients + return_[front]});
      if (rank.last < num_known) continue;
      const std::int64_t slack = best_.value - 1 - begin - rank.busy;
      room += per_layer_ > 0 ? std::max<std::int64_t>(0, slack) / per_layer_ : kUnreachable / std::ssize(ranks_);
    }
    PartitionKey key = bounds_.key_of_bytes(bytes);
    if (key.memory != PartitionMemory::over) key.value = time;
    if (!(key < best_)) return false;
    const bool by_time = key.memory == best_.memory && key.memory != PartitionMemory::over;
    return !by_time || room >= std::int64_t{left} * bounds_.copies_;
  }

  bool visit(int stage, int before) {
    if (stage == bounds_.num_stages()) {
      if (bounds_.least(layers_) < best_) found_.push_back(layers_);
      return found_.size() <= most_;
    }
    const int left = bounds_.layers_ - before;
    const bool last = stage + 1 == bounds_.num_stages();
    for (int layers = last ? left : 0; layers <= std::min(left, bounds_.most_layers_of(stage)); ++layers) {
      if (--nodes_ < 0) return false;
      if (!place(stage, before, layers)) return false;
    }
    return true;
  }

  // Visits the partitions with this number of layers in `stage`.
  bool place(int stage, int before, int layers) {
    const PartitionBounds::Work& none = bounds_.at(bounds_.role_of(stage), 0, 0);
    const PartitionBounds::Work& of = bounds_.work(stage, before, layers);
    const std::vector<Rank> ranks = ranks_;
    for (const int holder : bounds_.holders_[to_size(stage)]) {
      Rank& rank = ranks_[to_size(holder)];
      add(rank, none, -1);
      add(rank, of);
      rank.scratch = std::max(rank.scratch, of.scratch);
    }
    layers_[to_size(stage)] = layers;
    path_[to_size(stage) + 1] = path_[to_size(stage)] + of.times.forward_path.count();
    return_[to_size(stage) + 1] = return_[to_size(stage)] + of.times.gradient_path.count();
    const bool goes_on = !promising(stage + 1, bounds_.layers_ - before - layers) || visit(stage + 1, before + layers);
    ranks_ = ranks;
    return goes_on;
  }

  const PartitionBounds& bounds_;
  PartitionKey best_;
  std::int64_t nodes_;
  std::size_t most_;
  std::int64_t per_layer_ = 0;
  std::vector<int> layers_;
  std::vector<std::int64_t> path_;  // by number of stages: of the first slice over them, and of the last gradient back
  std::vector<std::int64_t> return_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<int>> found_;
};

std::optional<std::vector<std::vector<int>>> PartitionBounds::below(const PartitionKey& best, std::int64_t nodes,
                                                                    std::size_t most) const {
  return PartitionTree(*this, best, nodes, most).run();
}

// Decides whether any partition may finish within a given time, where the layers of each rank are limited by its work
// and by the paths to it and from it. The number of layers in the first stages of the first ranks determines the
// paths; the other stages of a rank count only in sum.
class PartitionRelaxation {
 public:
  PartitionRelaxation(const PartitionBounds& bounds, PartitionMemory memory) : bounds_(bounds), memory_(memory) {
    const Schedule& schedule = bounds.schedule_;
    const int ranks = schedule.num_ranks();
    std::vector<int> by_front(to_size(ranks), -1);
    for (int rank = 0; rank < ranks; ++rank) {
      if (const int front = schedule.stages_of(rank).front(); front < ranks) by_front[to_size(front)] = rank;
    }
    paths_ = schedule.num_routes() == 1 && std::find(by_front.begin(), by_front.end(), -1) == by_front.end();
    for (int i = 0; i < ranks; ++i) {
      const auto held = schedule.stages_of(paths_ ? by_front[to_size(i)] : i);
      others_.push_back(&sum_of(paths_ ? held.subspan(1) : held));
    }
    find_paths();
  }

  bool possible(std::int64_t time) const { return paths_ ? possible_with_paths(time) : possible_without(time); }

  // The least time of the last stage's work between the paths over all others.
  std::int64_t of_last_stage() const {
    std::int64_t least = kUnreachable;
    for (int before = 0; before <= bounds_.layers_; ++before) {
      const std::int64_t begin = forward_.back()[to_size(before)];
      const int layers = bounds_.layers_ - before;
      if (layers > bounds_.most_layers_of(bounds_.num_stages() - 1)) continue;
      const PartitionBounds::Work& work = bounds_.work(bounds_.num_stages() - 1, before, layers);
      if (begin == kUnreachable || !allowed(work)) continue;
      least = std::min(least, begin + std::max(bounds_.busy(work.times),
                                               bounds_.gradients(work.times) + return_.back()[to_size(before)]));
    }
    return least;
  }

 private:
  // The least work of several stages of a rank, by their number of layers together.
  struct Least {
    std::vector<std::int64_t> gradients;
    std::vector<std::int64_t> busy;

    // The largest number of layers within these times, or -1.
    int most(std::int64_t gradients_time, std::int64_t busy_time) const {
      const auto count = [](const std::vector<std::int64_t>& work, std::int64_t time) {
        return static_cast<int>(std::upper_bound(work.begin(), work.end(), time) - work.begin()) - 1;
      };
      return std::min(count(gradients, gradients_time), count(busy, busy_time));
    }
  };

  bool allowed(const PartitionBounds::Work& work) const {
    return bounds_.key_of_bytes(work.standing + work.scratch).memory <= memory_;
  }

  // Adds a stage whose layers are not dense, as these are less.
  Least with(const Least& sum, int role) const {
    const int layers = bounds_.layers_;
    Least out{std::vector(to_size(layers + 1), kUnreachable), std::vector(to_size(layers + 1), kUnreachable)};
    for (int more = 0; more <= bounds_.most_layers(role); ++more) {
      const PartitionBounds::Work& work = bounds_.at(role, more, 0);
      if (!allowed(work)) break;
      const std::int64_t gradients = bounds_.gradients(work.times);
      const std::int64_t busy = bounds_.busy(work.times);
      for (int before = 0; before + more <= layers; ++before) {
        const auto all = to_size(before + more);
        out.gradients[all] = std::min(out.gradients[all], sum.gradients[to_size(before)] + gradients);
        out.busy[all] = std::min(out.busy[all], sum.busy[to_size(before)] + busy);
      }
    }
    return out;
  }

  const Least& sum_of(std::span<const int> stages) {
    std::array<int, kRoles> roles{};
    for (const int stage : stages) ++roles[to_size(bounds_.role_of(stage))];
    const auto found = sums_.find(roles);
    if (found != sums_.end()) return found->second;
    const auto size = to_size(bounds_.layers_ + 1);
    Least sum{std::vector(size, kUnreachable), std::vector(size, kUnreachable)};
    sum.gradients[0] = sum.busy[0] = 0;
    for (int role = 0; role < kRoles; ++role) {
      for (int i = 0; i < roles[to_size(role)]; ++i) sum = with(sum, role);
    }
    return sums_.emplace(roles, std::move(sum)).first->second;
  }

  // The shortest paths over the first stages, by their number (less than all) and that of their layers.
  void find_paths() {
    const int layers = bounds_.layers_;
    const std::vector<std::int64_t> never(to_size(layers + 1), kUnreachable);
    forward_.assign(to_size(bounds_.num_stages()), never);
    return_.assign(forward_.size(), never);
    forward_[0][0] = return_[0][0] = 0;
    for (std::size_t stage = 0; stage + 1 < forward_.size(); ++stage) {
      for (int before = 0; before <= layers; ++before) {
        if (forward_[stage][to_size(before)] == kUnreachable) continue;
        for (int more = 0; before + more <= layers; ++more) {
          const PartitionBounds::Work& work = bounds_.work(static_cast<int>(stage), before, more);
          if (!allowed(work)) break;
          const auto all = to_size(before + more);
          const auto add = [&](std::vector<std::vector<std::int64_t>>& path, Duration time) {
            path[stage + 1][all] = std::min(path[stage + 1][all], path[stage][to_size(before)] + time.count());
          };
          add(forward_, work.times.forward_path);
          add(return_, work.times.gradient_path);
        }
      }
    }
  }

  bool possible_with_paths(std::int64_t time) const {
    const int layers = bounds_.layers_;
    std::vector<int> most(to_size(layers + 1), -1);  // layers on other stages, by those on first stages
    most[0] = 0;
    for (std::size_t stage = 0; stage < others_.size(); ++stage) {
      std::vector<int> next(most.size(), -1);
      for (int before = 0; before <= layers; ++before) {
        if (most[to_size(before)] < 0 || forward_[stage][to_size(before)] == kUnreachable) continue;
        const std::int64_t begin = time - forward_[stage][to_size(before)];
        const std::int64_t back = begin - return_[stage][to_size(before)];
        const int end = std::min(layers - before, bounds_.most_layers_of(static_cast<int>(stage)));
        for (int more = 0; more <= end; ++more) {
          const PartitionBounds::Work& work = bounds_.work(static_cast<int>(stage), before, more);
          if (!allowed(work)) break;
          const int others =
              others_[stage]->most(back - bounds_.gradients(work.times), begin - bounds_.busy(work.times));
          if (others < 0) break;
          int& all = next[to_size(before + more)];
          all = std::max(all, std::min(layers, most[to_size(before)] + others));
        }
      }
      most = std::move(next);
    }
    for (int first = 0; first <= layers; ++first) {
      // Dense layers after the first stages are ignored.
      const int ignored = std::max(0, bounds_.dense_ - first);
      if (most[to_size(first)] >= 0 && first + most[to_size(first)] + ignored >= layers) return true;
    }
    return false;
  }

  bool possible_without(std::int64_t time) const {
    std::int64_t sum = 0;
    for (const Least* const of : others_) {
      const int most = of->most(time, time);
      if (most < 0) return false;
      sum += most;
    }
    return sum >= std::int64_t{bounds_.layers_ - bounds_.dense_} * bounds_.copies_;
  }

  const PartitionBounds& bounds_;
  PartitionMemory memory_;
  bool paths_ = false;  // the first stages are the first of one rank each
  std::map<std::array<int, kRoles>, Least> sums_;
  std::vector<const Least*> others_;  // by rank, in the order of their first stages
  std::vector<std::vector<std::int64_t>> forward_;
  std::vector<std::vector<std::int64_t>> return_;
};

std::int64_t PartitionBounds::least_of_all(const PartitionKey& best) const {
  if (best.memory > PartitionMemory::tight) return 0;
  const PartitionRelaxation relaxation(*this, best.memory);
  std::int64_t impossible = -1;
  std::int64_t possible = best.value;
  while (possible - impossible > 1) {
    const std::int64_t middle = impossible + (possible - impossible) / 2;
    (relaxation.possible(middle) ? possible : impossible) = middle;
  }
  return std::clamp(relaxation.of_last_stage(), possible, best.value);
}

}  // namespace sluice::sim
