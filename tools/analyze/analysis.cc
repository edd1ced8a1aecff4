#include "tools/analyze/analysis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/median.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "tools/command/document.h"
#include "traces/measured/estimated_transfers.h"
#include "traces/measured/read_measured.h"
#include "traces/measured/worker_clocks.h"
#include "traces/read/trace_read.h"

namespace sluice::tools {
namespace {

// Seconds, to the nanosecond.
double rounded(double nanoseconds) { return std::round(nanoseconds) / 1e9; }

struct MeanTime {
  double sum = 0;
  std::int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

double nanoseconds(Duration time) { return static_cast<double>(time.count()); }

// The median transfer without waiting.
double median_transfer(const std::vector<StepGraph>& graphs) {
  std::vector<double> times;
  for (const StepGraph& graph : graphs) {
    for (std::size_t p = 0; p < graph.size(); ++p) {
      if (is_pipeline_transfer(graph.ops[p]->kind)) times.push_back(graph.transfer[p]);
    }
  }
  return upper_median(std::move(times));
}

// Above this difference between replayed and measured steps, a note warns.
constexpr double kMostReplayError = 0.01;

double gpu_hours_per_day(const Analysis& analysis, double saved_seconds) {
  return 24.0 * analysis.gpus * saved_seconds / analysis.what_if.measured;
}

class AnalysisText : private TextLines {
 public:
  AnalysisText(const Analysis& analysis, std::size_t top) : analysis_(analysis), run_(analysis.run), top_(top) {}

  std::string text() {
    out_ = answer_text(analysis_.answer, analysis_.what_if.measured);
    write_run();
    write_replay();
    write_slowdown();
    write_causes();
    return std::move(out_);
  }

 private:
  void write_run() {
    line("{}: {} {} (number {} to {}), {} {} of {} ranks{}, {} microbatches{}", run_.format, run_.steps.size(),
         run_.steps.size() == 1 ? "step" : "steps", run_.steps.front(), run_.steps.back(), run_.replicas,
         run_.replicas == 1 ? "replica" : "replicas", run_.ranks,
         run_.shards > 1 ? fmt::format(" with {} tensor ranks", run_.shards) : "", run_.microbatches,
         run_.chunks > 1 ? fmt::format(", {} chunks per rank", run_.chunks) : "");
    const Recognised& schedule = analysis_.schedule;
    line("schedule: {}", schedule.family.empty() ? "none of the families ('sluice schedules')" : schedule.family);
    for (const std::string& deviation : schedule.deviations) line("  {}", deviation);
    if (schedule.num_deviations > std::ssize(schedule.deviations)) {
      line("  and {} more", schedule.num_deviations - std::ssize(schedule.deviations));
    }
    for (const std::string& note : run_.notes) line("note: {}", note);
  }

  void write_replay() {
    const Counterfactuals& what_if = analysis_.what_if;
    const auto row = [&](const char* what, double seconds) {
      line("  {:<46}  {:>9.4f} s  {:>+7.2f} %", what, seconds, 100 * (seconds / what_if.measured - 1));
    };
    line("\nmean step");
    row("measured", what_if.measured);
    row("replayed, with delays before ops", what_if.replayed);
    row("replayed, without delays", what_if.no_delays);
    row("pipeline transfers free", what_if.free_transfers);
    row("passes as long on all ranks (mean)", what_if.equal_stages);
    if (what_if.lighter_last) row("one layer less on the last stage", *what_if.lighter_last);
    line("  span of the passes, replayed without delays: {:+.4f} % (mean of the absolute differences {:.4f} %)",
         100 * analysis_.observed.span_error, 100 * analysis_.observed.span_absolute_error);
  }

  void write_slowdown() {
    const std::optional<Slowdown>& early = analysis_.early_receives;
    const Slowdown& observed = analysis_.observed;
    line("\nslowdown against ideal steps (OSDI 2025 what-if study)      receives start");
    line("  {:<53}  {:>9}  {:>9}", "", "early", "in order");
    const auto text = [](const std::optional<double>& value) { return value ? fmt::format("{:.4f}", *value) : "-"; };
    // A row of a value of both rules.
    const auto row = [&](const std::string& what, const auto& value) {
      const std::optional<double> first = early ? value(*early) : std::nullopt;
      line("  {:<53}  {:>9}  {:>9}", what, text(first), text(value(observed)));
    };
    row("S, all ops", [](const Slowdown& each) { return std::optional(each.slowdown); });
    const auto worst = [&](const char* what, std::vector<double> Slowdown::*values) {
      const std::vector<double>& of = observed.*values;
      std::vector<std::size_t> order(of.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return of[x] > of[y]; });
      for (std::size_t i = 0; i < std::min(order.size(), top_); ++i) {
        row(fmt::format("only {} {}", what, order[i]),
            [&](const Slowdown& each) { return std::optional((each.*values)[order[i]]); });
      }
      if (order.size() > top_) line("  and {} more, which are smaller", order.size() - top_);
    };
    worst("replica", &Slowdown::by_replica);
    worst("rank", &Slowdown::by_rank);
    for (std::size_t kind = 0; kind < kNumMeasuredKinds; ++kind) {
      if (observed.by_kind[kind] == 0) continue;
      row(fmt::format("only {}", slowdown_kind_name(static_cast<MeasuredKind>(kind))), [&](const Slowdown& each) {
        return each.by_kind[kind] > 0 ? std::optional(each.by_kind[kind]) : std::nullopt;
      });
    }
    row("M_S, share of the last rank", [](const Slowdown& each) { return each.last_rank_share; });
    const std::vector<int>& slowest = (early ? *early : observed).worst_workers;
    std::string workers;
    for (std::size_t i = 0; i < std::min<std::size_t>(slowest.size(), 3); ++i) {
      workers += (i == 0 ? "" : ", ") + run_.name_of(slowest[i]);
    }
    row(fmt::format("M_W, share of {}", slowest.size() > 3 ? workers + ", ..." : workers),
        [](const Slowdown& each) { return each.worst_workers_share; });
  }

  void write_causes() {
    const std::vector<SlowCause>& causes = analysis_.what_if.causes;
    line("\ncauses by what a step saves without them (each alone)");
    line("  {:>9}  {:>7}  {:>11}  {:<16}  what", "s/step", "of step", "GPU h/day", "kind");
    if (causes.empty()) line("  none saves more than 0.1 % of a step");
    for (std::size_t i = 0; i < std::min(causes.size(), top_); ++i) {
      line("  {:>9.4f}  {:>5.1f} %  {:>11.1f}  {:<16}  {}", causes[i].saved_seconds,
           100 * causes[i].saved_seconds / analysis_.what_if.measured,
           gpu_hours_per_day(analysis_, causes[i].saved_seconds), name_of(causes[i].kind), causes[i].what);
    }
    if (causes.size() > top_) line("  and {} more (--top)", causes.size() - top_);
  }

  const Analysis& analysis_;
  const MeasuredRun& run_;
  std::size_t top_;
};

OrderedJson slowdown_document(const Analysis& analysis, const Slowdown& slowdown) {
  OrderedJson out;
  out["S"] = slowdown.slowdown;
  auto& steps = out["steps"] = OrderedJson::array();
  for (std::size_t i = 0; i < analysis.run.steps.size(); ++i) {
    steps.push_back({{"step", analysis.run.steps[i]},
                     {"measured_s", slowdown.measured[i]},
                     {"no_delay_s", slowdown.no_delay[i]},
                     {"ideal_s", slowdown.ideal[i]},
                     {"S", slowdown.no_delay[i] / slowdown.ideal[i]}});
  }
  out["by_replica"] = slowdown.by_replica;
  out["by_rank"] = slowdown.by_rank;
  auto& kinds = out["by_kind"] = OrderedJson::object();
  for (std::size_t kind = 0; kind < kNumMeasuredKinds; ++kind) {
    if (slowdown.by_kind[kind] > 0)
      kinds[std::string(slowdown_kind_name(static_cast<MeasuredKind>(kind)))] = slowdown.by_kind[kind];
  }
  out["M_S"] = slowdown.last_rank_share;
  out["M_W"] = slowdown.worst_workers_share;
  auto& workers = out["worst_workers"] = OrderedJson::array();
  for (const int worker : slowdown.worst_workers) {
    workers.push_back({{"replica", analysis.run.replica_of(worker)},
                       {"rank", analysis.run.rank_of(worker)},
                       {"tensor_rank", analysis.run.shard_of(worker)}});
  }
  out["span_error"] = slowdown.span_error;
  out["span_absolute_error"] = slowdown.span_absolute_error;
  return out;
}

}  // namespace

nlohmann::ordered_json measured_scenario(const Analysis& analysis) {
  const MeasuredRun& run = analysis.run;
  std::vector<std::array<MeanTime, 4>> passes(to_size(run.stages()));
  std::vector<Duration> last_pass(run.steps.size(), Duration::zero());
  std::vector<Duration> last(run.steps.size(), Duration::zero());
  for (const MeasuredOp& op : run.ops) {
    const std::size_t step = to_size(op.step);
    last[step] = std::max(last[step], op.end);
    if (!is_pass(op.kind)) continue;
    last_pass[step] = std::max(last_pass[step], op.end);
    passes[to_size(run.stage(run.rank_of(op.worker), op.chunk))][to_size(static_cast<int>(op.kind))].add(
        nanoseconds(op.end - op.start));
  }
  MeanTime tail;
  for (std::size_t step = 0; step < last.size(); ++step) tail.add(nanoseconds(last[step] - last_pass[step]));

  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const std::array<MeanTime, 4>& stage : passes) {
    const auto of = [&](MeasuredKind kind) { return stage[to_size(static_cast<int>(kind))].value(); };
    const double whole = of(MeasuredKind::backward);
    stages.push_back({{"f", rounded(of(MeasuredKind::forward))},
                      {"b", rounded(of(MeasuredKind::input_gradient) + whole / 2)},
                      {"w", rounded(of(MeasuredKind::weight_gradient) + whole / 2)}});
  }
  nlohmann::ordered_json out;
  out["schema"] = "sluice.scenario/1";
  out["parallelism"] = {{"pp", run.ranks}};
  if (run.chunks > 1 ||
      (!analysis.schedule.family.empty() && find_family(analysis.schedule.family).fixed_chunks == 0)) {
    out["parallelism"]["vpp"] = run.chunks;
  }
  out["batch"] = {{"microbatches", run.microbatches}};
  out["schedule"] = {{"name", analysis.schedule.family.empty() ? "1f1b" : analysis.schedule.family}};
  out["cost"] = {{"kind", "uniform"},
                 {"stages", std::move(stages)},
                 {"comm", rounded(median_transfer(analysis.graphs))},
                 {"optimizer", rounded(tail.value())}};
  return out;
}

std::string analysis_text(const Analysis& analysis, std::size_t top) { return AnalysisText(analysis, top).text(); }

OrderedJson analysis_document(const Analysis& analysis) {
  const MeasuredRun& run = analysis.run;
  OrderedJson out;
  out["schema"] = "sluice.analysis/1";
  out["answer"] = answer_document(analysis.answer, analysis.what_if.measured);
  out["timeline"] = {
      {"format", run.format},       {"steps", run.steps},   {"replicas", run.replicas},         {"ranks", run.ranks},
      {"tensor_ranks", run.shards}, {"chunks", run.chunks}, {"microbatches", run.microbatches}, {"ops", run.ops.size()},
      {"notes", run.notes}};
  out["schedule"] = {{"family", analysis.schedule.family},
                     {"deviations", analysis.schedule.deviations},
                     {"num_deviations", analysis.schedule.num_deviations}};
  if (analysis.schedule.family.empty()) out["schedule"]["family"] = nullptr;
  const Counterfactuals& what_if = analysis.what_if;
  out["mean_step"] = {{"measured_s", what_if.measured},
                      {"replayed_s", what_if.replayed},
                      {"no_delays_s", what_if.no_delays},
                      {"free_transfers_s", what_if.free_transfers},
                      {"equal_stages_s", what_if.equal_stages}};
  if (what_if.lighter_last) out["mean_step"]["lighter_last_stage_s"] = *what_if.lighter_last;
  out["slowdown"]["early_receives"] =
      analysis.early_receives ? slowdown_document(analysis, *analysis.early_receives) : OrderedJson(nullptr);
  out["slowdown"]["ordered_receives"] = slowdown_document(analysis, analysis.observed);
  auto& causes = out["causes"] = OrderedJson::array();
  for (const SlowCause& cause : what_if.causes) {
    OrderedJson each = {{"kind", std::string(name_of(cause.kind))},
                        {"what", cause.what},
                        {"saved_s", cause.saved_seconds},
                        {"gpu_hours_per_day", gpu_hours_per_day(analysis, cause.saved_seconds)}};
    if (cause.worker >= 0) {
      if (cause.kind != SlowCause::Kind::replica) each["rank"] = run.rank_of(cause.worker);
      if (cause.kind != SlowCause::Kind::stage) each["replica"] = run.replica_of(cause.worker);
    }
    if (cause.step >= 0) each["step"] = cause.step;
    causes.push_back(std::move(each));
  }
  return out;
}

MeasuredSteps read_steps(const AnalysisRequest& request) {
  std::optional<NameMap> names;
  if (!request.names.empty()) names.emplace(read_file(request.names), request.names);
  MeasuredSteps steps;
  steps.run =
      read_measured_run(trace_files(request.timeline),
                        {.names = names ? &*names : nullptr, .profile = &steps.profile, .kernels = request.kernels});
  ::malloc_trim(0);  // what reading took is as large as the run, in blocks that the heap would keep
  return steps;
}

Analysis analyze(MeasuredRun read, const AnalysisRequest& request) {
  Analysis analysis;
  if (!request.all_steps) drop_warm_up(read);
  align_worker_clocks(read);
  analysis.run = with_estimated_transfers(std::move(read));
  MeasuredRun& run = analysis.run;
  drop_steps_without_graph(run, request.timeline);
  if (request.layers && *request.layers < run.stages()) {
    throw InputError(
        fmt::format("--layers {}: expected at least one for each of {} stages", *request.layers, run.stages()));
  }
  analysis.gpus = request.gpus.value_or(run.workers());
  analysis.schedule = recognise(run);
  // The rule with early receives describes 1F1B and its interleaved variant; other schedules may contradict it.
  try {
    analysis.early_receives = slowdown_of(run, step_graphs(run, ReceiveRule::early));
  } catch (const InputError& error) {
    run.notes.push_back(
        fmt::format("no slowdown with early receives, a rule that does not describe this run: {}", error.what()));
  }
  analysis.graphs = step_graphs(run, ReceiveRule::observed);
  analysis.observed = slowdown_of(run, analysis.graphs);
  analysis.what_if = causes_of_slowness(run, analysis.graphs, request.layers);
  analysis.answer = answer_of(run, analysis.graphs, analysis.what_if, request.layers);
  const double error = analysis.what_if.replayed / analysis.what_if.measured - 1;
  if (std::abs(error) > kMostReplayError) {
    run.notes.push_back(
        fmt::format("replayed steps differ by {:+.1f} % from the measured ones: the timeline waits for other reasons "
                    "than the replay, "
                    "and causes and what-ifs are as uncertain",
                    100 * error));
  }
  return analysis;
}

}  // namespace sluice::tools
