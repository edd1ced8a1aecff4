#include "tools/simulate/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "model/errors.h"
#include "sim/engine/parallel.h"
#include "sim/engine/predict.h"
#include "sim/engine/shortened.h"
#include "sim/planner/auto_setup.h"
#include "tools/command/assumptions.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/scenario_flags.h"
#include "tools/simulate/schedule_comparison.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t kMostPoints = 100'000;
constexpr const char* kInterruptedPoint = "interrupted";

// Whether the number of GPUs varies.
bool gpus_vary(const Sweep& sweep) {
  std::set<std::int64_t> numbers;
  for (const SweepPoint& point : sweep.points) {
    if (point.has_result()) numbers.insert(point.result["gpus"].get<std::int64_t>());
  }
  return numbers.size() > 1;
}

// Returns the rows of the tables: the results, and the text of the values, by which they are written.
OrderedJson table_rows(const Sweep& sweep) {
  OrderedJson rows = OrderedJson::array();
  for (const SweepPoint& point : sweep.points) {
    OrderedJson& row = rows.emplace_back(point.has_result() ? point.result : OrderedJson{{"error", point.error}});
    row["axes"] = point.values;
    if (!point.fits()) row["verdict"] = " does not fit";
  }
  return rows;
}

// Whether the value at this path determines the schedule family.
bool names_schedule(const std::string& pointer) { return pointer == "/schedule/name" || pointer == "/schedule"; }

[[noreturn]] void fail_exclusion(const SweepAxis& axis, const SweepAxis& other) {
  throw InputError(fmt::format("--sweep: {} and {} exclude each other: sweep one of them", axis.key, other.key));
}

// Throws InputError for keys that exclude each other, of which a document would have only the last.
void check_exclusions(const std::vector<SweepAxis>& axes, const std::vector<std::string>& pointers) {
  for (std::size_t b = 1; b < axes.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (ScenarioFlags::exclude_each_other(pointers[a], pointers[b])) fail_exclusion(axes[a], axes[b]);
    }
  }
}

// Returns `base` with one value per axis. Throws InputError if a later axis replaces a part of an earlier one's value,
// which may be an object.
nlohmann::json document_with(const nlohmann::json& base, const std::vector<SweepAxis>& axes,
                             const std::vector<std::string>& pointers, const std::vector<std::string>& values,
                             const std::string& file) {
  nlohmann::json document = base;
  std::vector<nlohmann::json> set;
  for (std::size_t b = 0; b < axes.size(); ++b) {
    ScenarioFlags::set(document, axes[b].key, values[b], file);
    set.push_back(document.at(nlohmann::json::json_pointer(pointers[b])));
    for (std::size_t a = 0; a < b; ++a) {
      const nlohmann::json::json_pointer place(pointers[a]);
      nlohmann::json both = document.contains(place) ? document.at(place) : nlohmann::json();
      both.merge_patch(set[a]);
      if (!document.contains(place) || both != document.at(place)) fail_exclusion(axes[a], axes[b]);
    }
  }
  return document;
}

// Predicts the combination of `point`'s values. Once `*stop` is set, it may get no result. Returns its document.
nlohmann::json predict_point(const nlohmann::json& base, const std::string& file, const std::vector<SweepAxis>& axes,
                             const std::vector<std::string>& fixed, SweepPoint& point, const std::atomic<bool>* stop) {
  nlohmann::json document = base;
  try {
    document = document_with(base, axes, fixed, point.values, file);
    ScenarioFlags::Adapted adapted;
    if (std::any_of(fixed.begin(), fixed.end(), names_schedule)) {
      const nlohmann::json given = document;
      adapted = ScenarioFlags::adapt_to_family(document, ScenarioFlags::schedule_of(base), fixed);
      const auto read = [&](const nlohmann::json& each) { return ScenarioFlags::read(each, file); };
      choose_own_best(document, given, fixed, read, adapted, stop);
    }
    const Scenario scenario = ScenarioFlags::read(document, file);
    auto brief = predict_shortened(scenario);
    const PlannedSetup planned = brief ? PlannedSetup{} : planned_setup(scenario, {}, stop);
    if (stop != nullptr && *stop) return document;
    const Setup& setup = brief ? *brief->setup : *planned.setup;
    Prediction prediction = brief ? std::move(brief->prediction) : predict(setup);
    if (planned.batch) fit_all_replicas(scenario, *planned.batch, prediction);
    point.result = run_results(setup, prediction);
    point.warning = calibration_warning(setup.scenario());
    if (point.warning.empty()) point.warning = assumed_times_line(setup.scenario());
    if (point.warning.empty() && !point.result["mfu"].is_null()) {
      point.warning = mfu_remark(setup.scenario(), point.result["mfu"].get<double>());
    }
    point.adapted = std::move(adapted);
  } catch (const InputError& error) {
    point.error = ScenarioFlags::naming_flags(error.what(), document, file);
  } catch (const ScheduleError& error) {
    point.error = error.what();
  }
  return document;
}

}  // namespace

OrderedJson run_results(const Setup& setup, const Prediction& prediction) {
  const Throughput& throughput = prediction.throughput;
  const std::int64_t gpus = setup.scenario().training.world_size();
  double peak_in_flight = 0;
  for (const RankMetrics& rank : prediction.metrics.ranks)
    peak_in_flight = std::max(peak_in_flight, rank.peak_in_flight);
  OrderedJson out = {{"iteration_s", prediction.iteration_s()},
                     {"makespan_s", prediction.metrics.makespan},
                     {"bubble_fraction", prediction.metrics.bubble_fraction},
                     {"peak_in_flight", peak_in_flight},
                     {"gpus", gpus},
                     {"tokens_per_s", known(throughput.tokens_per_s)},
                     {"tokens_per_s_per_device", known(throughput.tokens_per_s / static_cast<double>(gpus))},
                     {"model_tflops_per_device", known(throughput.model_tflops_per_device)},
                     {"mfu", known(throughput.mfu)},
                     {"peak_memory_bytes", nullptr}};
  if (prediction.fit) {
    out["peak_memory_bytes"] = prediction.fit->needed_bytes;
    out["fits"] = prediction.fit->fits;
  } else if (setup.graph().has_bytes()) {
    out["peak_memory_bytes"] =
        std::max_element(prediction.memory.begin(), prediction.memory.end(),
                         [](const RankMemory& a, const RankMemory& b) { return a.peak_bytes < b.peak_bytes; })
            ->peak_bytes;
  }
  if (prediction.trials) {
    out["median_s"] = prediction.trials->quantile(0.5);
    out["p95_s"] = prediction.trials->quantile(0.95);
  }
  return out;
}

SweepAxis parse_sweep_axis(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
    throw InputError(fmt::format("--sweep: expected key=a,b,c, got '{}'", text));
  }
  SweepAxis axis{.key = text.substr(0, equals)};
  std::string value;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = equals + 1; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && depth == 0 && !quoted) {
      axis.values.push_back(std::move(value));
      value.clear();
    } else {
      value += c;
    }
  }
  axis.values.push_back(std::move(value));
  for (const std::string& each : axis.values) {
    if (each.empty()) throw InputError(fmt::format("--sweep: expected values between the commas, got '{}'", text));
  }
  return axis;
}

Sweep run_sweep(const nlohmann::json& base, const std::string& file, std::vector<SweepAxis> axes,
                const std::atomic<bool>* stop) {
  Sweep sweep{.axes = std::move(axes)};
  std::int64_t count = 1;
  std::vector<std::string> fixed;
  for (const SweepAxis& axis : sweep.axes) {
    fixed.push_back(ScenarioFlags::pointer_of(axis.key));
    nlohmann::json trial = base;
    ScenarioFlags::set(trial, axis.key, axis.values.front(), file);  // an unknown key fails the whole sweep
    count *= std::ssize(axis.values);
    if (count > kMostPoints) throw InputError(fmt::format("--sweep: more than {} combinations", kMostPoints));
  }
  check_exclusions(sweep.axes, fixed);
  const auto stopped = [stop] { return stop != nullptr && *stop; };
  sweep.points.resize(count);
  std::mutex mutex;
  std::int64_t first = count;  // with a result
  nlohmann::json document;     // of it
  Progress progress("predicted", count);
  std::atomic<std::int64_t> done = 0;
  parallel_for(count, [&](std::int64_t index) {
    SweepPoint& point = sweep.points[index];
    point.values.resize(sweep.axes.size());
    std::int64_t rest = index;
    for (std::size_t a = sweep.axes.size(); a-- > 0;) {
      const auto& values = sweep.axes[a].values;
      point.values[a] = values[rest % std::ssize(values)];
      rest /= std::ssize(values);
    }
    if (!stopped()) {
      nlohmann::json predicted = predict_point(base, file, sweep.axes, fixed, point, stop);
      const std::scoped_lock lock(mutex);
      if (point.has_result() && index < first) {
        first = index;
        document = std::move(predicted);
      }
    }
    if (!stopped()) return progress.done(++done);
    if (!point.has_result()) point.error = kInterruptedPoint;
  });
  if (first == count) return sweep;
  const Scenario scenario = ScenarioFlags::read(document, file);
  const bool joint = scenario.schedule != kAutomatic && has_joint_blocks(make_schedule(scenario));
  add_assumptions(sweep.rests_on, sweep.assumed, {scenario, document, kSimulate, joint});
  return sweep;
}

std::string sweep_table(const Sweep& sweep) {
  const bool gpus = gpus_vary(sweep);
  std::string columns;
  for (std::size_t a = 0; a < sweep.axes.size(); ++a) columns += fmt::format("{}={{axes/{}}}|", sweep.axes[a].key, a);
  if (gpus) columns += "GPUs=[{gpus}]|";
  columns += "iteration=[{iteration_s:t}]|bubble=[{bubble_fraction:.1%}]|in flight=[{peak_in_flight:.4g}]|";
  columns += "tokens/s=[{tokens_per_s:k}]|";
  if (gpus) columns += "tokens/s/GPU=[{tokens_per_s_per_device:k}]|";
  columns += "MFU=[{mfu:.1%}]|peak GiB=[{peak_memory_bytes:.2G}][{verdict}]|median=[{median_s:t}]|95 %=[{p95_s:t}]";
  std::istringstream lines(table(columns, table_rows(sweep)));
  std::string out;
  std::getline(lines, out);
  for (const SweepPoint& point : sweep.points) {
    std::string line;
    std::getline(lines, line);
    out += '\n' + line + (point.has_result() ? "" : "  " + point.error);
  }
  out += '\n';
  std::set<std::string> notes;
  for (const SweepPoint& point : sweep.points) {
    for (std::size_t a = 0; a < point.values.size(); ++a) {
      if (!names_schedule(ScenarioFlags::pointer_of(sweep.axes[a].key))) continue;
      if (const auto& changes = point.adapted.changes; !changes.empty()) {
        notes.insert(fmt::format("  adapted to {}: {}\n", point.values[a], fmt::join(changes, ", ")));
      }
      for (const std::string& each : point.adapted.inherited) {
        notes.insert(fmt::format("  inherited by {}: {}\n", point.values[a], each));
      }
    }
  }
  for (const std::string& note : notes) out += note;
  return out + (sweep.assumed.empty() ? "" : "\n" + sweep.assumed);
}

std::string sweep_csv(const Sweep& sweep) {
  std::string keys;
  for (std::size_t a = 0; a < sweep.axes.size(); ++a) keys += fmt::format("{}=axes/{},", sweep.axes[a].key, a);
  keys += "iteration_s,makespan_s,bubble_fraction,peak_in_flight,tokens_per_s,model_tflops_per_device,mfu,";
  keys += "peak_memory_bytes,fits,median_s,p95_s,gpus,tokens_per_s_per_device,error";
  return csv(keys, table_rows(sweep));
}

OrderedJson sweep_json(const Sweep& sweep) {
  OrderedJson out = {{"schema", "sluice.sweep/1"}};
  out["keys"] = OrderedJson::array();
  for (const SweepAxis& axis : sweep.axes) out["keys"].push_back(axis.key);
  OrderedJson& points = out["points"] = OrderedJson::array();
  for (const SweepPoint& point : sweep.points) {
    OrderedJson& row = points.emplace_back();
    row["values"] = OrderedJson::array();
    for (const std::string& value : point.values) {
      OrderedJson parsed = OrderedJson::parse(value, nullptr, false);
      row["values"].push_back(parsed.is_discarded() ? OrderedJson(value) : std::move(parsed));
    }
    if (!point.adapted.changes.empty()) row["adapted"] = point.adapted.changes;
    if (!point.adapted.inherited.empty()) row["inherited"] = point.adapted.inherited;
    row.update(point.has_result() ? point.result : OrderedJson{{"error", point.error}});
  }
  out.update(sweep.rests_on);
  return out;
}

CurveChart sweep_chart(const Sweep& sweep) {
  const bool tokens = std::any_of(sweep.points.begin(), sweep.points.end(), [](const SweepPoint& point) {
    return point.has_result() && !point.result["tokens_per_s"].is_null();
  });
  const bool per_gpu = gpus_vary(sweep);
  CurveChart chart{.title = tokens ? "Throughput" : "Iteration time",
                   .x_label = sweep.axes.front().key,
                   .y_label = !tokens   ? "iteration (s)"
                              : per_gpu ? "tokens/s/GPU"
                                        : "tokens/s",
                   .hollow_note = "does not fit in memory",
                   .gap_note = "invalid",
                   .x = sweep.axes.front().values};
  // The last axis varies fastest: points with the same value of the first axis are contiguous.
  const std::size_t others = sweep.points.size() / chart.x.size();
  for (std::size_t s = 0; s < others; ++s) {
    CurveSeries series;
    for (std::size_t a = 1; a < sweep.axes.size(); ++a) {
      series.name += fmt::format("{}{} {}", a > 1 ? ", " : "", sweep.axes[a].key, sweep.points[s].values[a]);
    }
    for (std::size_t i = 0; i < chart.x.size(); ++i) {
      const SweepPoint& swept = sweep.points[i * others + s];
      const char* key = !tokens ? "iteration_s" : per_gpu ? "tokens_per_s_per_device" : "tokens_per_s";
      CurvePoint point;
      if (swept.has_result()) {
        point.y = swept.result[key].is_null() ? 0 : swept.result[key].get<double>();
        point.hollow = !swept.fits();
      }
      series.points.push_back(point);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace sluice::tools
