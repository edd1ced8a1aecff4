#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "sim/goodput/trial.h"

namespace sluice::sim {

// The failures of all units of a run, in order. Exponential causes are one Poisson process. The units of a Weibull
// cause that have not failed yet are alike: the first of n fails when their common cumulative hazard has grown by an
// exponential number over n. Units that failed are renewals in a heap.
class FailureTimes {
 public:
  FailureTimes(const std::vector<FailureCause>& causes, RandomStream random);

  // Seconds of exposure until the next failure, from the begin of the run; infinite without failures.
  double next_s() const { return next_s_; }
  // Returns the cause of the next failure, and draws the one after it.
  std::size_t take();
  // Failures per second of exposure, and whether the cause is one of these.
  double exponential_rate() const { return rate_; }
  bool is_exponential(std::size_t cause) const;

 private:
  struct Cohort {  // units that have not failed yet
    std::size_t cause = 0;
    double units = 0;
    double hazard = 0;
    double next_s = 0;
  };
  using Renewal = std::pair<double, std::size_t>;  // seconds, cause

  void draw_exponential();
  void draw_first(Cohort& cohort);
  void find_next();

  const std::vector<FailureCause>* causes_;
  RandomStream random_;
  double rate_ = 0;
  double exponential_s_ = 0;
  std::vector<std::pair<double, std::size_t>> sums_;  // of rates, with the cause
  static constexpr std::size_t kGuides = 256;
  std::array<std::size_t, kGuides> first_{};  // sum that a part of the whole rate may be below
  std::vector<Cohort> cohorts_;
  std::priority_queue<Renewal, std::vector<Renewal>, std::greater<>> renewals_;
  double next_s_ = 0;
};

// A kind of failure with its rate per GPU-hour, as a file of failures ("sluice.failures/1", docs/formats.md) has it.
struct FailureComponent {
  std::string name;
  FailureKind kind = FailureKind::crash;
  double gpu_hours = 0;  // per failure
  int domain_gpus = 1;   // that one failure takes out: of a GPU, a tray, a node, an NVLink domain, a switch
  double weibull_k = 0;  // 0: exponential
  double age_hours = 0;
  bool replaced = true;  // otherwise the job restarts on the same nodes
  std::optional<RandomTime> detection;
  std::optional<RandomTime> diagnosis;
  std::optional<RandomTime> repair;
  RandomTime duration;
  double slowdown = 1;      // of the slow rank
  double bad_fraction = 0;  // of the components, that fail more often
  double bad_factor = 1;
  std::string source;
};

struct FailureModel {
  std::string name;
  std::string source;
  std::vector<FailureComponent> components;

  // GPU-hours per failure of any component.
  double gpu_hours() const;
};

// Returns the names of the catalogue's files of failures, sorted.
std::vector<std::string> catalogue_failures();

// Reads a file of failures, or that of the catalogue with this name. Throws InputError.
FailureModel load_failures(const std::string& name_or_path);

// Returns the model of a log of failures: CSV with a column `component` and one line per failure, observed during
// `gpu_hours`. Throws InputError naming `path`.
FailureModel fit_failures(const std::string& path, double gpu_hours);

// What failures do to a job.
struct FailureSetting {
  double gpus = 1;
  int node_gpus = 8;
  double replica_gpus = 1;       // GPUs per replica of data parallelism, if the GPUs of a replica are neighbors;
  double neighbor_replicas = 1;  // otherwise one failed GPU takes out this many per node
  RandomTime detection;
  RandomTime hang_detection;
  RandomTime diagnosis;
  RandomTime repair;
};

// Returns the causes of a job, with bad components as causes of their own. `slowdown` of stragglers is that of the
// rank.
std::vector<FailureCause> causes_of(const FailureModel& model, const FailureSetting& setting);

}  // namespace sluice::sim
