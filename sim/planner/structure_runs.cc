#include "sim/planner/structure_runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "model/errors.h"
#include "model/schedule/encoder_stages.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/engine/predict.h"
#include "sim/planner/batch_setup.h"
#include "sim/planner/encoder_setup.h"

namespace sluice::sim {
namespace {

std::int64_t largest(const std::vector<std::int64_t>& bytes, int& rank) {
  const auto most = std::max_element(bytes.begin(), bytes.end());
  rank = static_cast<int>(most - bytes.begin());
  return *most;
}

PlanResult refused(const std::string& reason) {
  PlanResult out{.status = PlanStatus::refused};
  out.reason = reason;
  return out;
}

// Returns the makespan if every transfer had its links alone, where it follows from this schedule. As the order on each
// lane is given, shared links only make it longer, and their simulation takes many times as long.
std::optional<Duration> makespan_without_sharing(SteadyState& steady, const OpGraph& graph, const Prices& prices) {
  Prices alone = prices;
  alone.sharing = {};
  const Timeline timeline = simulate_unshared(graph, alone);
  const auto more = steady.extension(alone, timeline);
  if (!more) return std::nullopt;
  return *std::max_element(timeline.end.begin(), timeline.end.end()) + more->time;
}

// Runs of more vertices are extrapolated where they do not become periodic.
constexpr std::int64_t kMostVertices = 1 << 18;

// Work of which nothing is shared with other configurations: replicas with documents of their own, and forwards alone.
bool is_whole(const Scenario& scenario) {
  return scenario.documents || scenario.training.forward_only() || scenario.encoder.apart();
}

}  // namespace

Scenario language_model_of(Scenario scenario) {
  scenario.encoder = {};
  scenario.model->encoder.reset();
  return scenario;
}

std::string_view name_of(PlanStatus status) {
  switch (status) {
    case PlanStatus::open: return "open";
    case PlanStatus::refused: return "refused";
    case PlanStatus::over: return "does not fit";
    case PlanStatus::bounded: return "bounded";
    case PlanStatus::simulated: return "simulated";
  }
  return "?";
}

StructureRuns::StructureRuns(const Scenario& scenario)
    : family_(find_family(scenario.schedule)), params_(family_params(scenario)) {}

std::int64_t StructureRuns::num_ops() const {
  std::int64_t sum = sketch_ ? sketch_->schedule.num_ops() : 0;
  for (const auto& level : levels_) sum += level->brief.schedule.num_ops();
  return sum;
}

// The first level at which not more than half of the runs, or one, became no steady state.
std::size_t StructureRuns::first_level() const {
  const auto promising = [](const auto& level) { return 2 * level->failures <= level->runs + 1; };
  return to_size(std::find_if(levels_.begin(), levels_.end(), promising) - levels_.begin());
}

StructureRuns::Level& StructureRuns::level(std::size_t index) {
  while (levels_.size() <= index) {
    // Groups mostly become periodic a few groups after the first level that repeats.
    constexpr std::size_t kSmallSteps = 2;
    const int last = levels_.empty() ? 0 : levels_.back()->brief.schedule.num_microbatches();
    const int more = levels_.size() <= kSmallSteps ? std::max(params_.ranks, last / 5) : last;
    const int kept = levels_.empty() ? kept_microbatches(params_) : last + more;
    auto brief = family_.asynchronous ? std::nullopt : shorten(family_, params_, kept);
    if (!brief) brief.emplace(ShortSchedule{.schedule = make_schedule(family_, params_)});
    levels_.push_back(std::make_unique<Level>(std::move(*brief)));
  }
  return *levels_[index];
}

// Returns the graph of a level for the lowering options and sizes of `costs`.
StructureRuns::Lowered& StructureRuns::lowered(Level& of, const ScenarioCosts& costs) {
  LoweringOptions options = costs.lowering_options(of.brief.schedule.weight_policy());
  const OptionsKey key{options.data_parallel > 1,  options.overlap_grad_reduce,  options.gather_parameters,
                       options.tied_embedding,     options.global_norm,          options.recompute,
                       options.blocking_transfers, options.overlap_param_gather, options.reduce_gradients,
                       options.reduce_runs,        options.sharded_actions,      options.buckets,
                       options.mtp_stages,         options.loss_stages};
  std::unique_ptr<Lowered>& known = of.graphs[key];
  if (!known) {
    options.footprint = nullptr;
    known = std::make_unique<Lowered>(Lowered{lower(of.brief.schedule, options), nullptr});
    num_vertices_ += known->graph.size();
  }
  known->graph.refill(costs.footprint());
  return *known;
}

// Returns a sketch from schedules with few microbatches; null if the lists of all do not follow from theirs.
std::unique_ptr<StructureRuns::Sketch> StructureRuns::lengthened_sketch() const {
  constexpr int kWithoutFill = 4;  // times the ranks: microbatches with which all repetitions are in the lists
  constexpr int kWorthwhile = 12;  // below this number of steps the three lists are longer than the whole one
  const double ops = model::num_ops(family_, params_);
  if (family_.asynchronous ? ops < static_cast<double>(kMostVertices) : ops > static_cast<double>(kMaxOps))
    return nullptr;
  const FewerMicrobatches fewer =
      fewer_microbatches(family_, params_, std::int64_t{kWithoutFill} * params_.ranks + kWithoutFill);
  const std::int64_t steps = (params_.microbatches - fewer.params.microbatches) / fewer.step;
  if (steps < kWorthwhile) return nullptr;
  const auto with_steps = [&](int more) {
    FamilyParams params = fewer.params;
    params.microbatches += static_cast<int>(more * fewer.step);
    return std::make_unique<Sketch>(make_schedule(family_, params));
  };
  try {
    std::unique_ptr<Sketch> first = with_steps(0);
    const bool linear = first->peaks.lengthen(with_steps(1)->peaks, with_steps(2)->peaks, steps);
    return linear ? std::move(first) : nullptr;
  } catch (const InputError&) {
    return nullptr;  // the whole schedule has the error with its number of microbatches
  }
}

StructureRuns::Sketch& StructureRuns::sketch() {
  if (!sketch_) sketch_ = lengthened_sketch();
  if (!sketch_) sketch_ = std::make_unique<Sketch>(level(0).brief.schedule);
  return *sketch_;
}

// The bytes of activations are not bounded.
PlanResult StructureRuns::assess_whole(const Scenario& scenario) const {
  const Schedule schedule = make_schedule(scenario);  // with documents, of the first replica (PlanBatches)
  const ScenarioCosts costs(scenario, schedule);
  const Gpu& gpu = scenario.cluster->gpu;
  PlanResult out;
  out.needed_bytes = needed_bytes(gpu, largest(standing_bytes(schedule, *costs.footprint()), out.rank));
  out.tight = gpu.within_margin(out.needed_bytes);
  out.standing_over = out.needed_bytes > gpu.memory_bytes;
  if (out.standing_over) out.status = PlanStatus::over;
  out.bound = least_compute(schedule, costs);
  if (scenario.correction) {
    out.bound = from_seconds(scenario.correction->at(to_seconds(out.bound)).seconds, "calibration");
  }
  return out;
}

// An encoder apart makes a language model neither faster nor smaller: its first op waits for a forward of the encoder,
// and ranks compute both.
PlanResult StructureRuns::assess_apart(const Scenario& scenario, SharedCosts& shared) {
  PlanResult out = assess(language_model_of(scenario), shared);
  if (out.status != PlanStatus::open || scenario.correction) return out;
  const Schedule schedule = with_encoder(sketch().schedule, scenario.encoder);
  const ScenarioCosts costs(scenario, schedule, nullptr, shared.prices);
  const std::vector<StageWork> times = compute_times(schedule, costs);
  Duration sum{0};
  Duration after = Duration::max();  // of a stage of the language model, whose rank may be the last to compute
  for (const StageWork& stage : times) {
    sum += stage.forward + stage.gradient + stage.weight;
    if (&stage != &times.front()) after = std::min(after, stage.after);
  }
  // Every rank has the encoder.
  if (scenario.encoder.own_ranks() == 0 && params_.microbatches >= params_.ranks) {
    const StageBytes held = costs.footprint()->stage(0);
    out.needed_bytes += held.weights + held.gradients + held.optimizer;
    if (out.needed_bytes > scenario.cluster->gpu.memory_bytes) {
      out.status = PlanStatus::over;
      return out;
    }
  }
  const Duration mean = sum * params_.microbatches / schedule.num_ranks() / (schedule.has_joint_blocks() ? 2 : 1);
  out.bound = std::max(out.bound + times.front().forward, mean + (schedule.encoder_stages() > 1 ? Duration{0} : after));
  return out;
}

PlanResult StructureRuns::assess(const Scenario& scenario, SharedCosts& shared) try {
  if (scenario.encoder.apart()) return assess_apart(scenario, shared);
  if (is_whole(scenario)) return assess_whole(scenario);
  Sketch& of = sketch();
  of.schedule.resize({scenario.shape});
  ScenarioCosts made(scenario, of.schedule, shared.costs ? &*shared.costs : nullptr, shared.prices);
  if (!shared.costs || !made.shares_costs(*shared.costs) || shared.shape != scenario.shape) {
    shared.shape = scenario.shape;
    shared.times = {};
  }
  const ScenarioCosts& costs = shared.costs.emplace(std::move(made));
  PlanResult out;
  const Gpu& gpu = scenario.cluster->gpu;
  // The bytes held for the whole run often decide. Those of activations follow from the ops alone, without a graph.
  for (const bool with_activations : {false, true}) {
    out.needed_bytes = needed_bytes(gpu, largest(with_activations ? of.peaks.bytes(costs.footprint())
                                                                  : standing_bytes(of.schedule, *costs.footprint()),
                                                 out.rank));
    out.tight = gpu.within_margin(out.needed_bytes);
    if (out.needed_bytes <= gpu.memory_bytes) continue;
    out.status = PlanStatus::over;
    out.standing_over = !with_activations;
    return out;
  }
  if (!family_.asynchronous) {
    std::vector<StageWork>& times = shared.times[of.schedule.split_backward() ? 1 : 0];
    if (times.empty()) times = compute_times(of.schedule, costs);
    out.bound = least_iteration(of.schedule, params_.microbatches, costs, times);
    if (scenario.correction) {
      out.bound = from_seconds(scenario.correction->at(to_seconds(out.bound)).seconds, "calibration");
    }
  }
  return out;
} catch (const InputError& error) {
  return refused(error.what());
} catch (const ScheduleError& error) {
  return refused(error.what());
}

PlanResult StructureRuns::run(const Scenario& scenario, Duration worth) try {
  if (is_whole(scenario)) return run_as_predicted(scenario);
  if (family_.asynchronous) {
    if (auto out = run_lengthened(scenario)) return std::move(*out);
    return run_as_predicted(scenario);
  }
  const double sequences = static_cast<double>(params_.microbatches) * scenario.shape.sequences * scenario.training.dp;
  for (std::size_t index = first_level();; ++index) {
    Level& of = level(index);
    of.brief.schedule.resize({scenario.shape});
    const ScenarioCosts costs(scenario, of.brief.schedule, nullptr, prices_);
    Lowered& run = lowered(of, costs);
    const OpGraph& graph = run.graph;
    if (!run.steady) run.steady = std::make_unique<SteadyState>(graph, of.brief);
    const Training& training = scenario.training;
    const std::tuple mapping(training.tp, training.cp, training.dp, training.pipeline_before_data);
    const auto known = sharing_.find(mapping);
    const Prices prices =
        known == sharing_.end() ? price(graph, costs.cost()) : price(graph, costs.cost(), known->second);
    if (known == sharing_.end()) sharing_.emplace(mapping, prices.sharing);
    const bool bounded = worth < Duration::max() && !prices.sharing.empty();
    const auto least = bounded ? makespan_without_sharing(*run.steady, graph, prices) : std::nullopt;
    if (least && *least >= worth) {
      PlanResult out{.status = PlanStatus::simulated};
      out.makespan = out.iteration = *least;
      out.needed_bytes = std::numeric_limits<std::int64_t>::max();
      return out;
    }
    const Timeline timeline = simulate(graph, prices, contend_);
    auto more = run.steady->extension(prices, timeline);
    const bool extrapolated = !more && graph.size() > kMostVertices;
    if (extrapolated) more = run.steady->estimate(prices, timeline);
    ++of.runs;
    of.failures += more ? 0 : 1;
    if (!more) continue;
    PlanResult out{.status = PlanStatus::simulated, .extrapolated = extrapolated};
    Duration busy{0};
    for (VertexId v = 0; v < graph.size(); ++v) {
      out.makespan = std::max(out.makespan, timeline.end[v]);
      if (graph.lanes()[graph[v].lane].kind == LaneKind::compute) busy += prices.duration[v];
    }
    out.makespan += more->time;
    for (const Duration of_rank : more->busy) busy += of_rank;
    const double all = static_cast<double>(out.makespan.count()) * params_.ranks;
    out.bubble_fraction = all > 0 ? 1.0 - static_cast<double>(busy.count()) / all : 0.0;
    double seconds = to_seconds(out.makespan);
    if (scenario.correction) seconds = scenario.correction->at(seconds).seconds;
    out.iteration = scenario.correction ? from_seconds(seconds, "calibration") : out.makespan;
    out.throughput = throughput_of(costs.scenario(), costs.stages(), sequences, seconds);
    if (out.makespan >= worth) {
      out.needed_bytes = std::numeric_limits<std::int64_t>::max();
      return out;
    }
    const Fit fit = fit_of(*scenario.cluster, memory_over_time(graph, timeline, false));
    out.fits = fit.fits;
    out.rank = fit.rank;
    out.needed_bytes = fit.needed_bytes;
    out.tight = scenario.cluster->gpu.within_margin(fit.needed_bytes);
    return out;
  }
} catch (const InputError& error) {
  return refused(error.what());
} catch (const ScheduleError& error) {
  return refused(error.what());
}

// Runs schedules without a flush for fewer microbatches, and continues their times in a straight line; nothing where
// they are not on one, or where the whole schedule is short.
std::optional<PlanResult> StructureRuns::run_lengthened(const Scenario& scenario) const {
  constexpr int kWithoutFill = 16;  // times the ranks
  constexpr double kBend = 1e-6;
  if (model::num_ops(family_, params_) < static_cast<double>(kMostVertices)) return std::nullopt;
  const auto [fewer, step] = fewer_microbatches(family_, params_, std::int64_t{kWithoutFill} * params_.ranks);
  const std::int64_t steps = (params_.microbatches - fewer.microbatches) / step;
  std::array<PlanResult, 3> runs;
  if (steps < std::ssize(runs)) return std::nullopt;
  Scenario part = scenario;
  part.correction.reset();
  for (int i = 0; i < std::ssize(runs); ++i) {
    part.microbatches = fewer.microbatches + static_cast<int>(i * step);
    runs[i] = run_as_predicted(part);
  }
  const auto busy = [](const PlanResult& of) { return to_seconds(of.makespan) * (1 - of.bubble_fraction); };
  const auto growth = [&](int i, auto value) { return value(runs[i + 1]) - value(runs[i]); };
  const auto iteration = [](const PlanResult& of) { return to_seconds(of.iteration); };
  const auto makespan = [](const PlanResult& of) { return to_seconds(of.makespan); };
  const double bend = std::abs(growth(1, iteration) - growth(0, iteration));
  if (bend > kBend * growth(1, iteration) || runs[1].needed_bytes != runs[2].needed_bytes) return std::nullopt;
  PlanResult out = runs[2];
  out.extrapolated = true;
  const auto whole = [&](auto value) {
    return value(runs[2]) + static_cast<double>(steps + 1 - std::ssize(runs)) * growth(1, value);
  };
  out.makespan = from_seconds(whole(makespan), scenario.source);
  out.bubble_fraction = 1 - whole(busy) / whole(makespan);
  double seconds = whole(iteration);
  if (scenario.correction) seconds = scenario.correction->at(seconds).seconds;
  out.iteration = from_seconds(seconds, "calibration");
  const double faster = static_cast<double>(params_.microbatches) / part.microbatches * iteration(runs[2]) / seconds;
  for (double* const each : {&out.throughput.tokens_per_s, &out.throughput.model_tflops_per_device,
                             &out.throughput.hardware_tflops_per_device, &out.throughput.mfu}) {
    *each *= faster;
  }
  return out;
}

PlanResult StructureRuns::run_as_predicted(const Scenario& scenario) const {
  BatchSetup batch;
  EncoderRun encoder;
  if (scenario.encoder.placement == EncoderPlacement::bubbles) {
    batch.setup = encoder_setup(scenario, encoder, scenario.encoder.search);
  }
  if (scenario.documents) batch = batch_setup(scenario);
  if (!batch.setup) batch.setup = std::make_unique<Setup>(scenario);
  Prediction prediction = predict(*batch.setup);
  if (scenario.documents) fit_all_replicas(scenario, batch.run, prediction);
  PlanResult out{.status = PlanStatus::simulated};
  out.makespan = prediction.metrics.makespan;
  out.iteration =
      prediction.corrected ? from_seconds(prediction.corrected->seconds, "calibration") : prediction.iteration;
  out.bubble_fraction = prediction.metrics.bubble_fraction;
  out.throughput = prediction.throughput;
  out.fits = prediction.fit->fits;
  out.rank = prediction.fit->rank;
  out.needed_bytes = prediction.fit->needed_bytes;
  out.tight = scenario.cluster->gpu.within_margin(out.needed_bytes);
  return out;
}

}  // namespace sluice::sim
