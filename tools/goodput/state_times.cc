#include "tools/goodput/state_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "model/errors.h"
#include "sim/goodput/reroute.h"
#include "sim/planner/plan.h"
#include "sim/simulator.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {

StateTimes::StateTimes(nlohmann::json document, std::string file, const Scenario& scenario, double healthy_s,
                       RecoveryPolicy policy, bool keep_batch, int node_gpus)
    : document_(std::move(document)),
      file_(std::move(file)),
      scenario_(scenario),
      healthy_s_(healthy_s),
      policy_(policy),
      keep_batch_(keep_batch),
      node_gpus_(node_gpus) {
  if (policy == RecoveryPolicy::replan) {
    if (!scenario_.model || !scenario_.cluster || scenario_.training.sequence_length == 0) {
      throw InputError("goodput: --policy replan needs a model, a cluster and a sequence length");
    }
    scenario_.global_batch =
        std::int64_t{scenario_.microbatches} * scenario_.training.dp * scenario_.training.micro_batch;
    scenario_.stage_layers.clear();
    scenario_.mtp_stage = kLastStage;
    scenario_.predictions.clear();
  }
  if (policy != RecoveryPolicy::reroute) return;
  setup_ = std::make_unique<Setup>(scenario_);
  std::vector<int> first(static_cast<std::size_t>(scenario_.training.pp));
  first[0] = 1;
  static_cast<void>(sim::rerouted(setup_->schedule(), first, scenario_.training.dp, true));  // throws if it cannot
}

double StateTimes::progress(std::span<const int> lost) {
  const std::scoped_lock lock(mutex_);
  std::vector<int> state(lost.begin(), lost.end());
  if (policy_ == RecoveryPolicy::reroute || policy_ == RecoveryPolicy::replan) {
    const bool reroutes = policy_ == RecoveryPolicy::reroute;
    const double seconds = known(state, reroutes ? &StateTimes::rerouted : &StateTimes::replanned);
    return seconds > 0 ? std::min(1.0, healthy_s_ / seconds) : 0;
  }
  const int dp = scenario_.training.dp;
  for (int left = dp - lost[0]; left >= 1; --left) {
    if (const double seconds = known({left}, &StateTimes::with_replicas); seconds > 0) {
      return healthy_s_ / seconds * (keep_batch_ ? 1 : static_cast<double>(left) / dp);
    }
  }
  return 0;
}

double StateTimes::known(const std::vector<int>& state, double (StateTimes::*simulate)(const std::vector<int>&)) {
  const auto found = seconds_.find(state);
  if (found != seconds_.end()) return found->second;
  const double seconds = (this->*simulate)(state);
  return seconds_[state] = seconds;
}

double StateTimes::with_replicas(const std::vector<int>& left) {
  const int replicas = left[0];
  const int microbatches =
      keep_batch_ ? (scenario_.microbatches * scenario_.training.dp + replicas - 1) / replicas : scenario_.microbatches;
  nlohmann::json changed = document_;
  ScenarioFlags::set(changed, "--dp", fmt::format("{}", replicas), file_);
  ScenarioFlags::set(changed, "--microbatches", fmt::format("{}", microbatches), file_);
  try {
    const Prediction prediction = sim::Simulator(ScenarioFlags::read(changed, file_)).predict();
    return prediction.fit && !prediction.fit->fits ? 0 : prediction.iteration_s();
  } catch (const InputError&) {
    return 0;
  }
}

// Simulates every pattern of up to two lost ranks. Others take as long as the slowest pattern that they contain: all
// losses of one rank, and two of different ranks.
double StateTimes::rerouted(const std::vector<int>& lost) {
  const auto kinds = lost.size() - static_cast<std::size_t>(std::count(lost.begin(), lost.end(), 0));
  if (kinds <= 1 || std::accumulate(lost.begin(), lost.end(), 0) <= 2) {
    if (*std::max_element(lost.begin(), lost.end()) >= scenario_.training.dp) return 0;
    const std::optional<Duration> delay = sim::rerouting_delay(*setup_, lost, scenario_.training.dp);
    return delay ? healthy_s_ + to_seconds(*delay) : 0;
  }
  double slowest = healthy_s_;
  const auto add = [&](const std::vector<int>& pattern) {
    const double seconds = known(pattern, &StateTimes::rerouted);
    slowest = seconds > 0 && slowest > 0 ? std::max(slowest, seconds) : 0;
  };
  for (std::size_t i = 0; i < lost.size(); ++i) {
    if (lost[i] == 0) continue;
    std::vector<int> pattern(lost.size());
    pattern[i] = lost[i];
    add(pattern);
    pattern[i] = 1;
    for (std::size_t j = i + 1; j < lost.size(); ++j) {
      if (lost[j] == 0) continue;
      pattern[j] = 1;
      add(pattern);
      pattern[j] = 0;
    }
  }
  return slowest;
}

double StateTimes::planned(int gpus) {
  const auto [entry, added] = plans_.try_emplace(gpus, 0);
  if (!added) return entry->second;
  sim::PlanSpace space;
  space.gpus = gpus;
  space.families = {scenario_.schedule};
  space.micro_batch = {scenario_.training.micro_batch};
  try {
    sim::Plan plan(scenario_, space, 1);
    for (auto work = plan.next(); !work.empty(); work = plan.next()) {
      plan.take(work, plan.work_out(work));
      plan.end_round();
    }
    const std::vector<int> ranking = plan.ranking();
    if (!ranking.empty()) {
      entry->second = to_seconds(plan.results()[static_cast<std::size_t>(ranking.front())].iteration);
    }
  } catch (const InputError&) {  // no sizes
  }
  return entry->second;
}

// Not all numbers of GPUs have sizes that divide the batch: tries fewer until they cannot be faster if all were as
// efficient as those of the whole cluster.
double StateTimes::replanned(const std::vector<int>& nodes) {
  const auto gpus = static_cast<int>(scenario_.training.world_size());
  const double whole_s = whole_plan_s();
  double best = 0;
  for (int left = gpus - nodes[0] * node_gpus_; left > 0; left -= node_gpus_) {
    if (best > 0 && whole_s * gpus / left >= best) break;
    const double seconds = planned(left);
    if (seconds > 0 && (best == 0 || seconds < best)) best = seconds;
  }
  return best;
}

double StateTimes::whole_plan_s() {
  const double planned_s = planned(static_cast<int>(scenario_.training.world_size()));
  return planned_s > 0 ? std::min(planned_s, healthy_s_) : healthy_s_;
}

}  // namespace sluice::tools
