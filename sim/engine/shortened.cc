#include "sim/engine/shortened.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/scenario/automatic.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/engine/period.h"
#include "sim/engine/phases.h"
#include "sim/engine/predict.h"
#include "sim/engine/steady_state.h"

namespace sluice::sim {
namespace {

// Runs of at most this fraction of the microbatches are tried, so that failing costs little.
constexpr int kLeastShortening = 10;

// The short schedule, lowered and simulated.
struct ShortRun {
  ShortRun(const Scenario& scenario, const ShortSchedule& brief)
      : setup(std::make_unique<Setup>(scenario, brief.schedule, scenario.microbatches)),
        steady(setup->graph(), brief),
        prices(price(setup->graph(), setup->cost())),
        timeline(simulate(setup->graph(), prices)) {}

  std::unique_ptr<Setup> setup;
  SteadyState steady;
  Prices prices;
  Timeline timeline;
};

// A short schedule whose result determines that of the whole one, its run, and what repeats in it.
struct Proven {
  ShortSchedule brief;
  ShortRun run;
  SteadyState::Extension extension;
  SteadyState::PathPart part;
};

bool may_repeat(const Scenario& scenario, const Family& family) {
  const bool disturbed = scenario.perturbation.slows() || scenario.perturbation.trials > 0;
  return !disturbed && !scenario.kernel_times && !scenario.communicators && !scenario.documents &&
         !scenario.training.forward_only() && scenario.training.activation_offload == 0 && !family.asynchronous &&
         scenario.training.pp > 0;
}

// Proves the extension of a short schedule and its critical path, of which a part may repeat less often than times do.
std::optional<Proven> proven(ShortSchedule brief, ShortRun run) {
  auto extension = run.steady.extension(run.prices, run.timeline);
  if (!extension || !run.steady.lanes_continue() || !run.steady.memory_repeats(run.timeline, *extension)) {
    return std::nullopt;
  }
  const CriticalPath path = critical_path(run.setup->graph(), run.timeline);
  const auto part = run.steady.repeating_part(path.vertices, run.timeline, *extension);
  if (!part) return std::nullopt;
  return Proven{std::move(brief), std::move(run), std::move(*extension), *part};
}

// The first short schedule with a proof, from which a multiple of the repeating part of the path was removed.
std::optional<Proven> first_proven(const Scenario& scenario, const Family& family, const FamilyParams& params) {
  int multiple = 1;
  // Two routes warm up and drain at both ends, and their path goes through all ranks and back.
  const int least = (family.replicas > 1 ? 3 : 1) * kept_microbatches(params);
  for (int kept = least; kept <= params.microbatches / kLeastShortening;) {
    auto brief = shorten(family, params, kept, multiple);
    if (!brief || brief->schedule.num_microbatches() > params.microbatches / kLeastShortening) return std::nullopt;
    const int simulated = brief->schedule.num_microbatches();
    const int removed = brief->removed;
    ShortRun run(scenario, *brief);
    if (!run.prices.sharing.empty()) return std::nullopt;
    auto found = proven(std::move(*brief), std::move(run));
    if (found && removed % found->part.blocks == 0) return found;
    const bool again = found && multiple != found->part.blocks;
    kept = again ? simulated : simulated + simulated / 2;
    if (found) multiple = static_cast<int>(found->part.blocks);
  }
  return std::nullopt;
}

// Values of the whole schedule from those of the first run and of the second, which has one part more.
class Extrapolation {
 public:
  Extrapolation(const Prediction& one, const Prediction& two, Duration part, int times)
      : one_(one), two_(two), part_(part), times_(times) {}

  Duration operator()(Duration of_one, Duration of_two) const { return of_one + times_ * (of_two - of_one); }

  // Sets the metrics, memory, idle times and the parts of the critical path of `out`; returns false if they contradict
  // the proof.
  bool apply(Prediction& out) const {
    return metrics(out.metrics) && memory(out.memory) && idle(out.idle) && path(out.critical_path);
  }

  std::vector<RootedIdle> roots(std::span<const RootedIdle> one, std::span<const RootedIdle> two) const {
    std::map<IdleRoot, Duration> sums;
    for (const RootedIdle& each : one) sums[each.root] += (1 - times_) * each.idle;
    for (const RootedIdle& each : two) sums[each.root] += times_ * each.idle;
    return by_length(sums);
  }

 private:
  // Whether the second time is that of the first, or one part later.
  bool follows(Duration one, Duration two) const { return two == one || two == one + part_; }

  bool metrics(Metrics& out) const {
    if (two_.metrics.makespan != one_.metrics.makespan + part_) return false;
    out.makespan = (*this)(one_.metrics.makespan, two_.metrics.makespan);
    for (std::size_t rank = 0; rank < out.ranks.size(); ++rank) {
      const RankMetrics& one = one_.metrics.ranks[rank];
      const RankMetrics& two = two_.metrics.ranks[rank];
      if (one.first_start != two.first_start || !follows(one.last_end, two.last_end) ||
          one.peak_in_flight != two.peak_in_flight) {
        return false;
      }
      out.ranks[rank].busy = (*this)(one.busy, two.busy);
      out.ranks[rank].last_end = (*this)(one.last_end, two.last_end);
    }
    out.ideal = out.span = Duration{0};
    complete(out);
    return true;
  }

  bool memory(std::vector<RankMemory>& out) const {
    for (std::size_t rank = 0; rank < out.size(); ++rank) {
      const RankMemory& one = one_.memory[rank];
      const RankMemory& two = two_.memory[rank];
      if (one.at_peak != two.at_peak || !follows(one.peak_time, two.peak_time)) return false;
      out[rank].peak_time = (*this)(one.peak_time, two.peak_time);
    }
    return true;
  }

  bool idle(std::vector<IdleByCause>& out) const {
    for (std::size_t rank = 0; rank < out.size(); ++rank) {
      for (std::size_t i = 0; i < out[rank].size(); ++i) {
        out[rank][i] = (*this)(one_.idle[rank][i], two_.idle[rank][i]);
      }
    }
    return true;
  }

  bool path(CriticalPath& out) const {
    Duration sum{0};
    for (Duration CriticalPath::*const part : {&CriticalPath::compute, &CriticalPath::transfer, &CriticalPath::latency,
                                               &CriticalPath::collective, &CriticalPath::optimizer}) {
      out.*part = (*this)(one_.critical_path.*part, two_.critical_path.*part);
      sum += out.*part;
    }
    return sum == (*this)(one_.metrics.makespan, two_.metrics.makespan);
  }

  const Prediction& one_;
  const Prediction& two_;
  Duration part_;
  int times_;
};

// Whether `times` the sum of all times is far from the range of Duration; otherwise pricing the whole schedule may
// fail.
bool in_range(const Prices& prices, double times) {
  constexpr double kLongest = 3e18;  // ns
  double sum = 0;
  for (const Duration each : prices.duration) sum += static_cast<double>(each.count());
  for (const Duration each : prices.lane_latency) sum += static_cast<double>(each.count());
  return sum * times < kLongest;
}

std::optional<ShortenedPrediction> extrapolated(const Scenario& scenario, const Family& family, Proven first) {
  const auto blocks = static_cast<int>(first.part.blocks);
  const auto longer = with_blocks(family, first.brief, blocks);
  if (!longer) return std::nullopt;
  ShortRun& run = first.run;
  ShortRun second(scenario, *longer);
  const Prediction one = measured(*run.setup, std::move(run.prices), std::move(run.timeline));
  const Prediction two = measured(*second.setup, std::move(second.prices), std::move(second.timeline));
  const OpGraph& graph = run.setup->graph();
  const OpGraph& longer_graph = second.setup->graph();
  RepeatedPart repetition{.simulated = first.brief.schedule.num_microbatches(),
                          .microbatches = blocks * first.brief.unit,
                          .times = first.brief.removed / blocks};
  repetition.time = first.extension.time / repetition.times;
  repetition.path = {{.begin = 0, .end = first.part.end},
                     {.begin = first.part.begin,
                      .end = first.part.end,
                      .times = repetition.times,
                      .later = repetition.time,
                      .more = repetition.time,
                      .microbatches = repetition.microbatches,
                      .more_microbatches = repetition.microbatches},
                     {.begin = first.part.end,
                      .end = one.critical_path.vertices.size(),
                      .later = repetition.time * repetition.times,
                      .microbatches = repetition.microbatches * repetition.times}};
  const Extrapolation whole(one, two, repetition.time, repetition.times);
  const std::size_t part = first.part.end - first.part.begin;
  if (two.critical_path.vertices.size() != one.critical_path.vertices.size() + part ||
      !second.steady.roots_repeat(roots_of_starts(longer_graph, two.timeline), blocks) ||
      !in_range(two.prices, repetition.times + 1.0)) {
    return std::nullopt;
  }
  LaneTimes short_free(graph.lanes().size(), Duration{0});
  Duration left_out{0};  // of all repetitions
  Timeline times;
  const auto repeat = [&](LaneTimes& lane_free) {
    sweep<false>(graph, one.prices, short_free, &times.start, times.end);
    const auto more = run.steady.extension(one.prices, times);
    if (!more) return false;
    left_out += more->time;
    std::transform(short_free.begin(), short_free.end(), lane_free.begin(),
                   [&](Duration free) { return free + left_out; });
    return true;
  };
  const std::int64_t size = graph.size() + std::int64_t{longer_graph.size() - graph.size()} * repetition.times;
  const auto period = repeated_period(graph, size, repeat);
  ShortenedPrediction out{.setup = nullptr, .prediction = one};
  if (!period || !whole.apply(out.prediction)) return std::nullopt;
  out.prediction.period = *period;
  repetition.idle_roots = whole.roots(idle_by_root(graph, one.timeline), idle_by_root(longer_graph, two.timeline));
  out.prediction.repetition = std::move(repetition);
  complete(*run.setup, out.prediction);
  out.setup = std::move(run.setup);
  return out;
}

constexpr int kFewestOfPhases = 8;  // microbatches

// The prediction of a schedule of phases, in each of which ranks repeat a block of their own.
std::optional<ShortenedPrediction> of_phases(const Scenario& scenario, const Family& family,
                                             const FamilyParams& params) {
  for (int kept = kFewestOfPhases; kept <= params.microbatches / kLeastShortening; kept *= 2) {
    const auto brief = shorten_phases(family, params, kept);
    if (!brief) break;
    auto setup = std::make_unique<Setup>(scenario, brief->schedule, scenario.microbatches);
    const OpGraph& graph = setup->graph();
    const Prices prices = price(graph, setup->cost());
    if (!prices.sharing.empty() || !in_range(prices, 2.0 * params.microbatches / kept)) break;
    const PhasedRun run(graph, *brief);
    Timeline timeline;
    LaneTimes free(graph.lanes().size(), Duration{0});
    if (!run.simulate(prices, true, free, timeline)) continue;
    auto prediction = run.measured(prices, timeline);
    if (!prediction) continue;
    const auto repeat = [&](LaneTimes& lane_free) { return run.simulate(prices, false, lane_free, timeline); };
    const auto period = repeated_period(graph, run.whole_size(), repeat);
    if (!period) continue;
    prediction->period = *period;
    complete(*setup, *prediction);
    return ShortenedPrediction{.setup = std::move(setup), .prediction = std::move(*prediction)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<ShortenedPrediction> predict_shortened(const Scenario& scenario) try {
  if (scenario.schedule == kAutomatic || names_file(scenario.schedule) || scenario.encoder.apart()) {
    return std::nullopt;
  }
  const Family& family = find_family(scenario.schedule);
  if (!may_repeat(scenario, family)) return std::nullopt;
  const FamilyParams params = family_params(scenario);
  if (num_ops(family, params) > static_cast<double>(kMaxOps)) return std::nullopt;
  if (shorten_phases(family, params, kFewestOfPhases)) return of_phases(scenario, family, params);
  auto first = first_proven(scenario, family, params);
  return first ? extrapolated(scenario, family, std::move(*first)) : std::nullopt;
} catch (const InputError&) {
  return std::nullopt;  // `predict` names the error in the whole schedule
} catch (const ScheduleError&) {
  return std::nullopt;
}

}  // namespace sluice::sim
