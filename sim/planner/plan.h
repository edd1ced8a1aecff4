#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "sim/planner/plan_space.h"
#include "sim/planner/structure_runs.h"

namespace sluice::sim {

// Searches all configurations of a model on a cluster, in rounds. If memory binds (none fits without the margin, or the
// fastest recomputes all), those that do not fit are tried with their optimizer states on the host as well. Each round
// is a list of configurations to assess or to simulate; they may be processed anywhere and in any order, with the same
// result:
//   Plan plan(base, space, 10);
//   for (auto work = plan.next(); !work.empty(); work = plan.next()) {
//     plan.take(work, plan.work_out(work));
//     plan.end_round();
//   }
class Plan {
 public:
  using Predicate = std::function<bool(const PlanPoint&)>;
  // Before `refine`, the first `keep` of the ranking and the Pareto front of time and memory are exact, of all
  // configurations and of a `subset` (such as those that a framework runs). With `everything`, all configurations
  // that fit are simulated, also those that others are known to dominate. Throws InputError as `enumerate`.
  Plan(Scenario base, PlanSpace space, int keep, bool everything = false, const Predicate& subset = {});
  ~Plan();

  const Scenario& base() const { return base_; }
  const PlanSpace& space() const { return space_; }
  std::span<const PlanPoint> points() const { return points_; }
  std::span<const PlanResult> results() const { return results_; }  // by point

  // One configuration to process. Those of one group are processed faster together: of one structure to simulate, of
  // structures that differ in their families alone to assess.
  struct Work {
    int point = 0;
    int structure = 0;
    bool simulate = false;  // otherwise only assessed
    int group = 0;          // of this round
  };
  // Returns the next round, with configurations of one group adjacent; empty at the end of the search.
  std::vector<Work> next();
  // Processes `work` in parallel. Once `*stop` is set, the remaining configurations stay open. Calls `progress` with
  // the number of newly finished ones, from any thread.
  std::vector<PlanResult> work_out(std::span<const Work> work, const std::atomic<bool>* stop = nullptr,
                                   const std::function<void(std::int64_t)>& progress = {});
  // Records the results of a round or of a part of it, one per work item. `end_round` ends the round.
  void take(std::span<const Work> work, std::span<const PlanResult> results);
  void end_round();

  // After the search: gives the first `count` of the ranking, and of that of the subset, the smallest number of
  // recomputed layers that fits, unless the space lists numbers, and the partition of their layers that
  // `regular_partition` finds, and the fastest dispatcher, where these are faster, and ranks them again. Configurations
  // that differ only in the layers of their outer stages, or in the number of recomputed ones, count once. Does nothing
  // if the base specifies layers of stages.
  void refine(int count, const std::atomic<bool>* stop = nullptr);

  // Number of configurations that may fit, and of those among them that are finished.
  std::int64_t num_open() const { return std::ssize(queue_); }
  std::int64_t num_closed() const;

  // Points that fit: fastest first, those within the memory margin after all others.
  std::vector<int> ranking() const;
  // The fastest of the subset in the ranking, or -1.
  int best_of_subset() const;
  // The Pareto front of time and memory among them, fastest first.
  std::vector<int> pareto_front() const;

 private:
  using StructureKey = std::tuple<const Family*, int, int, int, int>;
  // The best results so far.
  struct Best {
    // The first of the ranking, ascending, at most `keep` each: those that fit clearly, and within the memory margin.
    std::vector<Duration> fastest;
    std::vector<Duration> fastest_tight;
    std::vector<std::pair<Duration, std::int64_t>> front;  // time and memory, both strictly monotone

    void add(const PlanResult& result, int keep);
    // Whether a configuration with these lower bounds is neither among the first `keep` nor in the front.
    bool rule_out(const PlanResult& bounds, int keep) const;
  };

  void group(std::vector<Work>& work) const;
  PlanResult work_out(const Work& work, SharedCosts& shared);
  bool dominated(PlanResult bounds, int point) const;
  void add_point(const PlanPoint& point);
  bool memory_binds() const;
  void add_offloaded();
  std::vector<int> ranking_of_subset() const;
  std::vector<int> leaders(const std::vector<int>& fitting, int count) const;
  void adopt(int index, PlanPoint point, PlanResult result);
  void record(int point);

  Scenario base_;
  PlanSpace space_;
  int keep_;
  bool everything_;
  std::vector<PlanPoint> points_;
  std::vector<PlanResult> results_;
  Predicate subset_;
  std::vector<char> in_subset_;  // by point
  std::vector<int> structure_of_;
  std::vector<std::unique_ptr<StructureRuns>> structures_;  // built on demand
  std::vector<int> queue_;                                  // points to simulate, by bound
  std::size_t taken_ = 0;                                   // number taken from the queue
  std::size_t round_size_ = 0;                              // 0: before an assessment
  std::size_t num_assessed_ = 0;                            // points before the last assessment
  std::map<StructureKey, int> structure_numbers_;
  Best best_;
  Best best_of_subset_;
};

}  // namespace sluice::sim
