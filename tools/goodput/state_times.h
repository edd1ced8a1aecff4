#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"
#include "sim/goodput/trial.h"

namespace sluice::tools {

// Iteration times of a scenario with what failures leave of it, each simulated once.
class StateTimes {
 public:
  // `healthy_s`: with everything. Throws InputError or ScheduleError if `policy` does not support the schedule.
  StateTimes(nlohmann::json document, std::string file, const Scenario& scenario, double healthy_s,
             sim::RecoveryPolicy policy, bool keep_batch, int node_gpus);

  // Returns the progress per time, as GoodputRun::speed. A number of replicas that cannot be simulated or does not fit
  // in memory leaves further ones idle. Thread-safe.
  double progress(std::span<const int> lost);

  // Returns the iteration time of the planner's sizes for all GPUs, or of the scenario's if these are faster.
  double whole_plan_s();

 private:
  // Iteration times in seconds; 0 if there is none.
  double known(const std::vector<int>& state, double (StateTimes::*simulate)(const std::vector<int>&));
  double with_replicas(const std::vector<int>& left);
  double rerouted(const std::vector<int>& lost);
  double replanned(const std::vector<int>& nodes);
  double planned(int gpus);

  std::mutex mutex_;
  nlohmann::json document_;
  std::string file_;
  Scenario scenario_;
  double healthy_s_;
  sim::RecoveryPolicy policy_;
  bool keep_batch_;
  int node_gpus_;
  std::unique_ptr<Setup> setup_;  // with reroute
  std::map<std::vector<int>, double> seconds_;
  std::map<int, double> plans_;
};

}  // namespace sluice::tools
