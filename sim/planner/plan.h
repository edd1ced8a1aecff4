#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sim/planner/plan_space.h"
#include "sim/planner/structure_runs.h"

namespace sluice::sim {

// The search over all configurations of a model on a cluster. It goes in rounds, each of which says what to work out;
// the work may be done anywhere and in any order, and the answer is the same:
//   Plan plan(base, space, 10);
//   for (auto work = plan.next(); !work.empty(); work = plan.next()) {
//     plan.take(work, plan.work_out(work));
//     plan.end_round();
//   }
class Plan {
 public:
  // `keep` of the fastest are certain; so is the Pareto front of time and memory. With `everything`, what fits is
  // simulated even where others are certainly better. Throws InputError as `enumerate`.
  Plan(Scenario base, PlanSpace space, int keep, bool everything = false);
  ~Plan();

  const Scenario& base() const { return base_; }
  const PlanSpace& space() const { return space_; }
  std::span<const PlanPoint> points() const { return points_; }
  std::span<const PlanResult> results() const { return results_; }  // by point

  // One thing to work out. Those of one structure are cheap to do together.
  struct Work {
    int point = 0;
    int structure = 0;
    bool simulate = false;  // else only assess it
  };
  // The next round, those of one structure next to each other; nothing when it is done.
  std::vector<Work> next();
  // In parallel. Once `*stop` is set what is left stays open. Tells `progress` how many more are done, from any thread.
  std::vector<PlanResult> work_out(std::span<const Work> work, const std::atomic<bool>* stop = nullptr,
                                   const std::function<void(std::int64_t)>& progress = {});
  // Results of a round, or of a part of it, one for each of its work; then its end.
  void take(std::span<const Work> work, std::span<const PlanResult> results);
  void end_round();

  // Of the configurations that may fit: how many there are, and how many need nothing more.
  std::int64_t num_open() const { return std::ssize(queue_); }
  std::int64_t num_closed() const;

  // Points that fit, fastest first.
  std::vector<int> ranking() const;
  // Those of them that no other beats in both time and memory, fastest first.
  std::vector<int> pareto_front() const;

 private:
  bool certainly_worse(const PlanResult& result) const;
  void note(int point);

  Scenario base_;
  PlanSpace space_;
  int keep_;
  bool everything_;
  std::vector<PlanPoint> points_;
  std::vector<PlanResult> results_;
  std::vector<int> structure_of_;
  std::vector<std::unique_ptr<StructureRuns>> structures_;  // made where they are needed
  std::vector<int> queue_;                                  // to simulate, by bound
  std::size_t taken_ = 0;                                   // of the queue
  std::size_t round_size_ = 0;                              // 0: nothing is assessed yet
  std::vector<Duration> fastest_;                           // `keep_` of them at most, ascending
  std::vector<std::pair<Duration, std::int64_t>> front_;    // time and memory, both strictly monotone
};

}  // namespace sluice::sim
