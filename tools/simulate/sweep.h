#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/units.h"
#include "traces/figure/curve.h"

namespace sluice::tools {

// One `--sweep key=a,b,c`.
struct SweepAxis {
  std::string key;  // a flag or a place in the scenario
  std::vector<std::string> values;
};

// Commas inside brackets, braces and quotes belong to a value. Throws InputError.
SweepAxis parse_sweep_axis(const std::string& text);

// What was predicted for one combination of values, or why it was not.
struct SweepPoint {
  struct Result {
    Duration iteration{};  // makespan, or the period without a flush
    Duration makespan{};
    double bubble_fraction = 0;
    double tokens_per_s = 0;  // 0 without a sequence length
    double model_tflops_per_device = 0;
    double mfu = 0;
    double peak_in_flight = 0;                  // microbatches, of the rank that holds most
    std::int64_t peak_memory_bytes = 0;         // of the rank that needs most
    std::optional<bool> fits;                   // with a model and a cluster
    std::optional<Duration> median, slow_tail;  // 50 and 95 % of the trials, with jitter
  };
  std::vector<std::string> values;  // one an axis
  std::optional<Result> result;
  std::string error;
};

struct Sweep {
  std::vector<SweepAxis> axes;
  std::vector<SweepPoint> points;  // the last axis turns fastest
};

// Predicts every combination of the axes' values laid over `base`, in parallel. What a combination refuses becomes its
// error. Throws InputError for an unknown key, or more than 100,000 combinations.
Sweep run_sweep(const nlohmann::json& base, const std::string& file, std::vector<SweepAxis> axes);

std::string sweep_table(const Sweep& sweep);
std::string sweep_csv(const Sweep& sweep);
std::string sweep_json(const Sweep& sweep);  // schema sluice.sweep/1

// Tokens a second, or the iteration's time where there are none, over the first axis: a series for each combination of
// the others. What does not fit in memory is hollow.
CurveChart sweep_chart(const Sweep& sweep);

}  // namespace sluice::tools
