#include "tools/simulate/live_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "model/cluster/cluster.h"
#include "model/errors.h"
#include "model/input/json_reader.h"
#include "model/scenario/automatic.h"
#include "model/schedule/pytorch_csv.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_setup.h"
#include "tools/command/assumptions.h"
#include "tools/command/document.h"
#include "tools/command/exit_codes.h"
#include "tools/simulate/families_json.h"
#include "tools/simulate/report_run.h"
#include "tools/simulate/simulation_output.h"
#include "traces/report/report_data.h"
#include "traces/report/report_tables.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

void refuse_too_many_ops(const Schedule& schedule) {
  if (schedule.num_ops() <= kMostLiveOps) return;
  throw InputError(
      fmt::format("{} ops: a live page simulates up to {}. Use fewer microbatches, slices or chunks, or "
                  "'sluice simulate'",
                  grouped(static_cast<double>(schedule.num_ops())), grouped(static_cast<double>(kMostLiveOps))));
}

PlannedSetup live_setup(const Json& request, const Scenario& scenario) {
  if (request.contains("schedule")) {
    Schedule schedule = parse_schedule(scenario, request["schedule"].get_ref<const std::string&>());
    refuse_too_many_ops(schedule);
    return {.setup = std::make_unique<Setup>(scenario, std::move(schedule))};
  }
  const bool searched = scenario.encoder.placement == EncoderPlacement::bubbles;
  if (scenario.schedule == kAutomatic || searched) return planned_setup(scenario);
  Schedule schedule = make_schedule(scenario);
  refuse_too_many_ops(schedule);
  return {.setup = std::make_unique<Setup>(scenario, std::move(schedule))};
}

// The highest number of microbatches in flight, and whether a cap allows it.
ReportMetric in_flight_metric(const Prediction& prediction, const std::optional<double>& cap) {
  const auto& ranks = prediction.metrics.ranks;
  const auto most = std::max_element(ranks.begin(), ranks.end(), [](const RankMetrics& a, const RankMetrics& b) {
    return a.peak_in_flight < b.peak_in_flight;
  });
  ReportMetric out{.label = "In flight", .value = "0", .explanation = "", .number = 0, .warning = ""};
  if (most == ranks.end()) return out;
  constexpr double kRounding = 1e-9;
  out.value = fmt::format("{:.4g}", most->peak_in_flight);
  out.number = most->peak_in_flight;
  out.explanation =
      fmt::format("highest number of microbatches whose activations a rank holds: rank {}", most - ranks.begin());
  if (!cap) return out;
  const auto above = std::count_if(ranks.begin(), ranks.end(),
                                   [&](const RankMetrics& rank) { return rank.peak_in_flight > *cap + kRounding; });
  out.explanation += fmt::format("; cap {:.4g}", *cap);
  if (above > 0) out.warning = counted(above, "rank", "s") + " above the cap";
  return out;
}

// The highest memory peak against a cap in bytes.
ReportMetric capped_memory_metric(const Prediction& prediction, std::int64_t cap) {
  const auto most =
      std::max_element(prediction.memory.begin(), prediction.memory.end(),
                       [](const RankMemory& a, const RankMemory& b) { return a.peak_bytes < b.peak_bytes; });
  const auto above = std::count_if(prediction.memory.begin(), prediction.memory.end(),
                                   [&](const RankMemory& rank) { return rank.peak_bytes > cap; });
  return {.label = "Tensors",
          .value = fmt::format("{:.1f} GiB", static_cast<double>(most->peak_bytes) / kGiB),
          .explanation = fmt::format("highest peak: rank {}; cap {:.1f} GiB", most - prediction.memory.begin(),
                                     static_cast<double>(cap) / kGiB),
          .number = static_cast<double>(most->peak_bytes),
          .warning = above > 0 ? counted(above, "rank", "s") + " above the cap" : ""};
}

// A predicted run of a request.
struct LiveRun {
  explicit LiveRun(const Json& request)
      : cap(request.contains("cap") ? parse_memory_cap(request["cap"].get<std::string>(), "memory cap") : MemoryCap{}),
        planned(live_setup(request, scenario_from_json(request.at("scenario"), "scenario", ""))),
        prediction(predict(*planned.setup, {.keep_memory = true})) {}

  MemoryCap cap;
  PlannedSetup planned;
  Prediction prediction;
};

// Refers to `of`.
ReportRun live_report_run(const LiveRun& of) {
  const auto& [cap, planned, prediction] = of;
  const Setup& setup = *planned.setup;
  ReportRun run = report_run(setup, prediction, "");
  run.headline.push_back(in_flight_metric(prediction, cap.microbatches));
  if (cap.bytes) {
    run.drawn.capacity_bytes = cap.bytes;
    if (setup.graph().has_bytes()) run.headline.push_back(capped_memory_metric(prediction, *cap.bytes));
  }
  if (planned.automatic) {
    run.headline.push_back({.label = "Search",
                            .value = planned.automatic->found_by,
                            .explanation = automatic_line(*planned.automatic),
                            .number = {},
                            .warning = ""});
  }
  return run;
}

LiveResult simulated(const Json& request) {
  const LiveRun run(request);
  const auto& [cap, planned, prediction] = run;
  std::optional<LiveRun> beside;
  if (request.contains("beside")) beside.emplace(request["beside"]);
  Report report;
  report.runs.push_back(live_report_run(run));
  if (beside) report.runs.push_back(live_report_run(*beside));
  ReportData data = encode_run(report.runs.front().drawn);
  nlohmann::ordered_json header;
  header["name"] = report.runs.front().name;
  header["sizes"] = live_sizes(*planned.setup);
  header["headline"] = headline_html(report);
  if (request.value("tables", true)) {
    header["idle"] = idle_html(report);
    header["ranks"] = ranks_html(report);
    add_assumptions(report, *planned.setup, request["scenario"]);
    header["assumed"] = assumptions_html(report);
  }
  if (request.value("csv", false)) {
    try {
      header["csv"] = schedule_to_csv(planned.setup->schedule());
    } catch (const InputError& error) {
      header["csv_error"] = error.what();
    }
  }
  if (request.value("document", false)) {
    const AutoResult* automatic = planned.automatic ? &*planned.automatic : nullptr;
    OrderedJson document = simulation_json(*planned.setup, prediction, {}, {}, {}, automatic);
    const Setup& setup = *planned.setup;
    add_assumptions(document, {setup.scenario(), request["scenario"], kSimulate, has_joint_blocks(setup.schedule())});
    header["document"] = json_text(std::move(document));
  }
  // The run's header is JSON already.
  std::string text = header.dump();
  text.back() = ',';
  return {.status = kDone, .header = text + "\"run\":" + data.header + "}", .columns = std::move(data.columns)};
}

LiveResult failed(int status, std::string message) {
  return {.status = status, .header = std::move(message), .columns = ""};
}

}  // namespace

OrderedJson live_sizes(const Setup& setup) {
  const Schedule& schedule = setup.schedule();
  const Training& training = setup.scenario().training;
  return {{"pp", schedule.num_ranks()},
          {"vpp", schedule.num_chunks()},
          {"microbatches", schedule.num_microbatches()},
          {"slices", schedule.max_slices()},
          {"batches", schedule.num_batches()},
          {"dp", training.dp},
          {"mbs", training.micro_batch},
          {"seq", training.sequence_length}};
}

LiveResult run_live(std::string_view request) {
  try {
    const Json parsed = parse_json(request, "request");
    if (parsed.contains("families")) {
      OrderedJson choices = families_json();
      choices["models"] = catalogue_models();
      choices["clusters"] = catalogue_nodes();
      return {.status = kDone, .header = choices.dump(), .columns = ""};
    }
    return simulated(parsed);
  } catch (const DoesNotFit& error) {
    return failed(kNotFeasible, error.what());
  } catch (const InputError& error) {
    return failed(kWrongInput, error.what());
  } catch (const ScheduleError& error) {
    return failed(kInvalidSchedule, error.what());
  } catch (const std::bad_alloc&) {
    return failed(kWrongInput, "out of memory: use fewer microbatches, slices or chunks, or 'sluice simulate'");
  } catch (const std::exception& error) {
    return failed(kInternalError, error.what());
  }
}

}  // namespace sluice::tools
