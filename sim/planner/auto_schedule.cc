#include "sim/planner/auto_schedule.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "model/schedule/family.h"
#include "model/to_size.h"
#include "sim/engine/parallel.h"
#include "sim/planner/auto_bounds.h"
#include "sim/planner/cyclic_schedule.h"
#include "sim/planner/list_scheduling.h"
#include "sim/planner/order_search.h"
#include "sim/planner/order_times.h"
#include "sim/planner/periodic_beam.h"

namespace sluice::sim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostElite = 6;  // per placement
constexpr std::int64_t kSearches = 2;  // concurrently, independent of the number of cores, for equal results on all
constexpr std::int64_t kFirstMoves = 2000;
constexpr std::int64_t kMostMoves = 400'000;
constexpr std::int64_t kSpare = 8;                 // evaluations of the searches of a generation besides their moves
constexpr std::int64_t kPeriodSteps = 4'000'000;   // of the search for one period, about a second
constexpr std::int64_t kStepsPerEvaluation = 16;   // for small limits of evaluations
constexpr double kPeriodStepsPerSecond = 100'000;  // of the limit of time
constexpr std::size_t kBeamWidth = 100;            // of the search without proof
constexpr std::int64_t kBeamSteps = 2'000'000;     // of it, a tenth of a second
constexpr std::int64_t kBoundOrders = 1'500'000;   // of the search for a better lower bound, a second or two
constexpr std::int64_t kOrdersPerEvaluation = 16;  // for small limits of evaluations
constexpr double kOrdersPerSecond = 100'000;       // of the limit of time
constexpr std::array<double, 4> kWarmths = {0.5, 2.0, 1.0, 0.2};

// What is left for a search.
class Allowance {
 public:
  explicit Allowance(const AutoOptions& options)
      : options_(options), begin_(Clock::now()), left_(options.evaluations) {}

  double seconds() const { return options_.seconds; }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  bool interrupted() const { return options_.stop != nullptr && *options_.stop; }
  bool is_late() const { return interrupted() || elapsed() >= options_.seconds; }
  // Late for the first result, too, which takes less than a second but for large problems.
  bool is_overdue() const { return interrupted() || elapsed() >= options_.seconds + 1; }
  bool is_spent() const { return left_ <= 0; }
  std::int64_t left() const { return left_; }
  std::int64_t used() const { return options_.evaluations - left_; }
  void use(std::int64_t evaluations) { left_ -= evaluations; }

 private:
  const AutoOptions& options_;
  Clock::time_point begin_;
  std::int64_t left_;  // evaluations
};

// A schedule that repeats its microbatches.
struct Periodic {
  CyclicProblem problem;
  CyclicSchedule schedule;
};

struct Candidate {
  std::int64_t makespan = kNever;  // by OrderTimes
  Orders orders;
  std::string found_by;
};

// A lower bound of the makespan if each op starts one period, at least `period`, after the same op of the microbatch
// before: the last microbatch starts m - 1 periods after the first. 0 unless m is twice the microbatches that a limit
// allows: only then do the ops of one microbatch on a rank span m periods at most, so that an infinite repetition has
// no conflict that these microbatches have not, and no period can be smaller. (They span the lifetimes of the first
// stage's activations and of another's, and a limit of n microbatches bounds each lifetime by n periods.)
std::int64_t periodic_bound(const PlacedProblem& problem, std::int64_t period) {
  PlacedProblem one = problem;
  one.num_microbatches = 1;
  const OpTable table(one);
  for (int stage = 0; stage < table.stages; ++stage) {
    const OpKind last = problem.may_split ? OpKind::W : OpKind::B;
    const std::int64_t held = std::min(table.rows[table.id(OpKind::F, stage, 0, 0)].keeps,  // until I; until the end
                                       -table.rows[table.id(last, stage, 0, 0)].keeps);
    if (held <= 0 || 2 * (problem.limit[table.rank_of[stage]] / held) > problem.num_microbatches) return 0;
  }
  return (problem.num_microbatches - 1) * period + auto_bounds(one, table).makespan;
}

// The number of microbatches that every rank can hold; 0 if no limit is below their number.
int most_in_flight(const PlacedProblem& problem) {
  const std::vector<std::int64_t> least = least_limits(problem);
  std::int64_t most = problem.num_microbatches;
  for (std::size_t rank = 0; rank < least.size(); ++rank) {
    if (least[rank] > 0) most = std::min(most, problem.limit[rank] / least[rank]);
  }
  return most < problem.num_microbatches ? static_cast<int>(most) : 0;
}

// The rules to try, in order.
std::vector<ListRules> grid(const PlacedProblem& problem) {
  std::vector<ListRules> out;
  std::vector<ListRules::Fuse> fuses = {ListRules::Fuse::never};
  const bool pays = std::any_of(problem.times.begin(), problem.times.end(), [](const SliceOpTimes& of) {
    return of.backward < of.input_gradient + of.weight_gradient;
  });
  const bool holds_gradients = std::any_of(problem.bytes.begin(), problem.bytes.end(),
                                           [](const SliceBytes& of) { return of.gradients_to_weight_gradient > 0; });
  if (problem.may_fuse && (pays || holds_gradients))
    fuses = {ListRules::Fuse::never, ListRules::Fuse::before_last, ListRules::Fuse::first_stage,
             ListRules::Fuse::always};
  for (const double overfill : {0.0, 1.0, 0.5}) {
    for (const double gradient_bias : {0.0, 1e6, 2.0, -2.0}) {
      for (const double depth_bias : {0.0, 0.5, 2.0, -0.5}) {
        for (const double hold_back : {0.0, 0.9}) {
          for (const ListRules::Fuse fuse : fuses) {
            ListRules rules;
            rules.overfill = overfill;
            rules.gradient_bias = gradient_bias;
            rules.depth_bias = depth_bias;
            rules.hold_back = hold_back;
            rules.fuse = fuse;
            out.push_back(rules);
          }
        }
      }
    }
  }
  // With little memory, groups of microbatches that pass all chunks before the next ones are often best.
  const int group = most_in_flight(problem);
  std::ptrdiff_t added = 0;
  for (const double depth_bias : {-0.5, 0.0, 0.5}) {
    for (const double gradient_bias : {1e6, 0.0, -2.0}) {
      for (const int in_flight : {group, group + 1, group - 1}) {
        if (group == 0 || in_flight == 0) continue;
        ListRules rules;
        rules.in_flight = in_flight;
        rules.depth_bias = depth_bias;
        rules.gradient_bias = gradient_bias;
        out.insert(out.begin() + 8 + added++, rules);
      }
    }
  }
  return out;
}

// One placement while it is searched.
class Place {
 public:
  Place(AutoPlacement placement, Allowance& allowance)
      : allowance_(&allowance),
        placement_(std::make_unique<AutoPlacement>(std::move(placement))),
        table_(std::make_unique<OpTable>(placement_->problem)),
        bounds_(auto_bounds(placement_->problem, *table_)),
        least_(bounds_.makespan) {
    if (!placement_->limit_of_bound.empty()) raise_bound(searched_bound(0));
  }

  // A lower bound of the makespan, by a search.
  std::int64_t searched_bound(std::int64_t most_orders) const {
    PlacedProblem wider = placement_->problem;
    if (!placement_->limit_of_bound.empty()) wider.limit = placement_->limit_of_bound;
    return auto_bounds(wider, *table_, most_orders).makespan;
  }
  void raise_bound(std::int64_t least) { least_ = least; }

  const PlacedProblem& problem() const { return placement_->problem; }
  const OpTable& table() const { return *table_; }
  const AutoBounds& bounds() const { return bounds_; }
  std::int64_t least() const { return least_; }  // lower bound of the makespan for this placement
  const AutoPlacement& placement() const { return *placement_; }
  const std::vector<Candidate>& elite() const { return elite_; }
  std::int64_t best() const { return elite_.empty() ? kNever : elite_.front().makespan; }
  bool proven() const { return best() <= least_; }

  void offer(Candidate candidate) {
    if (candidate.makespan == kNever) return;
    if (elite_.size() == kMostElite && candidate.makespan >= elite_.back().makespan) return;
    for (const Candidate& other : elite_) {
      if (other.makespan == candidate.makespan && other.orders == candidate.orders) return;
    }
    const auto place = std::upper_bound(elite_.begin(), elite_.end(), candidate,
                                        [](const Candidate& a, const Candidate& b) { return a.makespan < b.makespan; });
    elite_.insert(place, std::move(candidate));
    if (elite_.size() > kMostElite) elite_.pop_back();
  }

  void start() {
    OrderTimes times(problem(), table());
    offer({times.run(sequential_orders(problem())), sequential_orders(problem()), "one microbatch after the other"});
    for (const auto& [name, schedule] : placement_->families) {
      Orders orders = orders_of(table(), schedule);
      if (allowance_->is_spent() || !keeps_limits(problem(), table(), orders)) continue;
      const std::int64_t makespan = timed(times, orders);
      offer({makespan, std::move(orders), name});
    }
    // Fewer rules for large problems, so that the first result comes soon.
    const std::vector<ListRules> all = grid(problem());
    const std::size_t most = std::max<std::size_t>(8, 600'000 / std::max<std::size_t>(1, table().rows.size()));
    for (std::size_t i = 0; i < std::min(all.size(), most); ++i) {
      if (proven() || allowance_->is_spent() || (i > 0 && allowance_->is_overdue())) break;
      list(all[i], times);
    }
  }

  // A small part of what is left, and of the limit of time.
  std::int64_t period_steps() const {
    const std::int64_t by_evaluations =
        std::clamp<std::int64_t>(allowance_->left(), 0, kPeriodSteps / kStepsPerEvaluation) * kStepsPerEvaluation;
    const double by_time = allowance_->seconds() * kPeriodStepsPerSecond;
    return by_time < static_cast<double>(by_evaluations) ? static_cast<std::int64_t>(by_time) : by_evaluations;
  }

  // Searches for the least periods. Two microbatches per period are tried where one needs more than the simple bound.
  void find_periods() {
    for (const int microbatches : {1, 2}) {
      if (allowance_->is_late() || microbatches > problem().num_microbatches) return;
      const std::optional<CyclicProblem> cyclic = cyclic_problem(problem(), microbatches);
      if (!cyclic) return;
      CyclicSchedule schedule =
          least_period(*cyclic, SearchSteps(period_steps(), [this] { return allowance_->is_late(); }));
      if (microbatches == 1 && !schedule.proven()) shorten(*cyclic, schedule);
      const bool simple = schedule.period == cyclic->simple_bound();
      periodics_.push_back({*cyclic, std::move(schedule)});
      if (simple) return;
    }
  }
  const std::vector<Periodic>& periodics() const { return periodics_; }

  // Starts from schedules that `find_periods` found for this problem with any number of microbatches.
  void start_periodically(const std::vector<Periodic>& periodics) {
    OrderTimes times(problem(), table());
    for (const Periodic& periodic : periodics) {
      if (periodic.schedule.period == 0 || allowance_->is_spent() || allowance_->is_overdue()) continue;
      Orders orders = unrolled(periodic.problem, periodic.schedule, table());
      if (!keeps_limits(problem(), table(), orders)) continue;
      const std::int64_t makespan = timed(times, orders);
      offer({makespan, std::move(orders), "periodic schedule"});
    }
  }

  // Repeats list scheduling with the best rules so far and random noise.
  void start_again(unsigned seed) {
    OrderTimes times(problem(), table());
    for (unsigned i = 0; i < 8 && !proven() && !allowance_->is_spent() && !allowance_->is_late(); ++i) {
      ListRules rules = best_rules_;
      rules.seed = seed * 8 + i;
      rules.noise = i % 2 == 0 ? 1.0 : 0.25;
      list(rules, times);
    }
  }

  // The placement with fewer microbatches, whose orders can be stretched to this one; none if it has few. The number
  // of missing ones is a multiple of four, so that periods of 1, 2 and 4 divide it.
  std::optional<AutoPlacement> shortened() const {
    const int few = problem().num_ranks + 4;
    const int m = problem().num_microbatches;
    if (m < few + 4) return std::nullopt;
    AutoPlacement out{.name = placement_->name, .problem = problem()};
    out.problem.num_microbatches = few + (m - few) % 4;
    out.families = families_of(out.problem);
    return out;
  }

  // Stretches the best orders of `shorter`, which was built from `shortened`.
  void stretch(const Place& shorter) {
    OrderTimes short_times(shorter.problem(), shorter.table());
    OrderTimes times(problem(), table());
    for (const Candidate& candidate : shorter.elite()) {
      const std::int64_t makespan = short_times.run(candidate.orders);
      for (const int period : {1, 2, 4}) {
        for (std::int64_t from = 1; from < 16; ++from) {
          Orders orders =
              stretched(shorter.table(), table(), candidate.orders, short_times, period, makespan * from / 16);
          if (allowance_->is_spent() || allowance_->is_overdue()) return;
          if (orders.empty() || !keeps_limits(problem(), table(), orders)) continue;
          const std::int64_t longer = timed(times, orders, elite_.empty() ? kNever : elite_.back().makespan);
          offer({longer, std::move(orders), "search"});
        }
      }
    }
  }

 private:
  // Replaces a schedule by one with a shorter period, if a search without proof finds one.
  void shorten(const CyclicProblem& cyclic, CyclicSchedule& schedule) const {
    CyclicSchedule other =
        short_period(cyclic, kBeamWidth, SearchSteps(kBeamSteps, [this] { return allowance_->is_late(); }));
    if (other.period == 0 || (schedule.period > 0 && schedule.period <= other.period)) return;
    schedule.period = other.period;
    schedule.starts = std::move(other.starts);
  }

  std::int64_t timed(OrderTimes& times, const Orders& orders, std::int64_t most = kNever) {
    allowance_->use(1);
    return times.run(orders, most);
  }

  void list(const ListRules& rules, OrderTimes& times) {
    Orders orders = list_schedule(problem(), table(), bounds_.tail, rules);
    if (orders.empty() || !keeps_limits(problem(), table(), orders)) return;
    const std::int64_t makespan = timed(times, orders);
    if (makespan < best_listed_) {
      best_listed_ = makespan;
      best_rules_ = rules;
    }
    offer({makespan, std::move(orders), "list scheduling"});
  }

  Allowance* allowance_;
  std::unique_ptr<AutoPlacement> placement_;  // on the heap, as others refer to it
  std::unique_ptr<OpTable> table_;
  AutoBounds bounds_;
  std::int64_t least_;
  std::vector<Candidate> elite_;  // fastest first
  std::vector<Periodic> periodics_;
  ListRules best_rules_;
  std::int64_t best_listed_ = kNever;
};

class AutoScheduler {
 public:
  AutoScheduler(std::vector<AutoPlacement> placements, const AutoOptions& options, const ScheduleJudge& judge)
      : options_(options), judge_(judge), allowance_(options) {
    std::optional<DoesNotFit> refused;
    for (AutoPlacement& placement : placements) {
      try {
        check(placement.problem);
        places_.emplace_back(std::move(placement), allowance_);
      } catch (const DoesNotFit& error) {
        if (!refused) refused = error;
      }
    }
    if (places_.empty()) {
      if (refused) throw DoesNotFit(*refused);
      throw InputError("automatic schedule: expected at least one placement");
    }
  }

  AutoResult run() {
    update_lower_bound();
    for (Place& place : places_) place.start();
    settle();
    if (!result_) throw DoesNotFit("automatic schedule: no schedule was found that fits in the memory of all ranks");
    result_->first_makespan = result_->makespan;
    result_->first_seconds = allowance_.elapsed();
    raise_bounds_and_start();
    search();
    const AutoEnd end = ended_by();
    settle();
    result_->ended_by = end;
    result_->seconds = allowance_.elapsed();
    result_->evaluations = allowance_.used();
    result_->periodic = periodic_bounds();
    return std::move(*result_);
  }

 private:
  AutoEnd ended_by() const {
    if (best() <= lower_bound_) return AutoEnd::bound;
    if (allowance_.interrupted()) return AutoEnd::interrupt;
    if (allowance_.left() <= kSpare) return AutoEnd::evaluations;
    return allowance_.is_late() ? AutoEnd::time : AutoEnd::no_improvement;
  }

  std::int64_t best() const {
    std::int64_t out = kNever;
    for (const Place& place : places_) out = std::min(out, place.best());
    return out;
  }

  std::optional<Duration> judged(const Place& place, std::size_t index, const Schedule& schedule, bool family) const {
    if (judge_) return judge_(schedule, index);
    if (family && !keeps_limits(place.problem(), place.table(), orders_of(place.table(), schedule)))
      return std::nullopt;
    return simulated_makespan(place.problem(), schedule);
  }

  void update_lower_bound() {
    lower_bound_ = kNever;
    for (const Place& place : places_) lower_bound_ = std::min(lower_bound_, place.least());
  }

  // Searches for better bounds and, concurrently, for schedules to start from.
  void raise_bounds_and_start() {
    const std::vector<std::size_t> open = open_places();
    if (open.empty()) return;
    const std::int64_t by_evaluations =
        std::clamp<std::int64_t>(allowance_.left(), 0, kBoundOrders / kOrdersPerEvaluation) * kOrdersPerEvaluation;
    const std::int64_t orders =
        std::min(by_evaluations, static_cast<std::int64_t>(options_.seconds * kOrdersPerSecond));
    std::vector<std::int64_t> bounds;
    parallel_for(2, [&](std::int64_t thread) {
      if (thread == 1) {
        start_periodically();
        start_shorter();
        return;
      }
      for (const std::size_t i : open) {
        if (!allowance_.is_late()) bounds.push_back(places_[i].searched_bound(orders / std::ssize(open)));
      }
    });
    for (std::size_t i = 0; i < bounds.size(); ++i) places_[open[i]].raise_bound(bounds[i]);
    update_lower_bound();
  }

  // Selects the best schedule by the judge, families first so that they win ties.
  void settle() {
    const auto take = [&](Schedule schedule, Duration makespan, const Place& place, const std::string& found_by) {
      if (result_ && makespan >= result_->makespan) return;
      if (!result_) {
        result_.emplace(AutoResult{.schedule = std::move(schedule)});
      } else {
        result_->schedule = std::move(schedule);
      }
      result_->makespan = makespan;
      result_->found_by = found_by;
      result_->placement = place.placement().name;
    };
    for (std::size_t i = 0; i < places_.size() && !families_judged_; ++i) {
      for (const auto& [name, schedule] : places_[i].placement().families) {
        if (allowance_.is_overdue()) break;
        const auto makespan = judged(places_[i], i, schedule, true);
        if (!makespan) continue;
        if (best_family_.empty() || *makespan < best_family_makespan_) {
          best_family_ = name;
          best_family_makespan_ = *makespan;
        }
        take(schedule, *makespan, places_[i], name);
      }
    }
    families_judged_ = true;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      for (const Candidate& candidate : places_[i].elite()) {
        if (!judge_ && result_ && Duration(candidate.makespan) >= result_->makespan) break;
        Schedule schedule = schedule_of(places_[i].problem(), candidate.orders);
        const auto makespan = judged(places_[i], i, schedule, false);
        if (makespan) take(std::move(schedule), *makespan, places_[i], candidate.found_by);
        if (makespan && (!judge_ || allowance_.is_overdue())) break;
      }
    }
    if (!result_) return;
    result_->lower_bound = Duration(lower_bound_);
    result_->best_family = best_family_;
    result_->best_family_makespan = best_family_makespan_;
  }

  struct Task {
    std::size_t place = 0;
    std::size_t elite = 0;
    bool shorter = false;  // searches the place with few microbatches
    double warmth = 0;
    std::int64_t moves = 0;
    unsigned seed = 0;
  };

  void search() {
    std::int64_t ops = 0;
    for (const Place& place : places_) ops = std::max(ops, std::int64_t{place.table().cells} * 3);
    // Limits the moves without improvement, as small problems are exhausted long before the time limit.
    const std::int64_t patience = 100'000 + 4'000 * ops;
    std::int64_t in_vain = 0;  // moves since the last improvement
    std::int64_t moves = kFirstMoves;
    std::int64_t best_so_far = best();
    for (unsigned generation = 0;
         allowance_.left() > kSpare && in_vain < patience && best() > lower_bound_ && !allowance_.is_late();) {
      const std::vector<std::size_t> open = open_places();
      if (open.empty()) break;
      const std::vector<Task> tasks = tasks_of(open, generation, moves, allowance_.left() - kSpare);
      for (const Task& task : tasks) in_vain += task.moves;
      anneal(tasks);
      if (generation % 4 == 3) places_[tasks.front().place].start_again(task_seed(generation));
      ++generation;
      if (generation % 4 == 0) moves = std::min(2 * moves, kMostMoves);
      if (best() < best_so_far) {
        best_so_far = best();
        in_vain = 0;
      }
      if (options_.progress) options_.progress(allowance_.elapsed(), Duration(best()));
    }
  }

  void start_periodically() {
    for (Place& place : places_) {
      if (best() <= lower_bound_) return;
      place.find_periods();
      if (place.least() < best()) place.start_periodically(place.periodics());
    }
  }

  std::optional<PeriodicBounds> periodic_bounds() const {
    PeriodicBounds out{.period_bound = Duration::max(), .period = Duration{}, .makespan_bound = Duration::max()};
    for (const Place& place : places_) {
      if (place.periodics().empty()) return std::nullopt;
      const Periodic& of = place.periodics().front();
      const Duration period(of.schedule.period);
      out.period_bound = std::min(out.period_bound, Duration(of.schedule.bound));
      out.makespan_bound = std::min(out.makespan_bound, Duration(periodic_bound(place.problem(), of.schedule.bound)));
      if (period > Duration{} && (out.period == Duration{} || period < out.period)) out.period = period;
    }
    return out;
  }

  // Starts places with few microbatches, and stretches their best orders.
  void start_shorter() {
    shorter_.resize(places_.size());
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].proven() || places_[i].least() >= best() || allowance_.is_overdue()) continue;
      std::optional<AutoPlacement> placement = places_[i].shortened();
      if (!placement) continue;
      shorter_[i].emplace(std::move(*placement), allowance_);
      shorter_[i]->start();
      shorter_[i]->start_periodically(places_[i].periodics());
      places_[i].stretch(*shorter_[i]);
    }
  }

  // Placements that may still improve the result, best first.
  std::vector<std::size_t> open_places() const {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (!places_[i].proven() && places_[i].least() < best()) open.push_back(i);
    }
    std::stable_sort(open.begin(), open.end(),
                     [this](std::size_t a, std::size_t b) { return places_[a].best() < places_[b].best(); });
    return open;
  }

  Place& searched(const Task& task) { return task.shorter ? *shorter_[task.place] : places_[task.place]; }

  // The searches of one generation, with at most `moves_left` moves in total.
  std::vector<Task> tasks_of(const std::vector<std::size_t>& open, unsigned generation, std::int64_t moves,
                             std::int64_t moves_left) {
    std::vector<Task> tasks;
    for (std::int64_t i = 0; i < kSearches && moves_left > 0; ++i) {
      Task task;
      // The best placement every other time, all of them round-robin in between.
      task.place = generation % 2 == 0 ? open.front() : open[generation / 2 % open.size()];
      // The second task searches the place with few microbatches, if there is one.
      task.shorter = i == 1 && shorter_[task.place] && !shorter_[task.place]->proven();
      const std::size_t count = searched(task).elite().size();
      task.elite = i == 0 || generation % 3 == 0 ? 0 : (generation + to_size(i)) % count;
      task.warmth = kWarmths[(generation + to_size(i)) % kWarmths.size()];
      task.moves = std::min(moves, moves_left);
      task.seed = options_.seed * 1'000'003U + generation * 16 + static_cast<unsigned>(i);
      moves_left -= task.moves;
      tasks.push_back(task);
    }
    return tasks;
  }

  // Runs the searches in parallel, then offers their orders to their places.
  void anneal(const std::vector<Task>& tasks) {
    std::vector<Candidate> found(tasks.size());
    std::vector<std::int64_t> evaluations(tasks.size());
    parallel_for(std::ssize(tasks), [&](std::int64_t i) {
      const Task& task = tasks[i];
      const Place& place = searched(task);
      OrderSearch search(place.problem(), place.table(), place.bounds().tail, place.elite()[task.elite].orders,
                         task.seed);
      search.anneal(task.moves, task.warmth, place.least(), [this] { return allowance_.is_late(); });
      found[i] = {search.best(), search.best_orders(), "search"};
      evaluations[i] = search.evaluations();
    });
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      Place& place = places_[tasks[i].place];
      allowance_.use(evaluations[i]);
      if (!tasks[i].shorter) {
        place.offer(std::move(found[i]));
        continue;
      }
      Place& few = *shorter_[tasks[i].place];
      if (found[i].makespan >= few.best()) continue;
      few.offer(std::move(found[i]));
      place.stretch(few);
    }
  }

  unsigned task_seed(unsigned generation) const { return options_.seed * 7919U + generation; }

  const AutoOptions& options_;
  const ScheduleJudge& judge_;
  Allowance allowance_;
  std::vector<Place> places_;
  std::vector<std::optional<Place>> shorter_;  // by place: with few microbatches
  std::optional<AutoResult> result_;
  std::int64_t lower_bound_ = kNever;
  bool families_judged_ = false;
  std::string best_family_;
  Duration best_family_makespan_{};
};

}  // namespace

std::string_view name_of(AutoEnd end) {
  constexpr std::array<std::string_view, 5> kNames = {"bound", "no improvement", "evaluations", "time", "interrupt"};
  return kNames[static_cast<std::size_t>(end)];
}

std::vector<std::pair<std::string, Schedule>> families_of(const PlacedProblem& problem,
                                                          const std::function<bool()>& stop) {
  std::vector<std::pair<std::string, Schedule>> out;
  if (problem.num_stages() % problem.num_ranks != 0) return out;
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.replicas > 1 || family.vocabulary_barriers > 0) continue;
    if (stop()) break;
    try {
      Schedule schedule = make_schedule(family, {.ranks = problem.num_ranks,
                                                 .chunks = problem.num_stages() / problem.num_ranks,
                                                 .microbatches = problem.num_microbatches,
                                                 .shape = problem.shape});
      if (schedule.num_routes() != 1 || schedule.routes()[0] != problem.rank_of) continue;
      bool priced = true;
      for (int rank = 0; rank < problem.num_ranks; ++rank) {
        for (const Op& op : schedule.ops(rank)) {
          if (op.kind == OpKind::B) priced = priced && problem.may_fuse;
          if (op.kind == OpKind::I || op.kind == OpKind::W) priced = priced && problem.may_split;
        }
      }
      if (priced) out.emplace_back(family.name, std::move(schedule));
    } catch (const InputError&) {
      // Not supported: too few microbatches, another number of chunks or slices.
    }
  }
  return out;
}

AutoResult auto_schedule(std::vector<AutoPlacement> placements, const AutoOptions& options,
                         const ScheduleJudge& judge) {
  return AutoScheduler(std::move(placements), options, judge).run();
}

}  // namespace sluice::sim
