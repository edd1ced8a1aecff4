#include "tools/simulate/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "model/errors.h"
#include "sim/engine/parallel.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_setup.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/progress.h"
#include "tools/command/scenario_flags.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kMostPoints = 100'000;

SweepPoint::Result summary_of(const Setup& setup, const Prediction& prediction) {
  SweepPoint::Result out;
  out.iteration =
      prediction.corrected ? from_seconds(prediction.corrected->seconds, "calibration") : prediction.iteration;
  out.makespan = prediction.metrics.makespan;
  out.bubble_fraction = prediction.metrics.bubble_fraction;
  out.tokens_per_s = prediction.throughput.tokens_per_s;
  out.gpus = setup.scenario().training.world_size();
  out.model_tflops_per_device = prediction.throughput.model_tflops_per_device;
  out.mfu = prediction.throughput.mfu;
  for (const RankMetrics& rank : prediction.metrics.ranks) {
    out.peak_in_flight = std::max(out.peak_in_flight, rank.peak_in_flight);
  }
  if (setup.graph().has_bytes()) out.peak_memory_bytes = 0;
  for (const RankMemory& rank : prediction.memory) {
    if (out.peak_memory_bytes) out.peak_memory_bytes = std::max(*out.peak_memory_bytes, rank.peak_bytes);
  }
  if (prediction.fit) {
    out.peak_memory_bytes = prediction.fit->needed_bytes;
    out.fits = prediction.fit->fits;
  }
  if (prediction.trials) {
    out.median = prediction.trials->quantile(0.5);
    out.slow_tail = prediction.trials->quantile(0.95);
  }
  return out;
}

// Whether the number of GPUs varies.
bool gpus_vary(const Sweep& sweep) {
  std::set<std::int64_t> numbers;
  for (const SweepPoint& point : sweep.points) {
    if (point.result) numbers.insert(point.result->gpus);
  }
  return numbers.size() > 1;
}

bool any(const Sweep& sweep, auto&& has) {
  return std::any_of(sweep.points.begin(), sweep.points.end(),
                     [&](const SweepPoint& point) { return point.result && has(*point.result); });
}

// Returns the number of characters of UTF-8 text.
std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

// Returns a CSV cell, quoted where needed (RFC 4180).
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
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

}  // namespace

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
  const bool schedules = std::any_of(fixed.begin(), fixed.end(), names_schedule);
  sweep.points.resize(count);
  Progress progress("predicted", count);
  std::atomic<std::int64_t> done = 0;
  parallel_for(count, [&](std::int64_t index) {
    if (stop != nullptr && *stop) return;
    SweepPoint& point = sweep.points[index];
    point.values.resize(sweep.axes.size());
    std::int64_t rest = index;
    for (std::size_t a = sweep.axes.size(); a-- > 0;) {
      const auto& values = sweep.axes[a].values;
      point.values[a] = values[rest % std::ssize(values)];
      rest /= std::ssize(values);
    }
    nlohmann::json document = base;
    try {
      document = document_with(base, sweep.axes, fixed, point.values, file);
      std::vector<std::string> adapted;
      if (schedules) adapted = ScenarioFlags::adapt_to_family(document, fixed);
      const PlannedSetup planned = planned_setup(ScenarioFlags::read(document, file));
      point.result = summary_of(*planned.setup, predict(*planned.setup));
      point.warning = calibration_warning(planned.setup->scenario());
      point.adapted = std::move(adapted);
    } catch (const InputError& error) {
      point.error = ScenarioFlags::naming_flags(error.what(), document, file);
    } catch (const ScheduleError& error) {
      point.error = error.what();
    }
    progress.done(++done);
  });
  return sweep;
}

std::string sweep_table(const Sweep& sweep) {
  const bool tokens = any(sweep, [](const auto& r) { return r.tokens_per_s > 0; });
  const bool mfu = any(sweep, [](const auto& r) { return r.mfu > 0; });
  const bool bytes = any(sweep, [](const auto& r) { return r.peak_memory_bytes.has_value(); });
  const bool gpus = gpus_vary(sweep);
  const bool trials = any(sweep, [](const auto& r) { return r.median.has_value(); });
  std::vector<std::string> head;
  for (const SweepAxis& axis : sweep.axes) head.push_back(axis.key);
  if (gpus) head.emplace_back("GPUs");
  head.insert(head.end(), {"iteration", "bubble", "in flight"});
  if (tokens) head.emplace_back("tokens/s");
  if (tokens && gpus) head.emplace_back("tokens/s/GPU");
  if (mfu) head.emplace_back("MFU");
  if (bytes) head.emplace_back("peak GiB");
  if (trials) head.insert(head.end(), {"median", "95 %"});
  std::vector<std::vector<std::string>> rows = {head};
  for (const SweepPoint& point : sweep.points) {
    std::vector<std::string>& row = rows.emplace_back(point.values);
    if (!point.result) continue;
    const SweepPoint::Result& of = *point.result;
    if (gpus) row.push_back(std::to_string(of.gpus));
    row.push_back(time_text(of.iteration));
    row.push_back(fmt::format("{:.1f} %", 100 * of.bubble_fraction));
    row.push_back(fmt::format("{:.4g}", of.peak_in_flight));
    if (tokens) row.push_back(grouped(of.tokens_per_s));
    if (tokens && gpus) row.push_back(grouped(of.tokens_per_s_per_gpu()));
    if (mfu) row.push_back(fmt::format("{:.1f} %", 100 * of.mfu));
    if (bytes) {
      row.push_back(fmt::format("{:.2f}{}", static_cast<double>(of.peak_memory_bytes.value_or(0)) / kGiB,
                                of.fits.value_or(true) ? "" : " does not fit"));
    }
    if (trials) {
      row.push_back(of.median ? time_text(*of.median) : "");
      row.push_back(of.slow_tail ? time_text(*of.slow_tail) : "");
    }
  }
  std::vector<std::size_t> widths(head.size(), 0);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], columns(row[c]));
  }
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < rows[r].size(); ++c)
      fmt::format_to(std::back_inserter(out), "  {:>{}}", rows[r][c], widths[c]);
    if (r > 0 && !sweep.points[r - 1].result) out += "  " + sweep.points[r - 1].error;
    out += '\n';
  }
  std::set<std::string> notes;
  for (const SweepPoint& point : sweep.points) {
    if (point.adapted.empty()) continue;
    for (std::size_t a = 0; a < point.values.size(); ++a) {
      if (!names_schedule(ScenarioFlags::pointer_of(sweep.axes[a].key))) continue;
      notes.insert(fmt::format("  adapted to {}: {}\n", point.values[a], fmt::join(point.adapted, ", ")));
    }
  }
  for (const std::string& note : notes) out += note;
  return out;
}

std::string sweep_csv(const Sweep& sweep) {
  std::string out;
  for (const SweepAxis& axis : sweep.axes) out += csv_cell(axis.key) + ",";
  out +=
      "iteration_s,makespan_s,bubble_fraction,peak_in_flight,tokens_per_s,model_tflops_per_device,mfu,peak_memory_"
      "bytes,fits,median_s,p95_s,gpus,tokens_per_s_per_device,error\n";
  const auto to = std::back_inserter(out);
  const auto known = [](double value) { return value > 0 ? fmt::format("{}", value) : std::string(); };
  for (const SweepPoint& point : sweep.points) {
    for (const std::string& value : point.values) out += csv_cell(value) + ",";
    if (point.result) {
      const SweepPoint::Result& of = *point.result;
      const auto optional = [](const auto& value, auto&& text) { return value ? text(*value) : std::string(); };
      const auto seconds = [](Duration d) { return fmt::format("{}", to_seconds(d)); };
      fmt::format_to(to, "{},{},{},{},{},{},{},{},{},{},{},{},{},\n", to_seconds(of.iteration), to_seconds(of.makespan),
                     of.bubble_fraction, of.peak_in_flight, known(of.tokens_per_s), known(of.model_tflops_per_device),
                     known(of.mfu), optional(of.peak_memory_bytes, [](auto bytes) { return std::to_string(bytes); }),
                     optional(of.fits, [](bool fits) { return std::string(fits ? "1" : "0"); }),
                     optional(of.median, seconds), optional(of.slow_tail, seconds), of.gpus,
                     known(of.tokens_per_s_per_gpu()));
    } else {
      fmt::format_to(to, ",,,,,,,,,,,,,{}\n", csv_cell(point.error));
    }
  }
  return out;
}

std::string sweep_json(const Sweep& sweep) {
  OrderedJson out;
  out["schema"] = "sluice.sweep/1";
  OrderedJson keys = OrderedJson::array();
  for (const SweepAxis& axis : sweep.axes) keys.push_back(axis.key);
  out["keys"] = std::move(keys);
  OrderedJson points = OrderedJson::array();
  for (const SweepPoint& point : sweep.points) {
    OrderedJson row;
    OrderedJson values = OrderedJson::array();
    for (const std::string& value : point.values) {
      OrderedJson parsed = OrderedJson::parse(value, nullptr, false);
      values.push_back(parsed.is_discarded() ? OrderedJson(value) : std::move(parsed));
    }
    row["values"] = std::move(values);
    if (!point.adapted.empty()) row["adapted"] = point.adapted;
    if (point.result) {
      const SweepPoint::Result& of = *point.result;
      row["iteration_s"] = to_seconds(of.iteration);
      row["makespan_s"] = to_seconds(of.makespan);
      row["bubble_fraction"] = of.bubble_fraction;
      row["peak_in_flight"] = of.peak_in_flight;
      const auto known = [](double value) { return value > 0 ? OrderedJson(value) : OrderedJson(nullptr); };
      row["gpus"] = of.gpus;
      row["tokens_per_s"] = known(of.tokens_per_s);
      row["tokens_per_s_per_device"] = known(of.tokens_per_s_per_gpu());
      row["model_tflops_per_device"] = known(of.model_tflops_per_device);
      row["mfu"] = known(of.mfu);
      row["peak_memory_bytes"] = of.peak_memory_bytes ? OrderedJson(*of.peak_memory_bytes) : OrderedJson(nullptr);
      if (of.fits) row["fits"] = *of.fits;
      if (of.median) row["median_s"] = to_seconds(*of.median);
      if (of.slow_tail) row["p95_s"] = to_seconds(*of.slow_tail);
    } else {
      row["error"] = point.error;
    }
    points.push_back(std::move(row));
  }
  out["points"] = std::move(points);
  return out.dump(2) + "\n";
}

CurveChart sweep_chart(const Sweep& sweep) {
  const bool tokens = any(sweep, [](const auto& r) { return r.tokens_per_s > 0; });
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
      const auto& result = sweep.points[i * others + s].result;
      CurvePoint point;
      if (result) {
        const double throughput = per_gpu ? result->tokens_per_s_per_gpu() : result->tokens_per_s;
        point.y = tokens ? throughput : to_seconds(result->iteration);
        point.hollow = !result->fits.value_or(true);
      }
      series.points.push_back(point);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace sluice::tools
