#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/units.h"
#include "sim/goodput/random_time.h"

namespace sluice::sim {

enum class FailureKind : std::uint8_t {
  crash,
  hang,        // found by a time-out
  corruption,  // silent: found later, all work since the checkpoint before it is lost
  slow,        // a straggler
  planned,     // a stop after a checkpoint
};
inline constexpr std::array<std::string_view, 5> kFailureKinds = {"crash", "hang", "corruption", "slow", "planned"};

// Something that interrupts a run: a kind of component, of which there are `units`.
struct FailureCause {
  std::string name;
  FailureKind kind = FailureKind::crash;
  double units = 1;
  RandomTime between;  // running time between failures of one unit; replaced units are new
  double age_s = 0;    // running time of all units before the run, for Weibull
  RandomTime detection;
  RandomTime diagnosis;
  RandomTime duration;        // of `slow` and `planned`; of `corruption` until it is found
  RandomTime repair;          // of a node
  int nodes = 1;              // that it takes out and spares replace; 0: the job restarts on the same nodes
  int replicas = 1;           // of data parallelism that it takes out
  double copies_survive = 1;  // probability that checkpoints in the memory of peers survive
  double slowdown = 1;        // of the iteration, by a straggler
  std::string source;

  double failures_per_s() const { return between.mean_s > 0 ? units / between.mean_s : 0; }
};

enum class RecoveryPolicy : std::uint8_t {
  restart,  // the job restarts from a checkpoint on spare or repaired nodes
  migrate,  // spare nodes take over the state; the iteration is repeated
  shrink,   // as restart; without spare nodes, with fewer replicas until nodes are repaired
  drop,     // the other replicas repeat the iteration and continue; the lost one rejoins
  reroute,  // as drop, but only the lost pipeline ranks are missing (ReCycle, arXiv 2405.14009)
  replan,   // as shrink, but with new parallel sizes for the nodes that are left
};
inline constexpr std::array<std::string_view, 6> kRecoveryPolicies = {"restart", "migrate", "shrink",
                                                                      "drop",    "reroute", "replan"};
constexpr bool continues_without(RecoveryPolicy policy) {
  return policy == RecoveryPolicy::drop || policy == RecoveryPolicy::reroute;
}
constexpr bool shrinks(RecoveryPolicy policy) {
  return policy == RecoveryPolicy::shrink || policy == RecoveryPolicy::replan;
}

// A training run, with all that happens to it resolved to times.
struct GoodputRun {
  std::vector<FailureCause> causes;
  RecoveryPolicy policy = RecoveryPolicy::restart;
  Duration horizon{};   // wall clock, at which the run ends
  Duration work{};      // time of all iterations at full speed, with which the run ends; 0: only the horizon
  Duration step{};      // one iteration, at full speed; only needed where a part of it is lost
  Duration interval{};  // between checkpoints, above 0
  Duration stall{};     // per checkpoint
  Duration durable{};   // from the begin of the stall, at least the stall
  // With checkpoints in the memory of peers, those in storage: at these intervals, if above 0, loaded in this time.
  Duration storage_interval{};
  Duration storage_load{};
  Duration start{};        // of the run
  Duration init{};         // of processes and communicators, after a failure
  Duration load{};         // of the checkpoint
  Duration reconfigure{};  // of `migrate`, `drop` and `reroute`, whenever the ranks change
  RandomTime replacement;  // of a node by a free spare
  int spares = 0;          // nodes
  int crews = 0;           // that repair one node each; 0: all broken nodes are repaired concurrently
  // What a run can continue without: replicas of data parallelism; with `reroute` ranks of their pipelines, the places
  // being pipeline ranks; with `replan` nodes.
  int replicas = 1;
  int places = 1;
  bool neighboring_places = false;  // of those that one failure takes out; otherwise they are at one place
  // Returns the progress per time without the given numbers of replicas by place, relative to all; 0 if that cannot
  // run. Called from several threads.
  std::function<double(std::span<const int>)> speed;

  int place_of(int first, int index) const { return neighboring_places ? (first + index) % places : first; }
};

// How the wall clock is used. All but `useful` is badput.
enum class TimeUse : std::uint8_t {
  useful,
  start,
  checkpoint,
  lost,  // work, done again
  detection,
  diagnosis,
  replacement,
  waiting,  // for a node
  init,
  load,
  degraded,    // difference between iterations without some replicas and full speed
  stragglers,  // the same of slow ranks
  planned,
};
inline constexpr std::array<std::string_view, 13> kTimeUses = {
    "useful",  "start", "checkpoint", "lost",     "detection",  "diagnosis", "replacement",
    "waiting", "init",  "load",       "degraded", "stragglers", "planned"};
using TimeByUse = std::array<Duration, kTimeUses.size()>;

struct TrialResult {
  TimeByUse time{};  // adds up to the wall clock
  Duration wall{};
  std::int64_t failures = 0;
  // Expected number of exponential failures, given the time that the run was exposed to them. The difference from their
  // number has mean 0.
  double exposure_s = 0;
  std::int64_t exponential_failures = 0;
  bool finished = false;  // all work is done

  Duration of(TimeUse use) const { return time[static_cast<std::size_t>(use)]; }
};

// A part of a run in which one thing takes the time: iterations (with their checkpoints: useful; degraded without some
// replicas; stragglers) or another use.
struct TrialSpan {
  Duration begin{};
  Duration end{};
  TimeUse use = TimeUse::useful;
  int missing = 0;      // replicas
  Duration progress{};  // useful work at the end that is not lost, in iterations at full speed
};

struct TrialFailure {
  Duration at{};
  std::size_t cause = 0;
  Duration lost{};  // work
};

// What happened in a run, in order of time. The spans cover its wall clock.
struct TrialHistory {
  std::vector<TrialSpan> spans;
  std::vector<TrialFailure> failures;
};

// Simulates a run, from failure to failure. Failures occur while the job runs or restarts, in proportion to the
// replicas in use; no failure hits detection, diagnosis, and the replacement of nodes. A failure during a restart
// starts it again, without another detection. The result depends on the seed and the number of the trial only.
// Writes what happened to `history`, if given.
TrialResult simulate_trial(const GoodputRun& run, std::uint64_t seed, std::uint64_t trial,
                           TrialHistory* history = nullptr);

}  // namespace sluice::sim
