#include "benchmarks/accuracy/zero_bubble_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/timeline/metrics.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"

namespace sluice::bench::accuracy {
namespace {

void check(const ZeroBubbleProblem& problem) {
  const auto refuse = [](const std::string& reason) { throw InputError("zero-bubble schedule: " + reason); };
  if (problem.ranks.empty() || std::ssize(problem.ranks) > kMaxRanks) {
    refuse(fmt::format("ranks: expected 1 to {}, got {}", kMaxRanks, problem.ranks.size()));
  }
  const std::int64_t most = kMaxOps / (3 * std::ssize(problem.ranks));
  if (problem.num_microbatches < 1 || problem.num_microbatches > most) {
    refuse(fmt::format("microbatches: expected 1 to {}, got {}", most, problem.num_microbatches));
  }
  if (problem.shape.num_slices() != 1) {
    refuse(fmt::format("slices: expected 1, got {}", problem.shape.num_slices()));
  }
  if (problem.hop < Duration::zero()) refuse(fmt::format("hop: expected 0 ns or more, got {}", problem.hop.count()));
  double all = 0;
  for (std::size_t rank = 0; rank < problem.ranks.size(); ++rank) {
    const RankBudget& budget = problem.ranks[rank];
    for (const Duration time : {budget.forward, budget.input_gradient, budget.weight_gradient}) {
      if (time < Duration::zero())
        refuse(fmt::format("rank {}: time: expected 0 ns or more, got {}", rank, time.count()));
    }
    const auto nanoseconds = [](Duration time) { return static_cast<double>(time.count()); };
    all += nanoseconds(budget.forward) + nanoseconds(budget.input_gradient) + nanoseconds(budget.weight_gradient) +
           2 * nanoseconds(problem.hop);
    if (budget.activation < 0 || budget.kept < 0 || budget.kept > budget.activation) {
      refuse(
          fmt::format("rank {}: kept: expected 0 to the activation {}, got {}", rank, budget.activation, budget.kept));
    }
    // Sums of them stay within 64 bits.
    constexpr std::int64_t kMostHeld = std::int64_t{1} << 62;
    if (budget.activation > kMostHeld / problem.num_microbatches) {
      refuse(fmt::format("rank {}: activation: {} of {} are more than 2^62", rank, problem.num_microbatches,
                         budget.activation));
    }
    if (budget.limit > kMostHeld)
      refuse(fmt::format("rank {}: limit: expected up to 2^62, got {}", rank, budget.limit));
    if (budget.limit < budget.activation) {
      refuse(fmt::format("rank {}: limit: expected at least one activation, {}, got {}", rank, budget.activation,
                         budget.limit));
    }
  }
  // The limit of check_total, checked before times are added up here.
  if (constexpr double kMost = 126 * 365.25 * 86400e9; all * problem.num_microbatches > kMost) {
    refuse("times: their sum is more than 126 years");
  }
}

// Builds one schedule op by op, each after the ops that it depends on, so that its times are final.
class Builder {
 public:
  Builder(const ZeroBubbleProblem& problem, const ZeroBubbleRules& rules)
      : problem_(problem), rules_(rules), ranks_(problem.ranks.size()) {
    for (Rank& rank : ranks_) {
      rank.order.reserve(3 * to_size(problem.num_microbatches));
      rank.forward_end.reserve(problem.num_microbatches);
      rank.gradient_end.reserve(problem.num_microbatches);
    }
  }

  std::vector<std::vector<Op>> build() {
    if (rules_.by_arrival) {
      run_by_arrival();
    } else {
      warm_up();
      for (int microbatch = 1; microbatch < problem_.num_microbatches; ++microbatch) round();
    }
    std::vector<std::vector<Op>> orders;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      finish_weights(rank);
      orders.push_back(std::move(ranks_[rank].order));
    }
    return orders;
  }

 private:
  struct Rank {
    int weights = 0;   // Ws placed
    Duration clock{};  // end of the last op
    Duration idle{};   // since the first op
    std::int64_t held = 0;
    std::vector<Duration> forward_end;   // by microbatch
    std::vector<Duration> gradient_end;  // of the I, by microbatch
    std::vector<Op> order;

    int forwards() const { return static_cast<int>(forward_end.size()); }
    int gradients() const { return static_cast<int>(gradient_end.size()); }
    bool weights_pending() const { return weights < gradients(); }
  };

  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  const RankBudget& budget(int rank) const { return problem_.ranks[rank]; }

  // When the input of the next F or I of `rank` arrives from its neighbor.
  Duration forward_ready(int rank) const {
    return rank == 0 ? Duration::zero() : ranks_[rank - 1].forward_end[ranks_[rank].forwards()] + problem_.hop;
  }
  Duration gradient_ready(int rank) const {
    return rank + 1 == num_ranks() ? Duration::zero()
                                   : ranks_[rank + 1].gradient_end[ranks_[rank].gradients()] + problem_.hop;
  }

  Duration run(int rank, OpKind kind, int microbatch, Duration ready, Duration time) {
    Rank& state = ranks_[rank];
    if (!state.order.empty() && ready > state.clock) {
      state.idle += ready - state.clock;
      most_idle_ = std::max(most_idle_, state.idle);
    }
    state.clock = std::max(state.clock, ready) + time;
    state.order.push_back({.microbatch = microbatch, .stage = static_cast<std::int16_t>(rank), .kind = kind});
    return state.clock;
  }
  void forward(int rank) {
    Rank& state = ranks_[rank];
    state.forward_end.push_back(run(rank, OpKind::F, state.forwards(), forward_ready(rank), budget(rank).forward));
    state.held += budget(rank).activation;
  }
  void input_gradient(int rank) {
    Rank& state = ranks_[rank];
    state.gradient_end.push_back(
        run(rank, OpKind::I, state.gradients(), gradient_ready(rank), budget(rank).input_gradient));
    state.held -= budget(rank).activation - budget(rank).kept;
  }
  void weight_gradient(int rank) {
    Rank& state = ranks_[rank];
    run(rank, OpKind::W, state.weights++, Duration::zero(), budget(rank).weight_gradient);
    state.held -= budget(rank).kept;
  }
  void finish_weights(int rank) {
    while (ranks_[rank].weights_pending()) weight_gradient(rank);
  }

  // Runs weight gradients until `ready`. One that would end later pays off where waiting would make this rank the one
  // with the most idle time.
  void fill_until(int rank, Duration ready) {
    Rank& state = ranks_[rank];
    while (state.weights_pending() && state.clock + budget(rank).weight_gradient <= ready) weight_gradient(rank);
    if (!state.weights_pending() || state.clock >= ready) return;
    if (rules_.fill_every_gap || state.idle + (ready - state.clock) > most_idle_) weight_gradient(rank);
  }

  // Number of forwards that each rank runs before the gradient of the first microbatch can arrive, within its limit.
  std::vector<int> forwards_before_gradient() const {
    std::vector<int> counts(ranks_.size(), 0);
    Duration gradient_end = ranks_.back().clock + problem_.ranks.back().input_gradient;
    for (int rank = num_ranks() - 2; rank >= 0; --rank) {
      const Duration ready = gradient_end + problem_.hop;
      Duration clock = ranks_[rank].clock;
      std::int64_t held = ranks_[rank].held;
      int& count = counts[rank];
      while (1 + count < problem_.num_microbatches && held + budget(rank).activation <= budget(rank).limit) {
        if (rules_.delay_first_gradient ? clock >= ready : clock + budget(rank).forward > ready) break;
        held += budget(rank).activation;
        clock += budget(rank).forward;
        ++count;
      }
      gradient_end = std::max(clock, ready) + budget(rank).input_gradient;
    }
    // The rounds assume that a rank is one forward ahead of the next unless none is left.
    for (std::size_t rank = 1; rank < counts.size(); ++rank) {
      const int before = counts[rank - 1];
      const int most = before + 1 == problem_.num_microbatches ? before : std::max(0, before - 1);
      counts[rank] = std::min(counts[rank], most);
    }
    return counts;
  }

  void warm_up() {
    for (int rank = 0; rank < num_ranks(); ++rank) forward(rank);
    const std::vector<int> counts = forwards_before_gradient();
    for (int rank = 0; rank < num_ranks(); ++rank) {
      for (int i = 0; i < counts[rank]; ++i) forward(rank);
    }
    for (int rank = num_ranks() - 1; rank >= 0; --rank) input_gradient(rank);
  }

  // Whether `rank`, which is two forwards ahead of the next rank, should rather wait for that rank's input gradient.
  bool better_held_back(int rank) const {
    const Rank& state = ranks_[rank];
    const Duration gradient_here =
        ranks_[rank + 1].clock + budget(rank + 1).forward + budget(rank + 1).input_gradient + problem_.hop;
    if (state.clock >= gradient_here) return true;
    Duration end = state.clock + budget(rank).forward;
    std::int64_t held = state.held + budget(rank).activation;
    for (int weights = state.weights; held > budget(rank).limit && weights < state.gradients(); ++weights) {
      end += budget(rank).weight_gradient;
      held -= budget(rank).kept;
    }
    return end > gradient_here && state.idle + (gradient_here - state.clock) <= most_idle_;
  }

  // Which ranks run a forward in this round. A rank does so only if the next one does, or it would only run ahead.
  std::vector<bool> forwards_of_round() const {
    std::vector<bool> runs(ranks_.size());
    for (int rank = num_ranks() - 1; rank >= 0; --rank) {
      bool wants = ranks_[rank].forwards() < problem_.num_microbatches;
      if (rank + 1 < num_ranks() && wants) {
        const int ahead = ranks_[rank].forwards() - ranks_[rank + 1].forwards();
        wants = runs[rank + 1] && !(rules_.hold_back_forwards && ahead >= 2 && better_held_back(rank));
      }
      runs[rank] = wants;
    }
    return runs;
  }

  // Adds one forward on the ranks of `forwards_of_round` and one input gradient on all ranks.
  void round() {
    const std::vector<bool> runs = forwards_of_round();
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (!runs[rank]) continue;
      Rank& state = ranks_[rank];
      // Once all Ws are done there is room: one microbatch fewer is between F and I than after the warm-up.
      while (state.held + budget(rank).activation > budget(rank).limit && state.weights_pending())
        weight_gradient(rank);
      fill_until(rank, forward_ready(rank));
      forward(rank);
    }
    for (int rank = num_ranks() - 1; rank >= 0; --rank) {
      fill_until(rank, gradient_ready(rank));
      // No rank waits for the gradients of the first rank.
      if (rank == 0 && ranks_[0].forwards() == problem_.num_microbatches) finish_weights(rank);
      input_gradient(rank);
    }
  }

  // The op that a rank would run next and its start; not known while the inputs of its F and I are not.
  struct Choice {
    OpKind kind = OpKind::F;
    Duration start = Duration::max();

    bool known() const { return start != Duration::max(); }
  };

  // The op whose input arrives first; ties go to the input gradient, then the forward, then the weight gradient. Weight
  // gradients fill the time in which neither has arrived.
  Choice next_by_arrival(int rank) const {
    const Rank& state = ranks_[rank];
    const bool last = rank + 1 == num_ranks();
    Choice gradient{.kind = OpKind::I};
    if (state.gradients() < state.forwards() && (last || ranks_[rank + 1].gradients() > state.gradients())) {
      gradient.start = std::max(state.clock, gradient_ready(rank));
    }
    Choice forward{.kind = OpKind::F};
    if (state.forwards() < problem_.num_microbatches && (rank == 0 || ranks_[rank - 1].forwards() > state.forwards()) &&
        state.held + budget(rank).activation <= budget(rank).limit) {
      forward.start = std::max(state.clock, forward_ready(rank));
    }
    const bool hold_back = rules_.hold_back_forwards && forward.known() && gradient.known() &&
                           gradient.start < forward.start + budget(rank).forward;
    const Choice first = forward.start < gradient.start && !hold_back ? forward : gradient;
    if (!state.weights_pending() || first.start == state.clock) return first;
    const bool worth_it = rules_.fill_every_gap || !first.known() ||
                          state.clock + budget(rank).weight_gradient <= first.start ||
                          state.idle + (first.start - state.clock) > most_idle_;
    return worth_it ? Choice{.kind = OpKind::W, .start = state.clock} : first;
  }

  // Places the ops of all ranks in the order of their starts, so that all earlier arrivals are known.
  void run_by_arrival() {
    std::vector<Choice> next(ranks_.size());
    for (int rank = 0; rank < num_ranks(); ++rank) next[rank] = next_by_arrival(rank);
    while (true) {
      const auto first =
          std::min_element(next.begin(), next.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
      if (!first->known()) return;
      const int rank = static_cast<int>(first - next.begin());
      switch (first->kind) {
        case OpKind::F: forward(rank); break;
        case OpKind::I: input_gradient(rank); break;
        default: weight_gradient(rank); break;
      }
      for (int near = std::max(0, rank - 1); near <= std::min(rank + 1, num_ranks() - 1); ++near) {
        next[near] = next_by_arrival(near);
      }
    }
  }

  const ZeroBubbleProblem& problem_;
  ZeroBubbleRules rules_;
  std::vector<Rank> ranks_;
  Duration most_idle_{};
};

Schedule of_orders(const ZeroBubbleProblem& problem, std::vector<std::vector<Op>> orders) {
  ScheduleParts parts;
  parts.family = "custom";
  parts.num_ranks = static_cast<int>(problem.ranks.size());
  parts.num_stages = parts.num_ranks;
  parts.num_microbatches = problem.num_microbatches;
  parts.routes.resize(1);
  for (int rank = 0; rank < parts.num_ranks; ++rank) parts.routes[0].push_back(rank);
  parts.shapes = {problem.shape};
  parts.orders = std::move(orders);
  return Schedule(std::move(parts));
}

// Simulates `schedule` with the problem's times.
Metrics measured(const ZeroBubbleProblem& problem, const Schedule& schedule) {
  const OpGraph graph = lower(schedule);
  return measure(graph, simulate(graph, price(graph, ZeroBubbleCost(problem))));
}

bool fits(const ZeroBubbleProblem& problem, const Schedule& schedule) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const RankBudget& budget = problem.ranks[rank];
    if (peak_held(schedule, rank, budget) > budget.limit) return false;
  }
  return true;
}

// Sets lower bounds of the makespan and of the span, which is at least that of rank 0, as it starts first. The forwards
// and input gradients of a rank run after the first forward has reached it, and before the last input gradient returns
// to rank 0 and a weight gradient runs there.
void set_bounds(const ZeroBubbleProblem& problem, ZeroBubblePlan& plan) {
  Duration forward_path{};
  Duration backward_path{};
  for (const RankBudget& budget : problem.ranks) {
    const Duration gradients = budget.forward + budget.input_gradient;
    const Duration work = (gradients + budget.weight_gradient) * problem.num_microbatches;
    const Duration round_trip = forward_path + gradients * problem.num_microbatches + backward_path;
    plan.least_span = std::max({plan.least_span, work, round_trip + problem.ranks[0].weight_gradient});
    plan.least_makespan = std::max({plan.least_makespan, plan.least_span, forward_path + work});
    forward_path += budget.forward + problem.hop;
    backward_path += budget.input_gradient + problem.hop;
  }
}

}  // namespace

Schedule zero_bubble_schedule(const ZeroBubbleProblem& problem, const ZeroBubbleRules& rules) {
  check(problem);
  return of_orders(problem, Builder(problem, rules).build());
}

ZeroBubblePlan plan_zero_bubble(const ZeroBubbleProblem& problem, ZeroBubbleGoal goal) {
  check(problem);
  std::optional<ZeroBubblePlan> best;
  const auto consider = [&](Schedule schedule, std::string rule) {
    const Metrics metrics = measured(problem, schedule);
    const auto key = [goal](Duration span, Duration makespan) {
      return goal == ZeroBubbleGoal::span ? std::pair(span, makespan) : std::pair(makespan, span);
    };
    if (best && key(metrics.span, metrics.makespan) >= key(best->span, best->makespan)) return;
    best.emplace(ZeroBubblePlan{
        .schedule = std::move(schedule), .rule = std::move(rule), .span = metrics.span, .makespan = metrics.makespan});
  };
  for (int choice = 0; choice < 16; ++choice) {
    const ZeroBubbleRules rules{.delay_first_gradient = (choice & 1) != 0,
                                .hold_back_forwards = (choice & 2) != 0,
                                .fill_every_gap = (choice & 4) != 0,
                                .by_arrival = (choice & 8) != 0};
    if (rules.by_arrival && rules.delay_first_gradient) continue;  // the same as without the delay
    consider(of_orders(problem, Builder(problem, rules).build()), "search");
  }
  for (const char* family : {"zb-h1", "zb-h2"}) {
    Schedule schedule = make_schedule(find_family(family), {.ranks = static_cast<int>(problem.ranks.size()),
                                                            .microbatches = problem.num_microbatches,
                                                            .shape = problem.shape});
    if (fits(problem, schedule)) consider(std::move(schedule), family);
  }
  set_bounds(problem, *best);
  return std::move(*best);
}

std::int64_t peak_held(const Schedule& schedule, int rank, const RankBudget& budget) {
  std::int64_t held = 0;
  std::int64_t peak = 0;
  for (const Op& op : schedule.ops(rank)) {
    switch (op.kind) {
      case OpKind::F: held += budget.activation; break;
      case OpKind::I: held -= budget.activation - budget.kept; break;
      case OpKind::W: held -= budget.kept; break;
      case OpKind::B: held -= budget.activation; break;
    }
    peak = std::max(peak, held);
  }
  return peak;
}

double ZeroBubbleCost::compute_s(OpKind kind, int stage, const MicrobatchShape& /*shape*/, int /*slice*/) const {
  const RankBudget& budget = problem_.ranks[stage];
  switch (kind) {
    case OpKind::F: return to_seconds(budget.forward);
    case OpKind::I: return to_seconds(budget.input_gradient);
    case OpKind::W: return to_seconds(budget.weight_gradient);
    case OpKind::B: return to_seconds(budget.input_gradient + budget.weight_gradient);
  }
  return 0;
}

TransferTime ZeroBubbleCost::transfer(int /*from*/, int /*to*/, std::int64_t /*bytes*/) const {
  return {.occupied_s = 0, .latency_s = to_seconds(problem_.hop)};
}

}  // namespace sluice::bench::accuracy
