#include "sim/engine/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "model/batches/batch.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule.h"
#include "model/to_size.h"
#include "model/workload/transformer.h"
#include "sim/engine/engine.h"
#include "sim/engine/period.h"

namespace sluice::sim {
namespace {

std::optional<Schedule> of_family(const Schedule& schedule, int batches) {
  for (const Family& family : all_families()) {
    if (!family.asynchronous || family.name != schedule.family() || schedule.has_communication()) continue;
    FamilyParams params{.ranks = schedule.num_ranks(),
                        .chunks = schedule.num_chunks(),
                        .microbatches = schedule.num_microbatches(),
                        .batches = schedule.num_batches(),
                        .shape = schedule.shape(0)};
    const ScheduleParts built = make_parts(family, params);
    const ScheduleParts& parts = schedule.parts();
    if (built.orders != parts.orders || built.routes != parts.routes || !parts.shape_of.empty()) return std::nullopt;
    params.batches = batches;
    return make_schedule(family, params);
  }
  return std::nullopt;
}

// Repeats `times` times, for each `unit` microbatches later, the ops of a list from `begin` to `end`.
class Repetition {
 public:
  Repetition(std::int64_t begin, std::int64_t end, int unit, int times)
      : begin_(begin), end_(end), unit_(unit), times_(times) {}

  // Applies it to a list of ops or communication. `position` of an entry is that of the op it is or stands before.
  template <typename Entry, typename Position>
  std::vector<Entry> of(const std::vector<Entry>& list, Position position) const {
    std::vector<Entry> out;
    const auto append = [&](std::int64_t from, std::int64_t to, int later) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (position(i) < from || position(i) >= to) continue;
        Entry entry = list[i];
        entry.microbatch += later * unit_;
        if constexpr (requires { entry.before; }) entry.before += static_cast<std::uint32_t>(later * (end_ - begin_));
        out.push_back(entry);
      }
    };
    append(0, begin_, 0);
    for (int i = 0; i <= times_; ++i) append(begin_, end_, i);
    append(end_, std::numeric_limits<std::int64_t>::max(), times_);
    return out;
  }

 private:
  std::int64_t begin_;
  std::int64_t end_;
  int unit_;
  int times_;
};

// Position in the middle of a list at which `block` ops are followed by the same for microbatches `unit` later.
std::optional<std::int64_t> repeating(const std::vector<Op>& list, std::int64_t block, int unit) {
  std::int64_t begin = (std::ssize(list) - 2 * block) / 2;
  if (begin > 0 && list[begin - 1].joined) --begin;
  for (std::int64_t i = begin; i < begin + block; ++i) {
    Op later = list[i];
    later.microbatch += unit;
    if (later != list[i + block]) return std::nullopt;
  }
  return begin;
}

// The entries by microbatch for `total` of them, if they repeat every `unit`.
template <typename T>
bool repeat(std::vector<T>& by_microbatch, int unit, int total) {
  if (by_microbatch.empty()) return true;
  for (std::size_t i = to_size(unit); i < by_microbatch.size(); ++i) {
    if (by_microbatch[i] != by_microbatch[i - to_size(unit)]) return false;
  }
  while (std::ssize(by_microbatch) < total)
    by_microbatch.push_back(by_microbatch[by_microbatch.size() - to_size(unit)]);
  return true;
}

std::optional<Schedule> repeated(const Schedule& schedule, int batches, int unit) try {
  ScheduleParts parts = schedule.parts();
  const int total = schedule.total_microbatches();
  const int step = unit / std::gcd(unit, schedule.num_microbatches());  // batches
  const int more = (batches - schedule.num_batches() + step - 1) / step * step;
  parts.num_batches += more;
  if (!repeat(parts.route_of, unit, total + more * schedule.num_microbatches()) ||
      !repeat(parts.shape_of, unit, total + more * schedule.num_microbatches())) {
    return std::nullopt;
  }
  for (std::size_t rank = 0; rank < parts.orders.size(); ++rank) {
    std::vector<Op>& list = parts.orders[rank];
    const std::int64_t block = std::ssize(list) * unit / total;
    if (std::ssize(list) * unit % total != 0) return std::nullopt;
    const auto begin = repeating(list, block, unit);
    if (!begin) return std::nullopt;
    const Repetition repetition(*begin, *begin + block, unit, more * schedule.num_microbatches() / unit);
    list = repetition.of(list, [](std::size_t i) { return static_cast<std::int64_t>(i); });
    if (parts.communication.empty()) continue;
    auto& moved = parts.communication[rank];
    moved = repetition.of(moved, [&](std::size_t i) { return std::int64_t{moved[i].before}; });
  }
  parts.cells.clear();
  parts.communication_cells.clear();
  return Schedule(std::move(parts));
} catch (const ScheduleError&) {
  return std::nullopt;  // the lists repeat in their middle only
}

// Returns a schedule without a flush for at least `batches` batches: that of its family where the family builds
// `schedule`, otherwise its lists with the ops in their middle repeated for later microbatches. Returns nothing if some
// list does not repeat there, or for more ops than are simulated in a second or two.
std::optional<Schedule> lengthened(const Schedule& schedule, int batches) {
  constexpr double kMostOps = 5e6;
  if (static_cast<double>(batches) / schedule.num_batches() * static_cast<double>(schedule.num_ops()) > kMostOps) {
    return std::nullopt;
  }
  if (auto out = of_family(schedule, batches)) return out;
  for (int unit = 1; unit <= schedule.total_microbatches() / 2; ++unit) {
    if (auto out = repeated(schedule, batches, unit)) return out;
  }
  return std::nullopt;
}

Duration period_of(const Setup& setup, const Prediction& prediction) {
  const Schedule& schedule = setup.schedule();
  if (schedule.weight_policy() == WeightPolicy::flush) return repeated_period(setup.graph(), prediction.prices);
  BatchGrowth growth = batch_growth(setup.graph(), prediction.timeline);
  // Too few batches to see past the warm-up and drain phases: simulate more of them.
  Scenario scenario = setup.scenario();
  int batches =
      std::max(schedule.num_batches() + 1, batches_for_growth(schedule.num_ranks(), schedule.num_microbatches()));
  for (int round = 0; round < 5 && !growth.constant; ++round, batches *= 2) {
    std::optional<Schedule> longer = lengthened(schedule, batches);
    if (!longer) break;
    scenario.batches = longer->num_batches();
    const Setup more(scenario, std::move(*longer));
    Prices prices = price(more.graph(), more.cost());
    slow_down(more.graph(), setup.scenario().perturbation, prices);
    growth = batch_growth(more.graph(), simulate(more.graph(), prices));
  }
  return growth.period;
}

double sequences_of(const Setup& setup) {
  const Schedule& schedule = setup.schedule();
  double sequences = 0;  // per batch and replica
  const int microbatches = setup.scenario().microbatches;
  if (schedule.shapes().size() == 1) {
    sequences = static_cast<double>(microbatches) * schedule.shape(0).sequences;
  } else {
    // Forwards alone beside training are not trained.
    for (int mb = 0; mb < microbatches; ++mb) {
      const MicrobatchShape& shape = schedule.shape(mb);
      if (!shape.forward_only || schedule.forward_only()) sequences += shape.sequences;
    }
  }
  return sequences * setup.scenario().training.dp;
}

// Model FLOPs of one sequence.
double sequence_flops(const Scenario& scenario, std::int64_t tokens, bool recompute) {
  const Model& model = *scenario.model;
  const double all = iteration_model_flops(model, tokens, 1, recompute);
  if (!scenario.training.forward_only()) return all;
  const bool heads = scenario.training.work == Training::Work::evaluation;
  return all / 3 - (heads ? 0 : (1 + model.mtp_layers) * head_model_flops(model, tokens));
}

double document_flops(const Scenario& scenario, bool recompute) {
  std::map<std::int64_t, double> of_length;
  double sum = 0;
  scenario.documents->for_each_document([&](std::int64_t tokens) {
    const auto [entry, added] = of_length.try_emplace(tokens, 0);
    if (added) entry->second = sequence_flops(scenario, tokens, recompute);
    sum += entry->second;
  });
  return sum;
}

}  // namespace

Throughput throughput_of(const Scenario& scenario, const std::vector<StageContents>& stages, double sequences,
                         double seconds) {
  Throughput out;
  const Training& training = scenario.training;
  if (seconds <= 0) return out;
  out.tokens_per_s = (scenario.documents ? static_cast<double>(scenario.documents->tokens())
                                         : sequences * static_cast<double>(training.sequence_length)) /
                     seconds;
  if (!scenario.model) return out;
  const double devices = static_cast<double>(training.world_size());
  const auto flops = [&](bool recompute) {
    if (scenario.documents) return document_flops(scenario, recompute);
    return sequences * sequence_flops(scenario, training.sequence_length, recompute);
  };
  // LoRA computes weight gradients of its adapters alone, which do not count.
  const double trained = training.lora_rank > 0 ? 2.0 / 3 * flops(false) : flops(false);
  out.model_tflops_per_device = trained / seconds / devices / 1e12;
  double again = 0;  // fraction of the layers that is recomputed
  for (const StageContents& stage : stages) {
    const StageContents recomputed = recomputed_layers(*scenario.model, training, stage);
    again += recomputed.layers + recomputed.mtp_layers;
  }
  again /= scenario.model->layers + scenario.model->mtp_layers;
  out.hardware_tflops_per_device = (trained + again * (flops(true) - flops(false))) / seconds / devices / 1e12;
  if (scenario.cluster) {
    const double peak = scenario.cluster->gpu.peak_of(traits_of(training.precision).bits);
    if (peak > 0) out.mfu = out.model_tflops_per_device * 1e12 / peak;
  }
  return out;
}

std::string mfu_remark(const Scenario& scenario, double mfu) {
  if (!scenario.cluster || !scenario.model) return "";
  const Gpu& gpu = scenario.cluster->gpu;
  const Model& model = *scenario.model;
  const std::int64_t tokens = scenario.training.sequence_length;
  const int bits = traits_of(scenario.training.precision).bits;
  const double sustained = gpu.peak_of(bits) > 0 ? gpu.gemm_flops_per_s(bits) / gpu.peak_of(bits) : 0;
  if (sustained == 0 || mfu <= sustained) return "";
  // The full square of attention has twice the FLOPs of causal attention.
  const double causal = slice_flops(model, tokens, 0).attention +
                        model.mtp_layers * layer_slice_flops(model, tokens, 0, model.mtp_kind).attention;
  const double executed = mfu * (1 - 3 * causal / iteration_model_flops(model, tokens, 1, false));
  const std::string above = fmt::format("MFU {:.1f} % is above the {:.1f} % of the peak that {} sustains", 100 * mfu,
                                        100 * sustained, gpu.name);
  return executed > sustained
             ? above + ": no iteration is as fast, an error of the cost model or of the given times"
             : fmt::format("{}, since it counts attention as the full square: {:.1f} % with causal attention", above,
                           100 * executed);
}

Fit fit_of(const Cluster& cluster, const std::vector<RankMemory>& memory) {
  Fit fit{.capacity_bytes = cluster.gpu.memory_bytes};
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const std::int64_t needed = needed_bytes(cluster.gpu, memory[rank].peak_bytes);
    if (needed <= fit.needed_bytes) continue;
    fit.needed_bytes = needed;
    fit.rank = static_cast<int>(rank);
  }
  fit.fits = fit.needed_bytes <= fit.capacity_bytes;
  return fit;
}

std::int64_t needed_bytes(const Gpu& gpu, std::int64_t peak_bytes) {
  return static_cast<std::int64_t>(static_cast<double>(peak_bytes) * (1 + gpu.fragmentation)) + gpu.reserved_bytes;
}

Prediction measured(const Setup& setup, const PredictOptions& options) {
  const OpGraph& graph = setup.graph();
  const Perturbation& perturbation = setup.scenario().perturbation;
  Prices prices = price(graph, setup.cost());
  if (perturbation.slows()) slow_down(graph, perturbation, prices);
  if (options.step_done) options.step_done();
  Timeline timeline = simulate(graph, prices);
  return measured(setup, std::move(prices), std::move(timeline), options);
}

Prediction measured(const Setup& setup, Prices prices, Timeline timeline, const PredictOptions& options) {
  const OpGraph& graph = setup.graph();
  const auto step_done = [&] {
    if (options.step_done) options.step_done();
  };
  Prediction prediction;
  prediction.prices = std::move(prices);
  prediction.timeline = std::move(timeline);
  step_done();
  prediction.metrics = measure(graph, prediction.timeline);
  prediction.memory = memory_over_time(graph, prediction.timeline, options.keep_memory);
  step_done();
  prediction.idle = idle_by_cause(graph, prediction.timeline);
  prediction.critical_path = critical_path(graph, prediction.timeline);
  step_done();
  return prediction;
}

void complete(const Setup& setup, Prediction& prediction) {
  const bool flush = setup.schedule().weight_policy() == WeightPolicy::flush;
  const Scenario& scenario = setup.scenario();
  prediction.iteration = flush ? prediction.metrics.makespan : prediction.period;
  if (scenario.correction) prediction.corrected = scenario.correction->at(to_seconds(prediction.iteration));
  prediction.throughput = throughput_of(scenario, setup.stages(), sequences_of(setup), prediction.iteration_s());
  if (scenario.model && scenario.cluster) prediction.fit = fit_of(*scenario.cluster, prediction.memory);
}

Prediction predict(const Setup& setup, const PredictOptions& options) try {
  Prediction prediction = measured(setup, options);
  prediction.period = period_of(setup, prediction);
  if (options.step_done) options.step_done();
  complete(setup, prediction);
  const Perturbation& perturbation = setup.scenario().perturbation;
  if (perturbation.trials > 0) {
    prediction.trials = run_trials(setup.graph(), prediction.prices, perturbation, options.trial_progress);
  }
  return prediction;
} catch (const std::bad_alloc&) {
  report_out_of_memory(setup.scenario());
  throw;
}

}  // namespace sluice::sim
