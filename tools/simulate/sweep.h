#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "tools/command/document.h"
#include "tools/command/scenario_flags.h"
#include "traces/figure/curve.h"

namespace sluice::tools {

// One `--sweep key=a,b,c`.
struct SweepAxis {
  std::string key;  // a flag or a key of the scenario
  std::vector<std::string> values;
};

// Returns the results of a run in sweeps and comparisons, null for one that is not predicted.
OrderedJson run_results(const Setup& setup, const Prediction& prediction);

// Parses "key=a,b,c". Commas inside brackets, braces and quotes belong to a value. Throws InputError.
SweepAxis parse_sweep_axis(const std::string& text);

// The prediction for one combination of values, or the reason why there is none.
struct SweepPoint {
  std::vector<std::string> values;  // one per axis
  ScenarioFlags::Adapted adapted;   // with a result: to the schedule family
  OrderedJson result;               // as in sluice.sweep/1; null without one
  std::string error;
  std::string warning;  // calibration_warning, assumed_times_line or mfu_remark

  bool has_result() const { return !result.is_null(); }
  bool fits() const { return !has_result() || result.value("fits", true); }
};

struct Sweep {
  std::vector<SweepAxis> axes;
  std::vector<SweepPoint> points;  // the last axis varies fastest
  OrderedJson rests_on;            // of the first with a result: `assumptions` and `not_modeled`
  std::string assumed;             // the same as text
};

// Predicts every combination of the axes' values, which override the keys of `base`, in parallel. In a sweep over
// schedules, other keys are adapted to the family, and what is left open is chosen for it (choose_own_best). An invalid
// combination gets an error. Throws InputError for an unknown key, keys that exclude each other, or more than 100,000
// combinations. Once `*stop` is set, the remaining combinations get the error "interrupted".
Sweep run_sweep(const nlohmann::json& base, const std::string& file, std::vector<SweepAxis> axes,
                const std::atomic<bool>* stop = nullptr);

std::string sweep_table(const Sweep& sweep);
std::string sweep_csv(const Sweep& sweep);
OrderedJson sweep_json(const Sweep& sweep);  // schema sluice.sweep/1

// Returns tokens per second (per GPU if the number of GPUs varies; or the iteration time, without a sequence length)
// over the first axis, with one series per combination of the other axes. Points that do not fit in memory are hollow.
CurveChart sweep_chart(const Sweep& sweep);

}  // namespace sluice::tools
