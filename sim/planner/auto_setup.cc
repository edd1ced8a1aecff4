#include "sim/planner/auto_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "model/batches/batch.h"
#include "model/cost/price.h"
#include "model/errors.h"
#include "model/slicing/balanced.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/engine/perturbed.h"
#include "sim/planner/iteration_bound.h"

namespace sluice::sim {
namespace {

constexpr int kWidestWindow = 4;

Duration last_end(const Setup& setup) {
  Prices prices = price(setup.graph(), setup.cost());
  const Perturbation& perturbation = setup.scenario().perturbation;
  if (perturbation.slows()) slow_down(setup.graph(), perturbation, prices);
  const Timeline timeline = simulate(setup.graph(), prices);
  return *std::max_element(timeline.end.begin(), timeline.end.end());
}

Prices prices_of(const Setup& setup) {
  Prices prices = price(setup.graph(), setup.cost());
  if (setup.scenario().perturbation.slows()) slow_down(setup.graph(), setup.scenario().perturbation, prices);
  return prices;
}

// Time after the end of each rank's last op, from a graph of one microbatch whose ops run in the order of the stages
// and back. Unless gradients are reduced after the lists, it depends on which stage of the rank ends last: the minimum.
std::vector<Duration> times_after(const Setup& setup, const Prices& prices) {
  const OpGraph& graph = setup.graph();
  const Schedule& schedule = setup.schedule();
  // Of collectives and steps: time from their start on; of ops: from their end on.
  std::vector<Duration> out(graph.size(), Duration{});
  for (VertexId v = graph.size(); v-- > 0;) {
    const VertexKind kind = graph[v].kind;
    if (kind != VertexKind::collective && kind != VertexKind::optimizer) continue;
    out[v] += prices.duration[v];
    for (const VertexId need : graph.needs(v)) out[need] = std::max(out[need], out[v]);
  }
  std::vector<Duration> by_stage(to_size(schedule.num_stages()), Duration{});
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    // The last gradient of the stage.
    if (vertex.kind == VertexKind::compute && vertex.op != OpKind::F) by_stage[vertex.stage] = out[v];
  }
  const LoweringOptions options = setup.lowering_options();
  const bool reduced_after = options.data_parallel > 1 && !options.overlap_grad_reduce;
  std::vector<Duration> after;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto stages = schedule.stages_of(rank);
    Duration least = by_stage[stages.front()];
    for (const int stage : stages) {
      if (!reduced_after) least = std::min(least, by_stage[stage]);
    }
    after.push_back(least);
  }
  return after;
}

// Reads the times and bytes of the ops of one microbatch from a priced graph.
void read_graph(const Setup& setup, bool fused, PlacedProblem& problem) {
  const OpGraph& graph = setup.graph();
  const Prices prices = prices_of(setup);
  std::vector<Duration> recompute(problem.times.size(), Duration{});
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind == VertexKind::collective || vertex.kind == VertexKind::optimizer) continue;
    const std::size_t slice = problem.slice_index(vertex.stage, vertex.slice);
    SliceOpTimes& times = problem.times[slice];
    const Duration time = prices.duration[v];
    if (vertex.kind == VertexKind::recompute) recompute[slice] = time;
    if (vertex.kind == VertexKind::transfer) {
      const bool forward = vertex.op == OpKind::F;
      (forward ? times.send_forward : times.send_backward) = time;
      (forward ? problem.forward_hop : problem.backward_hop)[vertex.stage] = prices.lane_latency[vertex.lane];
    }
    if (vertex.kind != VertexKind::compute) continue;
    switch (vertex.op) {
      case OpKind::F: times.forward = time; break;
      // The recomputation precedes it in the order of ids, and waits for the same.
      case OpKind::B: times.backward = time + recompute[slice]; break;
      case OpKind::I: times.input_gradient = time + recompute[slice]; break;
      case OpKind::W: times.weight_gradient = time; break;
      default: break;  // its families have no vocabulary passes
    }
  }
  (fused ? problem.may_fuse : problem.may_split) = true;
  problem.after = times_after(setup, prices);
  problem.blocking = setup.lowering_options().blocking_transfers;
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    for (int slice = 0; slice < problem.num_slices(); ++slice) {
      problem.bytes[problem.slice_index(stage, slice)] = graph.slice_bytes(stage, 0, slice);
    }
  }
}

// The minimal time of a joint block as a fraction of the time of its F and its B or I.
double joint_share(const Setup& setup, const PlacedProblem& problem) {
  double share = 1;
  const MicrobatchShape& shape = problem.shape;
  for (int f = 0; f < problem.num_stages(); ++f) {
    for (int b = 0; b < problem.num_stages(); ++b) {
      if (problem.rank_of[f] != problem.rank_of[b]) continue;
      const double apart =
          setup.cost().compute_s(OpKind::F, f, shape, 0) + setup.cost().compute_s(OpKind::B, b, shape, 0);
      const double joint = setup.cost().joint_s(f, shape, 0, OpKind::B, b, shape, 0);
      // Tolerates rounding by one nanosecond.
      if (joint < apart - 1e-9) share = std::min(share, joint / apart);
    }
  }
  return share;
}

class Planning {
 public:
  Planning(const Scenario& scenario, const std::function<void(double, Duration)>& progress,
           const std::atomic<bool>* stop)
      : scenario_(of_mean_microbatches(scenario)), progress_(progress), stop_(stop) {
    if (!scenario.documents) return;
    documents_ = scenario;
    auto batch = std::make_shared<Batch>(*scenario.documents);
    batch->before.clear();
    if (batch->request.order == MicrobatchOrder::best) batch->request.order = MicrobatchOrder::given;
    documents_->documents = std::move(batch);
  }

  // Returns the result of the search for documents, of which `scenario` is.
  PlannedSetup run_documents(const Scenario& scenario) {
    AutoResult result = run_search();
    BatchSetup found = batch_setup(scenario, result.schedule);
    result.lower_bound = least_compute(found.setup->schedule(), ScenarioCosts(scenario, found.setup->schedule()));
    result.periodic.reset();
    if (result.ended_by == AutoEnd::bound) result.ended_by = AutoEnd::no_improvement;
    result.makespan = found.run.replicas[to_size(found.run.slowest)].makespan;
    PlannedSetup out{.setup = std::move(found.setup), .automatic = std::nullopt, .batch = std::move(found.run)};
    out.automatic.emplace(std::move(result));
    return out;
  }

  PlannedSetup run() {
    AutoResult result = run_search();
    PlannedSetup out;
    out.setup = std::make_unique<Setup>(scenario_, result.schedule);
    out.automatic.emplace(std::move(result));
    return out;
  }

 private:
  static Scenario of_mean_microbatches(Scenario scenario) {
    if (!scenario.documents) return scenario;
    const Batch& batch = *scenario.documents;
    const std::int64_t mean = batch.tokens() / (std::int64_t{batch.microbatches()} * std::ssize(batch.replicas));
    scenario.shape.slice_lengths =
        even_slices(std::max<std::int64_t>(mean, scenario.shape.num_slices()), scenario.shape.num_slices());
    scenario.training.sequence_length = scenario.model ? scenario.shape.tokens() : scenario.training.sequence_length;
    if (scenario.cost == CostKind::uniform) {
      scale(scenario.uniform,
            static_cast<double>(mean) / static_cast<double>(std::max<std::int64_t>(1, batch.request.most_tokens)));
    }
    scenario.documents.reset();
    return scenario;
  }

  // The times of a uniform cost are those of most_tokens tokens, or of one.
  static void scale(UniformTimes& times, double factor) {
    if (times.forward.empty() && times.input_gradient.empty() && times.weight_gradient.empty() &&
        times.stages.empty()) {
      times.forward = times.input_gradient = times.weight_gradient = {1};
    }
    for (std::vector<double>* const each : {&times.forward, &times.input_gradient, &times.weight_gradient}) {
      for (double& seconds : *each) seconds *= factor;
    }
    for (auto& stage : times.stages) {
      for (double* const seconds : {&stage.forward, &stage.input_gradient, &stage.weight_gradient}) *seconds *= factor;
    }
  }

  AutoResult run_search() {
    check_choices();
    for (const auto& [name, rank_of] : placements()) add(name, rank_of);
    if (placements_.empty())
      throw InputError(refusal_.empty() ? "auto: expected at least one placement" : "auto: " + refusal_);
    set_limits();
    AutoResult result = search();
    result.first_seconds += elapsed() - result.seconds;
    result.seconds = elapsed();
    return result;
  }

  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  bool is_stopped() const { return stop_ != nullptr && *stop_; }

  [[noreturn]] void refuse(const std::string& what) const { throw InputError(scenario_.source + ": " + what); }

  void check_choices() const {
    if (scenario_.training.pp == 0) refuse("/parallelism/pp: required: the number of pipeline ranks (--pp)");
    if (scenario_.microbatches == 0) refuse("/batch: required: microbatches (--microbatches), or global_batch (--gbs)");
    if (scenario_.group != 0) refuse("/schedule/group: not supported by an automatic schedule");
    if (scenario_.batches > 1) refuse("/schedule/batches: an automatic schedule flushes after every batch");
    if (scenario_.automatic.cap.bytes && !scenario_.model) {
      refuse(
          "/schedule/memory_cap: a cap in bytes requires a model (--model); without one, specify microbatches, as in "
          "3mb");
    }
  }

  std::vector<std::pair<std::string, std::vector<int>>> placements() const {
    std::vector<std::pair<std::string, std::vector<int>>> out;
    const std::string& wanted = scenario_.automatic.placement;
    const int p = scenario_.training.pp;
    std::vector<int> linear;
    for (int rank = 0; rank < p; ++rank) linear.push_back(rank);
    for (const int chunks : scenario_.chunks == 0 ? std::vector{1, 2} : std::vector{scenario_.chunks}) {
      if (std::int64_t{chunks} * p > kMaxStages)
        refuse(fmt::format("/parallelism/vpp: more than {} stages", kMaxStages));
      std::vector<int> looped;
      for (int stage = 0; stage < chunks * p; ++stage) looped.push_back(stage % p);
      std::vector<int> v = linear;
      v.insert(v.end(), linear.rbegin(), linear.rend());
      if (chunks == 1 && (wanted == "any" || wanted == "linear")) out.emplace_back("linear", linear);
      if (chunks > 1 && (wanted == "any" || wanted == "looped"))
        out.emplace_back(fmt::format("looped {}", chunks), looped);
      if (chunks == 2 && (wanted == "any" || wanted == "v")) out.emplace_back("v", v);
    }
    if (out.empty())
      refuse(fmt::format("/schedule/placement: {} does not have {} chunks per rank", wanted, scenario_.chunks));
    return out;
  }

  // Adds a placement if the model and its costs support it.
  void add(const std::string& name, const std::vector<int>& rank_of) {
    AutoPlacement out{.name = name, .problem = {}, .families = {}};
    PlacedProblem& problem = out.problem;
    problem.num_ranks = scenario_.training.pp;
    problem.rank_of = rank_of;
    problem.num_microbatches = 1;
    problem.shape = scenario_.shape;
    const std::size_t stages = rank_of.size();
    problem.times.resize(stages * to_size(problem.num_slices()));
    problem.bytes.resize(problem.times.size());
    problem.forward_hop.resize(stages);
    problem.backward_hop.resize(stages);
    problem.limit.assign(problem.num_ranks, kNoLimit);
    problem.after.assign(problem.num_ranks, Duration{});
    const double ops = static_cast<double>(problem.times.size()) * 3 * scenario_.microbatches;
    if (ops > 3e6) {
      refusal_ += fmt::format("{}{}: {:.0f} ops are too many to search", refusal_.empty() ? "" : "; ", name, ops);
      return;
    }
    std::vector<std::int64_t> standing;
    problem.may_fuse = problem.may_split = false;
    for (const bool fused : {true, false}) {
      try {
        PlacedProblem one = problem;
        one.may_fuse = fused;
        one.may_split = !fused;
        const Setup setup(scenario_, schedule_of(one, sequential_orders(one)));
        read_graph(setup, fused, problem);
        standing.clear();
        for (int rank = 0; rank < problem.num_ranks; ++rank) standing.push_back(standing_bytes(setup.graph(), rank));
        if (fused) problem.joint_share = joint_share(setup, problem);
      } catch (const InputError& error) {
        // The model has too few layers, or the costs have no such stages or ops.
        const std::string reason = error.what();
        if (refusal_.find(reason) == std::string::npos) {
          refusal_ += fmt::format("{}{}: {}", refusal_.empty() ? "" : "; ", name, reason);
        }
      }
    }
    if (!problem.may_fuse && !problem.may_split) return;
    problem.num_microbatches = scenario_.microbatches;
    out.families = families_of(problem, [this] { return is_stopped() || elapsed() > scenario_.automatic.seconds + 1; });
    problem.may_join = std::any_of(out.families.begin(), out.families.end(),
                                   [](const auto& family) { return family.second.has_joint_blocks(); });
    if (!problem.may_join) problem.joint_share = 1;
    placements_.push_back(std::move(out));
    standing_.push_back(std::move(standing));
  }

  void set_limits() {
    const MemoryCap& cap = scenario_.automatic.cap;
    if (cap.microbatches) {
      for (AutoPlacement& placement : placements_) {
        PlacedProblem& problem = placement.problem;
        // In tokens of one chunk, as peak_in_flight counts.
        for (int stage = 0; stage < problem.num_stages(); ++stage) {
          for (int slice = 0; slice < problem.num_slices(); ++slice) {
            problem.bytes[problem.slice_index(stage, slice)] = {.activations_to_weight_gradient =
                                                                    problem.shape.slice_lengths[slice]};
          }
        }
        const double chunks = static_cast<double>(problem.num_stages()) / problem.num_ranks;
        const double tokens = *cap.microbatches * static_cast<double>(problem.shape.tokens()) * chunks;
        problem.limit.assign(problem.num_ranks, static_cast<std::int64_t>(std::min(tokens + 1e-6, 1e17)));
      }
      if (*cap.microbatches < 1) {
        throw DoesNotFit(fmt::format(
            "auto: every rank needs the activations of at least one microbatch, the cap is {}mb", *cap.microbatches));
      }
      return;
    }
    const std::optional<std::int64_t> device = cap.bytes ? cap.bytes
                                               : scenario_.cluster && scenario_.model
                                                   ? std::optional(scenario_.cluster->gpu.memory_bytes)
                                                   : std::nullopt;
    if (!device) {
      for (AutoPlacement& placement : placements_)
        std::fill(placement.problem.bytes.begin(), placement.problem.bytes.end(), SliceBytes{});
      return;
    }
    tensors_ = *device;
    if (scenario_.cluster) {
      const auto& gpu = scenario_.cluster->gpu;
      tensors_ = static_cast<std::int64_t>(static_cast<double>(*device - gpu.reserved_bytes) / (1 + gpu.fragmentation));
    }
    keep_what_fits(*device);
    reserve_buffers();
  }

  // Sets limits without receive buffers, and drops the placements that exceed them.
  void keep_what_fits(std::int64_t device) {
    std::string reason;
    std::vector<AutoPlacement> kept;
    for (std::size_t i = 0; i < placements_.size(); ++i) {
      PlacedProblem& problem = placements_[i].problem;
      const std::vector<std::int64_t> least = least_limits(problem);
      bool fits = true;
      for (std::size_t rank = 0; rank < least.size(); ++rank) {
        problem.limit[rank] = *tensors_ - standing_[i][rank];
        if (problem.limit[rank] >= least[rank]) continue;
        fits = false;
        const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
        if (reason.empty()) {
          reason = fmt::format(
              "auto: no schedule fits: rank {} needs {:.1f} GiB for weights, gradients and optimizer states and {:.1f} "
              "GiB for one microbatch, but only {:.1f} of {:.1f} GiB are available for tensors",
              rank, gib(standing_[i][rank]), gib(least[rank]), gib(*tensors_), gib(device));
        }
      }
      if (fits) kept.push_back(std::move(placements_[i]));
    }
    placements_ = std::move(kept);
    if (placements_.empty()) throw DoesNotFit(reason);
    for (AutoPlacement& placement : placements_) {
      placement.limit_of_bound = placement.problem.limit;
      limits_.push_back(placement.problem.limit);
    }
  }

  // Receive buffers depend on the times: reserves their size in a first result.
  void reserve_buffers() {
    for (std::size_t i = 0; i < placements_.size(); ++i) {
      PlacedProblem& problem = placements_[i].problem;
      std::vector<AutoPlacement> one;
      one.push_back({.name = "", .problem = problem, .families = {}});
      const AutoResult first =
          auto_schedule(std::move(one), {.seconds = 0}, [](const Schedule&, std::size_t) { return Duration{1}; });
      const Setup setup(scenario_, first.schedule);
      const std::vector<RankMemory> memory =
          memory_over_time(setup.graph(), simulate(setup.graph(), prices_of(setup)), false);
      const std::vector<std::int64_t> least = least_limits(problem);
      for (std::size_t rank = 0; rank < least.size(); ++rank) {
        const std::int64_t over = std::max<std::int64_t>(0, memory[rank].peak_bytes - *tensors_);
        const std::int64_t buffers = std::max(over, memory[rank].at_peak[static_cast<int>(MemoryClass::buffers)] / 2);
        problem.limit[rank] = std::max(least[rank], limits_[i][rank] - buffers);
      }
    }
  }

  std::optional<Duration> judged(const Schedule& schedule) const {
    if (documents_) return judged_with_documents(schedule);
    const Setup setup(scenario_, schedule);
    const Timeline timeline = simulate(setup.graph(), prices_of(setup));
    if (scenario_.automatic.cap.microbatches) {
      for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
        if (peak_in_flight(schedule, rank) > *scenario_.automatic.cap.microbatches + 1e-9) return std::nullopt;
      }
    }
    if (tensors_) {
      for (const RankMemory& rank : memory_over_time(setup.graph(), timeline, false)) {
        if (rank.peak_bytes > *tensors_) return std::nullopt;
      }
    }
    return measure(setup.graph(), timeline).makespan;
  }

  std::optional<Duration> judged_with_documents(const Schedule& schedule) const {
    const std::optional<double> cap = scenario_.automatic.cap.microbatches;
    for (int rank = 0; cap && rank < schedule.num_ranks(); ++rank) {
      if (peak_in_flight(schedule, rank) > *cap + 1e-9) return std::nullopt;
    }
    const BatchRun run = batch_setup(*documents_, schedule).run;
    for (const ReplicaRun& replica : run.replicas) {
      if (tensors_ && replica.peak_bytes > *tensors_) return std::nullopt;
    }
    return run.replicas[to_size(run.slowest)].makespan;
  }

  AutoResult search() {
    std::int64_t ops = 1;
    for (const AutoPlacement& placement : placements_) {
      const PlacedProblem& problem = placement.problem;
      ops = std::max(ops, std::int64_t{3} * std::ssize(problem.times) * problem.num_microbatches);
    }
    constexpr std::int64_t kOpsTimed = 2'000'000'000;
    constexpr std::int64_t kLeastEvaluations = 1000;
    const std::int64_t given = scenario_.automatic.evaluations;
    AutoOptions options{.evaluations = given > 0 ? given : std::max(kOpsTimed / ops, kLeastEvaluations),
                        .seed = static_cast<unsigned>(scenario_.perturbation.seed),
                        .stop = stop_,
                        .progress = progress_};
    // Doubles the memory reserved for buffers in each round.
    for (int round = 0;; ++round) {
      try {
        options.seconds = std::max(0.0, scenario_.automatic.seconds - elapsed());
        return auto_schedule(placements_, options,
                             [this](const Schedule& schedule, std::size_t) { return judged(schedule); });
      } catch (const DoesNotFit&) {
        if (!tensors_ || round == 3) throw;
      }
      for (std::size_t i = 0; i < placements_.size(); ++i) {
        PlacedProblem& problem = placements_[i].problem;
        const std::vector<std::int64_t> least = least_limits(problem);
        for (std::size_t rank = 0; rank < least.size(); ++rank) {
          problem.limit[rank] =
              std::max(least[rank], limits_[i][rank] - 2 * (limits_[i][rank] - problem.limit[rank]) - *tensors_ / 100);
        }
      }
    }
  }

  const Scenario scenario_;            // of equal microbatches
  std::optional<Scenario> documents_;  // with the documents, in the order before a search
  const std::function<void(double, Duration)>& progress_;
  const std::atomic<bool>* stop_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<AutoPlacement> placements_;
  std::vector<std::vector<std::int64_t>> standing_;  // by placement and rank
  std::vector<std::vector<std::int64_t>> limits_;    // likewise, before buffers are reserved
  std::optional<std::int64_t> tensors_;              // bytes available for tensors per rank
  std::string refusal_;                              // reasons for the placements that are not supported
};

}  // namespace

std::unique_ptr<Setup> offload_setup(const Scenario& scenario, const Schedule* schedule) {
  const auto with_window = [&](int window) {
    Scenario with = scenario;
    with.training.offload_window = window;
    return schedule == nullptr ? std::make_unique<Setup>(with) : std::make_unique<Setup>(with, Schedule(*schedule));
  };
  std::unique_ptr<Setup> free = with_window(0);
  const Duration least = last_end(*free);
  for (int window = 1; window <= kWidestWindow; ++window) {
    std::unique_ptr<Setup> setup = with_window(window);
    if (last_end(*setup) <= least) return setup;
  }
  return free;
}

PlannedSetup planned_setup(const Scenario& scenario, const std::function<void(double, Duration)>& progress,
                           const std::atomic<bool>* stop) {
  if (scenario.schedule == kAutomatic && scenario.encoder.apart()) {
    throw InputError(scenario.source +
                     ": /parallelism/encoder_placement: expected first-stage with the automatic schedule (auto)");
  }
  if (scenario.encoder.placement == EncoderPlacement::bubbles) {
    PlannedSetup out;
    out.setup = encoder_setup(scenario, out.encoder.emplace());
    return out;
  }
  if (scenario.documents) {
    if (scenario.schedule == kAutomatic && !scenario.documents->groups.empty()) {
      throw InputError(scenario.source + ": /batch/dynamic_cp: not supported with the automatic schedule (auto)");
    }
    if (scenario.schedule == kAutomatic) return Planning(scenario, progress, stop).run_documents(scenario);
    BatchSetup found = batch_setup(scenario);
    return {.setup = std::move(found.setup), .batch = std::move(found.run)};
  }
  const bool offloads = scenario.training.activation_offload != 0;
  if (scenario.schedule == kAutomatic && (scenario.communicators || offloads)) {
    Scenario without = scenario;
    without.communicators.reset();
    without.training.activation_offload = 0;
    PlannedSetup found = planned_setup(without, progress, stop);
    const Schedule& schedule = found.setup->schedule();
    found.setup = offloads ? offload_setup(scenario, &schedule) : std::make_unique<Setup>(scenario, schedule);
    return found;
  }
  if (scenario.schedule == kAutomatic) return Planning(scenario, progress, stop).run();
  PlannedSetup out;
  out.setup = offloads ? offload_setup(scenario) : std::make_unique<Setup>(scenario);
  return out;
}

}  // namespace sluice::sim
