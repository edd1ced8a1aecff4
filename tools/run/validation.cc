#include "tools/run/validation.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "exec/measure/measured_timeline.h"
#include "model/cost/fitted.h"
#include "model/cost/price.h"
#include "model/cost/woven_blocks.h"
#include "model/timeline/memory.h"
#include "model/units.h"
#include "sim/engine/engine.h"

namespace sluice::tools {
namespace {

constexpr Duration kShortest = std::chrono::microseconds(1);

double in_seconds(Duration duration) { return static_cast<double>(duration.count()) / 1e9; }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Duration duration_of(const Timeline& timeline, VertexId v) { return timeline.end[v] - timeline.start[v]; }

// Returns the number of parameters of each stage and the maximum per rank, for optimizer steps and norms.
ParameterCounts parameters_of(const RunPlan& plan) {
  ParameterCounts counts;
  const Schedule& schedule = plan.schedule();
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const StageMemory memory = plan.stage(0, stage).memory();
    counts.of_stage.push_back(memory.weights / plan.element_bytes());
    counts.experts_of_stage.push_back((memory.gradients - memory.dense_gradients) / plan.gradient_element_bytes());
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    std::int64_t on_rank = 0;
    for (const int stage : schedule.stages_of(rank)) on_rank += counts.of_stage[stage];
    counts.most_on_a_rank = std::max(counts.most_on_a_rank, on_rank);
  }
  return counts;
}

FittedCost fitted_cost(const RunPlan& plan, const CostTable& table) {
  const RunSpec& spec = plan.spec();
  check_model_shape(table.shape, table.source, spec.model);
  Training training;
  training.tp = plan.layout().tensor;
  training.dp = plan.layout().data;
  training.pp = plan.layout().pipeline;
  training.ep = plan.layout().expert;
  training.recompute = spec.recompute ? Training::Recompute::full : Training::Recompute::none;
  if (spec.weave.order.empty()) {
    training.joint_overlap = Training::JointOverlap::none;
  } else {
    training.weave = spec.weave.name;
  }
  return FittedCost(table, training, plan.contents(), nullptr, parameters_of(plan));
}

std::vector<PartValidation> validate_parts(const RunPlan& plan, WovenBlocks& blocks,
                                           const std::vector<std::vector<WorkerClock>>& runs) {
  std::vector<PartValidation> out;
  if (!plan.has_experts()) return out;
  for (const LayerPart part : {LayerPart::dispatch, LayerPart::combine}) {
    PartValidation& of = out.emplace_back();
    of.part = part;
    for (VertexId v = 0; v < plan.graph().size(); ++v) {
      for (const WovenPart& predicted : blocks.of(v).parts) {
        if (predicted.part.part == part) of.seconds.first += predicted.end_s - predicted.start_s;
      }
    }
    std::vector<double> sums;
    for (const std::vector<WorkerClock>& clocks : runs) {
      double& sum = sums.emplace_back(0);
      for (const WorkerClock& clock : clocks) {
        for (const VertexPart& measured : clock.parts) {
          if (measured.time.part == part) sum += in_seconds(Duration(measured.time.end_ns - measured.time.start_ns));
        }
      }
    }
    of.seconds.second = median(sums);
  }
  return out;
}

void validate_exchanges(const RunPlan& plan, WovenBlocks& blocks, const std::vector<std::vector<WorkerClock>>& runs,
                        std::vector<RankValidation>& ranks) {
  if (plan.layout().expert == 1) return;
  const auto fraction = [](double part, double of) { return of > 0 ? part / of : 0; };
  const auto predicted = blocks.by_rank();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ExchangeValidation& of = ranks[rank].exchange.emplace();
    of.seconds.first = predicted[rank].seconds;
    of.hidden.first = fraction(predicted[rank].seconds - predicted[rank].exposed_s, predicted[rank].seconds);
  }
  std::vector<std::vector<double>> seconds(ranks.size());
  std::vector<std::vector<double>> hidden(ranks.size());
  for (const std::vector<WorkerClock>& clocks : runs) {
    const std::vector<ExchangeOverlap> overlaps = exchange_overlap(plan, clocks);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      seconds[rank].push_back(overlaps[rank].seconds);
      hidden[rank].push_back(fraction(overlaps[rank].hidden_s, overlaps[rank].seconds));
    }
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].exchange->seconds.second = median(seconds[rank]);
    ranks[rank].exchange->hidden.second = median(hidden[rank]);
  }
}

std::vector<KindValidation> validate_kinds(const OpGraph& graph, const Timeline& predicted,
                                           const std::vector<Timeline>& measured) {
  std::array<KindValidation, kNumRowKinds> kinds;
  std::array<std::vector<double>, kNumRowKinds> sums;
  std::array<std::pair<double, int>, kNumRowKinds> errors{};
  for (auto& sum : sums) sum.resize(measured.size());
  std::vector<double> durations(measured.size());
  for (VertexId v = 0; v < graph.size(); ++v) {
    const auto at = static_cast<std::size_t>(kind_of(graph[v]));
    const double expected = in_seconds(duration_of(predicted, v));
    kinds[at].kind = static_cast<RowKind>(at);
    ++kinds[at].count;
    kinds[at].predicted_s += expected;
    for (std::size_t run = 0; run < measured.size(); ++run) {
      durations[run] = in_seconds(duration_of(measured[run], v));
      sums[at][run] += durations[run];
    }
    if (duration_of(predicted, v) <= kShortest) continue;
    errors[at].first += std::abs(median(durations) / expected - 1);
    ++errors[at].second;
  }
  std::vector<KindValidation> out;
  for (std::size_t at = 0; at < kinds.size(); ++at) {
    if (kinds[at].count == 0) continue;
    kinds[at].measured_s = median(sums[at]);
    if (errors[at].second > 0) kinds[at].op_error = errors[at].first / errors[at].second;
    out.push_back(kinds[at]);
  }
  return out;
}

std::vector<RankValidation> validate_ranks(const RunPlan& plan, const Timeline& predicted, const Metrics& expected,
                                           const std::vector<Metrics>& measured, const PlanTrials& trials) {
  const std::vector<RankMemory> memory = memory_over_time(plan.graph(), predicted, false);
  const auto bubble = [](const Metrics& metrics, std::size_t rank) {
    return 1 - in_seconds(metrics.ranks[rank].busy) / in_seconds(metrics.makespan);
  };
  std::vector<RankValidation> out;
  for (std::size_t rank = 0; rank < expected.ranks.size(); ++rank) {
    RankValidation of;
    std::vector<double> busy, bubbles;
    for (const Metrics& run : measured) {
      busy.push_back(in_seconds(run.ranks[rank].busy));
      bubbles.push_back(bubble(run, rank));
    }
    of.busy_s = {in_seconds(expected.ranks[rank].busy), median(busy)};
    of.bubble_fraction = {bubble(expected, rank), median(bubbles)};
    of.predicted_peak_bytes = memory[rank].peak_bytes;
    of.held_bytes = trials.held_bytes[rank];
    of.arena_bytes = trials.arena_bytes[rank];
    out.push_back(of);
  }
  return out;
}

}  // namespace

double Validation::median_s() const { return median(measured_s); }

double Validation::memory_difference() const {
  double most = 0;
  for (const RankValidation& rank : ranks) {
    const double difference = static_cast<double>(rank.held_bytes) / static_cast<double>(rank.predicted_peak_bytes) - 1;
    if (std::abs(difference) > std::abs(most)) most = difference;
  }
  return most;
}

Timeline predicted_timeline(const RunPlan& plan, const CostTable& table) {
  return simulate(plan.graph(), price(plan.graph(), fitted_cost(plan, table)));
}

Validation validate(const RunPlan& plan, const CostTable& table, const PlanTrials& trials, int fewest) {
  Validation out{.schedule = plan.schedule().family(), .predicted = predicted_timeline(plan, table)};
  out.disturbed_runs = static_cast<int>(trials.disturbed.size());
  out.longest_wait_s = static_cast<double>(trials.longest_wait_ns) / 1e9;
  out.switches = trials.switches;
  out.calm = std::ssize(trials.clocks) >= fewest;
  std::vector<std::vector<WorkerClock>> runs = trials.clocks;
  if (!out.calm) runs.insert(runs.end(), trials.disturbed.begin(), trials.disturbed.end());
  const Metrics expected = measure(plan.graph(), out.predicted);
  std::vector<Timeline> timelines;
  std::vector<Metrics> metrics;
  std::vector<double> bubbles;
  for (const std::vector<WorkerClock>& clocks : runs) {
    timelines.push_back(measured_timeline(plan.graph(), clocks));
    metrics.push_back(measure(plan.graph(), timelines.back()));
    out.measured_s.push_back(in_seconds(metrics.back().makespan));
    bubbles.push_back(metrics.back().bubble_fraction);
  }
  out.predicted_s = in_seconds(expected.makespan);
  out.bubble_fraction = {expected.bubble_fraction, median(bubbles)};
  out.kinds = validate_kinds(plan.graph(), out.predicted, timelines);
  out.ranks = validate_ranks(plan, out.predicted, expected, metrics, trials);
  const FittedCost cost = fitted_cost(plan, table);
  WovenBlocks blocks(plan.graph(), cost);
  out.parts = validate_parts(plan, blocks, runs);
  validate_exchanges(plan, blocks, runs, out.ranks);
  const double middle = out.median_s();
  const auto nearest = std::min_element(out.measured_s.begin(), out.measured_s.end(), [&](double a, double b) {
    return std::abs(a - middle) < std::abs(b - middle);
  });
  out.nearest = std::move(timelines[nearest - out.measured_s.begin()]);
  return out;
}

}  // namespace sluice::tools
