#include "tools/plan/plan_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "import/megatron_arguments.h"
#include "model/errors.h"
#include "model/scenario/settings.h"
#include "model/scenario/setup.h"
#include "model/to_size.h"
#include "sim/engine/predict.h"
#include "sim/planner/shortlist.h"
#include "sim/planner/structure_runs.h"
#include "tools/command/assumptions.h"
#include "tools/command/document.h"
#include "tools/plan/plan_rows.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

// Number of configurations of which the exact memory is computed to find the smallest.
constexpr std::size_t kMostSmallest = 512;
// Number of configurations outside the ranking in a JSON document, of up to millions. The CSV table has all.
constexpr std::size_t kMostOthers = 10'000;

struct Counts {
  int refused = 0, over = 0, bounded = 0, simulated = 0, too_large = 0, open = 0;
};

Counts counts_of(const Plan& plan) {
  Counts out;
  for (const PlanResult& result : plan.results()) {
    switch (result.status) {
      case PlanStatus::open: ++out.open; break;
      case PlanStatus::refused: ++out.refused; break;
      case PlanStatus::over: ++out.over; break;
      case PlanStatus::bounded: ++out.bounded; break;
      case PlanStatus::simulated:
        ++out.simulated;
        out.too_large += result.fits ? 0 : 1;
        break;
    }
  }
  return out;
}

// Returns the number of configurations that differ from the first by less than the model error, including the first.
int within_error(const Plan& plan, const std::vector<int>& ranking, double error) {
  const auto best = plan.results()[ranking.front()].iteration;
  const auto beyond = std::find_if(ranking.begin(), ranking.end(), [&](int point) {
    const PlanResult& result = plan.results()[point];
    return result.tight != plan.results()[ranking.front()].tight ||
           to_seconds(result.iteration) > to_seconds(best) * (1 + error);
  });
  return static_cast<int>(beyond - ranking.begin());
}

auto place_of(int point, const std::vector<int>& ranking) {
  return std::find(ranking.begin(), ranking.end(), point) - ranking.begin() + 1;
}

// Returns the places of the Pareto front in the ranking: "#1 (2.1 s, 70 GiB), #4 (2.3 s, 61 GiB) and 3 more".
std::string front_text(const Plan& plan, const std::vector<int>& ranking) {
  constexpr std::size_t kShown = 3;
  std::string out;
  const std::vector<int> front = plan.pareto_front();
  for (std::size_t i = 0; i < std::min(kShown, front.size()); ++i) {
    const PlanResult& result = plan.results()[front[i]];
    fmt::format_to(std::back_inserter(out), "{}#{} ({}, {:.1f} GiB)", i > 0 ? ", " : "", place_of(front[i], ranking),
                   time_text(result.iteration), gib(result.needed_bytes));
  }
  if (front.size() > kShown) out += fmt::format(" and {} more", front.size() - kShown);
  return out;
}

// Returns why the fastest configuration is not the first: it needs some of the memory margin.
std::string faster_text(const Plan& plan, const std::vector<int>& ranking) {
  const int fastest = plan.pareto_front().front();
  const PlanResult& first = plan.results()[ranking.front()];
  const PlanResult& faster = plan.results()[fastest];
  const Gpu& gpu = plan.base().cluster->gpu;
  if (first.tight) return "Every configuration that fits needs some of the memory margin (--memory-margin).\n";
  if (faster.iteration >= first.iteration) return "";
  const double left = 1 - static_cast<double>(faster.needed_bytes) / static_cast<double>(gpu.memory_bytes);
  return fmt::format(
      "#{} is {:.1f} % faster than #1, but needs {:.1f} of {:.1f} GiB: less than the margin of {:.1f} % is left "
      "(--memory-margin {:.1f}%).\n",
      place_of(fastest, ranking), 100 * (1 - to_seconds(faster.iteration) / to_seconds(first.iteration)),
      gib(faster.needed_bytes), gib(gpu.memory_bytes), 100 * gpu.memory_margin, std::floor(1000 * left) / 10);
}

// Returns the first that each framework runs as it is.
std::string runners_text(const Plan& plan, const std::vector<int>& ranking) {
  std::vector<std::string> found;
  const double first = to_seconds(plan.results()[ranking.front()].iteration);
  for (const Framework& framework : all_frameworks()) {
    const auto runs = [&](int point) { return framework.refusal(plan.base(), plan.points()[point]).empty(); };
    const auto best = std::find_if(ranking.begin(), ranking.end(), runs);
    const double slower = best == ranking.end() ? 0 : to_seconds(plan.results()[*best].iteration) / first - 1;
    std::string& text = found.emplace_back(framework.title);
    text += best == ranking.end() ? " none" : fmt::format(" #{}", best - ranking.begin() + 1);
    if (best != ranking.begin() && best != ranking.end()) text += fmt::format(" ({:+.1f} %)", 100 * slower);
  }
  return fmt::format("Runs as it is, of those simulated: {}\n", fmt::join(found, ", "));
}

// The scenario document with what the search chose besides the sizes, so that it is not assumed.
nlohmann::json chosen_document(const PlanReport& report, const PlanPoint& point) {
  nlohmann::json out = report.document;
  const auto set = [&](const char* flag, const nlohmann::json& value) {
    out[nlohmann::json::json_pointer(std::string(find_setting_of_flag(flag)->pointer))] = value;
  };
  if (point.dispatcher) set("--moe-token-dispatcher", name_of(*point.dispatcher));
  if (point.offloads_optimizer) set("--optimizer-cpu-offload", true);
  if (point.encoder) set("--encoder-placement", name_of(point.encoder->placement));
  return out;
}

OrderedJson shown_json(const PlanReport& report, const std::vector<int>& ranking) {
  OrderedJson out = OrderedJson::array();
  for (const int row : report.show) {
    const PlanPoint& point = report.plan->points()[ranking[to_size(row - 1)]];
    OrderedJson& shown = out.emplace_back(OrderedJson{{"place", row - 1}});
    for (const Framework& framework : all_frameworks()) {
      const std::string refusal = framework.refusal(report.plan->base(), point);
      const std::string key(refusal.empty() ? "configurations" : "refusals");
      shown[key][std::string(framework.name)] =
          refusal.empty() ? framework.configuration(report.plan->base(), report.plan->space(), point) : refusal;
    }
  }
  return out;
}

// Returns how the framework runs the first configuration.
std::string framework_text(const Framework& framework, const Plan& plan, const std::vector<int>& ranking) {
  const std::string text = framework.configuration(plan.base(), plan.space(), plan.points()[ranking.front()]);
  const bool lines = text.find('\n') != std::string::npos;
  return fmt::format("run #1 with {}:{}{}\n", framework.title, lines ? "\n" : "  ",
                     lines ? text.substr(0, text.find_last_not_of('\n') + 1) : text);
}

// Returns the places in the ranking to measure. Configurations within the memory margin are left out where others fit.
// Of those that differ in the layers of stages, the optimizer's distribution or the placement alone, the errors are
// the same: the predicted fastest is a candidate.
Shortlist shortlist_of(const PlanReport& report, const std::vector<int>& ranking) {
  const Plan& plan = *report.plan;
  std::vector<Candidate> candidates;
  std::vector<int> places;
  std::vector<PlanPoint> kinds;
  std::map<std::pair<int, int>, int> groups;
  for (const int& index : ranking) {
    const PlanPoint& point = plan.points()[index];
    const PlanResult& result = plan.results()[index];
    if (result.tight && !plan.results()[ranking.front()].tight) break;
    PlanPoint kind = point;
    kind.first_layers = kind.last_layers = 0;
    kind.stage_layers.clear();
    kind.mtp_stage = kLastStage;
    kind.distributed_optimizer = kind.pipeline_before_data = false;
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    kinds.push_back(kind);
    places.push_back(static_cast<int>(&index - ranking.data()));
    const auto group = groups.try_emplace({point.tp, point.micro_batch}, static_cast<int>(groups.size()));
    candidates.push_back({to_seconds(result.iteration), group.first->second});
  }
  Shortlist out = shortlist(candidates, report.shortlist, {.group = report.errors.group, .own = report.errors.own});
  for (int& chosen : out.chosen) chosen = places[chosen];
  return out;
}

std::string shortlist_text(const PlanReport& report, const std::vector<int>& ranking) {
  const Shortlist found = shortlist_of(report, ranking);
  std::string out = fmt::format(
      "shortlist: measure these {}; their fastest is expected to be within {:.1f} % of the fastest of all (where "
      "predictions with equal tp and mbs err together by {:.0f} %, each by {:.0f} %):\n",
      found.chosen.size(), 100 * found.loss, 100 * report.errors.group, 100 * report.errors.own);
  for (const int place : found.chosen) {
    const int point = ranking[place];
    fmt::format_to(std::back_inserter(out), "  #{:<4} {}  {}\n", place + 1,
                   time_text(report.plan->results()[point].iteration),
                   flags_of(report.plan->base(), report.plan->space(), report.plan->points()[point]));
  }
  return out;
}

OrderedJson ranked_json(const Plan& plan, int index) {
  const PlanPoint& point = plan.points()[index];
  const PlanResult& result = plan.results()[index];
  OrderedJson out = sizes_json(plan.base(), point);
  out["iteration_s"] = to_seconds(result.iteration);
  out["makespan_s"] = to_seconds(result.makespan);
  out["bubble_fraction"] = result.bubble_fraction;
  out["tokens_per_s_per_device"] = tokens_per_device(point, result);
  out["model_tflops_per_device"] = result.throughput.model_tflops_per_device;
  out["mfu"] = result.throughput.mfu;
  if (const std::string remark = mfu_remark(plan.base(), result.throughput.mfu); !remark.empty()) {
    out["mfu_remark"] = remark;
  }
  out["needed_memory_bytes"] = result.needed_bytes;
  out["within_memory_margin"] = result.tight;
  if (result.extrapolated) out["extrapolated"] = true;
  out["rank"] = result.rank;
  if (const std::string layout = uneven_layout(plan.base(), point); !layout.empty()) out["pipeline_layout"] = layout;
  out["runs_on"] = runners_of(plan.base(), point);
  out["assumptions"] = assumptions_of(plan.base(), point);
  out["flags"] = flags_of(plan.base(), plan.space(), point);
  return out;
}

// Simulated configurations that do not fit have the status of those rejected before simulation.
std::string_view status_of(const PlanResult& result) {
  return result.status == PlanStatus::simulated && !result.fits ? name_of(PlanStatus::over) : name_of(result.status);
}

// Returns the configurations that are not in the ranking, those first that came closest to it: simulated, ruled out by
// their bound, not fitting, refused; the fastest, or those with the least memory, first.
std::vector<int> unranked(const Plan& plan) {
  std::vector<int> out;
  for (int point = 0; point < std::ssize(plan.points()); ++point) {
    const PlanResult& result = plan.results()[to_size(point)];
    if (result.status != PlanStatus::simulated || !result.fits) out.push_back(point);
  }
  constexpr std::array kNearness = {PlanStatus::simulated, PlanStatus::bounded, PlanStatus::open, PlanStatus::over,
                                    PlanStatus::refused};
  const auto key = [&](int point) {
    const PlanResult& result = plan.results()[to_size(point)];
    const bool over = result.status == PlanStatus::over;
    return std::tuple(std::find(kNearness.begin(), kNearness.end(), result.status),
                      over ? result.needed_bytes : result.bound.count());
  };
  std::stable_sort(out.begin(), out.end(), [&](int a, int b) { return key(a) < key(b); });
  return out;
}

// Returns a configuration that is not in the ranking, with the reason.
OrderedJson unranked_json(const Plan& plan, int index) {
  const PlanResult& result = plan.results()[index];
  OrderedJson out = sizes_json(plan.base(), plan.points()[index]);
  out["status"] = status_of(result);
  if (result.bound > Duration{0}) out["least_iteration_s"] = to_seconds(result.bound);
  if (result.status == PlanStatus::simulated) out["iteration_s"] = to_seconds(result.iteration);
  if (result.needed_bytes > 0) out["needed_memory_bytes"] = result.needed_bytes;
  if (!result.reason.empty()) out["reason"] = result.reason;
  return out;
}

}  // namespace

std::string gpus_text(const Scenario& base, const PlanSpace& space) {
  const Cluster& cluster = *base.cluster;
  return fmt::format("{} of {} GPUs, {} x {}", space.gpus, cluster.num_gpus(), cluster.nodes, cluster.name);
}

std::string plan_table(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const Counts counts = counts_of(plan);
  std::string out = fmt::format(
      "{} · evaluated {} · invalid {} · do not fit {}\nruled out by bounds {} · simulated {} · {:.1f} s{}\n",
      gpus_text(plan.base(), plan.space()), grouped(static_cast<double>(plan.points().size()) - counts.open),
      grouped(counts.refused), grouped(counts.over + counts.too_large), grouped(counts.bounded),
      grouped(counts.simulated), report.seconds, report.interrupted ? " · interrupted: best so far" : "");
  const std::vector<int> ranking = plan.ranking();
  out += filled_words("searched:", searched(plan));
  if (ranking.empty()) return out;
  out += ranking_text(plan, ranking, report.top);
  if (const std::string remark = mfu_remark(plan.base(), plan.results()[ranking.front()].throughput.mfu);
      !remark.empty()) {
    out += fmt::format("#1: {}\n", remark);
  }
  out += faster_text(plan, ranking);
  out += "Pareto (time, memory): " + front_text(plan, ranking) + "\n";
  for (const std::string& line : {interval_text(report.interval), such_runs_line(report.interval)}) {
    if (!line.empty()) out += fmt::format("#1: {}\n", line);
  }
  const int close = within_error(plan, ranking, report.model_error);
  if (close > 1) {
    out += fmt::format("#1 to #{} differ by less than the model error (±{:.2g} %): measure them before choosing.\n",
                       close, 100 * report.model_error);
  }
  if (report.shortlist > 0) out += shortlist_text(report, ranking);
  const Scenario fastest = scenario_of(plan.base(), plan.space(), plan.points()[ranking.front()]);
  const nlohmann::json document = chosen_document(report, plan.points()[ranking.front()]);
  out += assumptions_text({fastest, document, kPlan, has_joint_blocks(make_schedule(fastest))});
  if (report.framework != nullptr) {
    out += framework_text(*report.framework, plan, ranking);
  } else {
    out += runners_text(plan, ranking);
  }
  for (const int row : report.show) out += shown_text(plan, ranking, row);
  return report.show.empty() ? out + "--show N prints the layout, the flags and the command lines of row N.\n" : out;
}

std::string plan_json(const PlanReport& report) {
  const Plan& plan = *report.plan;
  const Counts counts = counts_of(plan);
  const std::vector<int> ranking = plan.ranking();
  OrderedJson out = {{"schema", "sluice.plan/1"},
                     {"interrupted", report.interrupted},
                     {"gpus", {{"used", plan.space().gpus}, {"cluster", plan.base().cluster->num_gpus()}}},
                     {"counts",
                      {{"evaluated", static_cast<int>(plan.points().size()) - counts.open},
                       {"refused", counts.refused},
                       {"do_not_fit", counts.over + counts.too_large},
                       {"certainly_worse", counts.bounded},
                       {"simulated", counts.simulated}}},
                     {"searched", searched(plan)},
                     {"seconds", report.seconds},
                     {"model_error", report.model_error},
                     {"capacity_bytes", plan.base().cluster->gpu.memory_bytes},
                     {"memory_margin", plan.base().cluster->gpu.memory_margin}};
  if (report.interval) out["error_class"] = interval_json(*report.interval);
  out["ranking"] = OrderedJson::array();
  const int close = ranking.empty() ? 0 : within_error(plan, ranking, report.model_error);
  for (std::size_t i = 0; i < ranking.size(); ++i) {
    OrderedJson row = ranked_json(plan, ranking[i]);
    row["within_model_error"] = static_cast<int>(i) < close;
    out["ranking"].push_back(std::move(row));
  }
  if (!ranking.empty()) {
    const Scenario fastest = scenario_of(plan.base(), plan.space(), plan.points()[ranking.front()]);
    const nlohmann::json document = chosen_document(report, plan.points()[ranking.front()]);
    add_assumptions(out, {fastest, document, kPlan, has_joint_blocks(make_schedule(fastest))});
  }
  out["pareto"] = OrderedJson::array();  // places in the ranking, from 0
  std::map<int, std::size_t> place;
  for (std::size_t i = 0; i < ranking.size(); ++i) place[ranking[i]] = i;
  for (const int point : plan.pareto_front()) out["pareto"].push_back(place.at(point));
  if (report.shortlist > 0) {
    const Shortlist found = shortlist_of(report, ranking);
    out["shortlist"] = {
        {"places", found.chosen}, {"probability", found.probability}, {"expected_loss", found.loss}};  // from 0
  }
  const Framework* const framework = report.framework;
  out["runs_on"] = framework == nullptr ? "any" : framework->name;
  out["configuration"] = nullptr;
  if (framework != nullptr && !ranking.empty()) {
    out["configuration"] = framework->configuration(plan.base(), plan.space(), plan.points()[ranking.front()]);
  }
  out["megatron"] = nullptr;
  if (const int best = plan.best_of_subset(); best >= 0) {
    out["megatron"] = {{"place", place.at(best)},
                       {"arguments", megatron_arguments(scenario_of(plan.base(), plan.space(), plan.points()[best]))}};
  }
  if (!report.show.empty()) out["shown"] = shown_json(report, ranking);
  std::vector<int> others = unranked(plan);
  const std::size_t listed = std::min(others.size(), kMostOthers);
  out["others_left_out"] = others.size() - listed;  // --csv has all
  others.resize(listed);
  std::sort(others.begin(), others.end());
  out["others"] = OrderedJson::array();
  for (const int point : others) out["others"].push_back(unranked_json(plan, point));
  return json_text(std::move(out));
}

std::string plan_csv(const Plan& plan) {
  std::string out =
      "place,status,schedule,tp,cp,pp,dp,ep,vpp,micro_batch,microbatches,slices,recompute,distributed_optimizer,"
      "pipeline_before_data,first_stage_layers,last_stage_layers,etp,recompute_layers,overlap_grad_reduce,"
      "overlap_param_gather,iteration_s,least_iteration_s,bubble_fraction,tokens_per_s_per_device,mfu,"
      "needed_memory_bytes,dispatcher,optimizer_offload,encoder,pipeline_layout,recompute_modules,reason\n";
  std::vector<int> order = plan.ranking();
  const std::size_t ranked = order.size();
  std::vector<char> listed(plan.points().size(), 0);
  for (const int point : order) listed[point] = 1;
  for (int point = 0; point < std::ssize(plan.points()); ++point) {
    if (listed[point] == 0) order.push_back(point);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const PlanPoint& point = plan.points()[order[i]];
    const PlanResult& result = plan.results()[order[i]];
    const bool simulated = result.status == PlanStatus::simulated;
    std::string reason = result.reason;
    for (std::size_t quote = reason.find('"'); quote != std::string::npos; quote = reason.find('"', quote + 2)) {
      reason.insert(quote, 1, '"');
    }
    const auto figure = [&](bool there, double value) { return there ? fmt::format("{:.9g}", value) : std::string(); };
    fmt::format_to(
        std::back_inserter(out),
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
        i < ranked ? std::to_string(i + 1) : "", status_of(result), point.family->name, point.tp, point.cp, point.pp,
        point.dp, point.ep, point.chunks, point.micro_batch, point.microbatches, point.slices, recompute_of(point),
        point.distributed_optimizer ? 1 : 0, point.pipeline_before_data ? 1 : 0, point.first_layers, point.last_layers,
        point.etp, point.recompute_layers, point.overlap_grad_reduce ? 1 : 0, point.overlap_param_gather ? 1 : 0,
        figure(simulated, to_seconds(result.iteration)), figure(result.bound > Duration{0}, to_seconds(result.bound)),
        figure(simulated, result.bubble_fraction), figure(simulated, tokens_per_device(point, result)),
        figure(simulated, result.throughput.mfu), result.needed_bytes > 0 ? std::to_string(result.needed_bytes) : "",
        point.ep > 1 ? dispatcher_of(plan.base(), point) : "", offloaded_part(plan.base(), point),
        plan.base().model->encoder ? encoder_of(plan.base(), point) : "",
        i < ranked ? uneven_layout(plan.base(), point) : "",
        point.recompute == Training::Recompute::selective
            ? fmt::format("\"{}\"", fmt::join(names_of(point.recompute_modules), ","))
            : "",

        reason.empty() ? "" : '"' + reason + '"');
  }
  return out;
}

std::string plan_invalid(const Plan& plan) {
  const bool all = std::all_of(plan.results().begin(), plan.results().end(),
                               [](const PlanResult& result) { return result.status == PlanStatus::refused; });
  return all && !plan.results().empty() ? plan.results().front().reason : "";
}

void check_shown(const PlanReport& report) {
  const auto rows = static_cast<int>(report.plan->ranking().size());
  for (const int row : report.show) {
    if (row > rows)
      throw InputError(fmt::format("plan: --show: expected a row of the ranking, 1 to {}, got {}", rows, row));
  }
}

std::string plan_refusal(const Plan& plan) {
  if (!plan.ranking().empty()) return "";
  // Configurations over the memory have lower bounds. From the lowest on, the exact numbers are computed, until no
  // bound is below the best; full recomputation and small microbatches come first of equal bounds.
  std::vector<int> order;
  for (int point = 0; point < std::ssize(plan.points()); ++point) {
    if (plan.results()[point].needed_bytes > 0) order.push_back(point);
  }
  if (order.empty()) return "plan: no configuration was evaluated";
  const auto key = [&](int point) {
    const PlanPoint& of = plan.points()[point];
    return std::tuple(plan.results()[point].needed_bytes, of.recompute != Training::Recompute::full, of.micro_batch,
                      -of.slices, point);
  };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
  int closest = order.front();
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::size_t tried = 0;
  for (; tried < std::min(order.size(), kMostSmallest); ++tried) {
    if (plan.results()[order[tried]].needed_bytes >= least) break;
    const Scenario scenario = scenario_of(plan.base(), plan.space(), plan.points()[order[tried]]);
    const PlanResult exact = StructureRuns(scenario).run(scenario);
    if (exact.needed_bytes == 0 || exact.needed_bytes >= least) continue;
    least = exact.needed_bytes;
    closest = order[tried];
  }
  const bool proven = tried == order.size() || plan.results()[order[tried]].needed_bytes >= least;
  if (least == std::numeric_limits<std::int64_t>::max()) least = plan.results()[closest].needed_bytes;
  return fmt::format("plan: no configuration fits in memory: the smallest {} {:.1f} of {:.1f} GiB ({})",
                     proven ? "needs" : "found needs", gib(least), gib(plan.base().cluster->gpu.memory_bytes),
                     flags_of(plan.base(), plan.space(), plan.points()[closest]));
}

}  // namespace sluice::tools
