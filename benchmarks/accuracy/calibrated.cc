#include "benchmarks/accuracy/calibrated.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/calibration/correction_fit.h"

namespace sluice::bench::accuracy {
namespace {

using Rows = std::vector<const Comparison*>;

// The rows of each group, with its name.
std::vector<std::pair<std::string, Rows>> groups_of(const TableScore& score) {
  std::vector<std::pair<std::string, Rows>> out;
  for (const Comparison& row : score.comparisons) {
    if (row.model.empty() || row.unit != "s" || row.measured <= 0) continue;
    const std::string name = fmt::format("{}, {}, {}", row.model, row.gpu, row.precision);
    auto found = std::find_if(out.begin(), out.end(), [&](const auto& group) { return group.first == name; });
    if (found == out.end()) found = out.insert(out.end(), {name, {}});
    found->second.push_back(&row);
  }
  return out;
}

CalibratedGroup calibrated(const std::string& name, const Rows& rows) {
  CalibratedGroup out{.name = name, .rows = static_cast<int>(rows.size())};
  std::set<std::string> settings;
  for (const Comparison* row : rows) {
    settings.insert(row->setting);
    out.uncalibrated += std::abs(row->error()) / static_cast<double>(rows.size());
  }
  out.settings = static_cast<int>(settings.size());
  int count = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (rows[i]->setting == rows[j]->setting) continue;
      const sim::PredictedAndMeasured pair[] = {{rows[i]->predicted, rows[i]->measured},
                                                {rows[j]->predicted, rows[j]->measured}};
      const Correction correction = sim::fit_correction(pair);
      for (std::size_t other = 0; other < rows.size(); ++other) {
        if (other == i || other == j) continue;
        const double error = std::abs(correction.at(rows[other]->predicted).seconds / rows[other]->measured - 1);
        out.mean += error;
        out.worst = std::max(out.worst, error);
        ++count;
      }
    }
  }
  if (count > 0) out.mean /= count;
  return out;
}

}  // namespace

std::vector<CalibratedGroup> calibrated_on_two(const TableScore& score) {
  std::vector<CalibratedGroup> out;
  for (const auto& [name, rows] : groups_of(score)) {
    if (rows.size() < 3) continue;
    CalibratedGroup group = calibrated(name, rows);
    if (group.settings > 1) out.push_back(std::move(group));
  }
  return out;
}

std::string calibrated_text(const std::vector<CalibratedGroup>& groups) {
  if (groups.empty()) return "";
  std::string out;
  double uncalibrated = 0;
  double mean = 0;
  int rows = 0;
  const auto line = [&](const std::string& name, int count, double before, double after, const std::string& worst) {
    out += fmt::format("{:<22} calibrated on two of {} rows: {:.1f} % (before {:.1f} %{}): {}\n", "", count,
                       100 * after, 100 * before, worst, name);
  };
  for (const CalibratedGroup& group : groups) {
    line(group.name, group.rows, group.uncalibrated, group.mean, fmt::format(", worst {:.0f} %", 100 * group.worst));
    uncalibrated += group.uncalibrated * group.rows;
    mean += group.mean * group.rows;
    rows += group.rows;
  }
  line(fmt::format("all {} groups", groups.size()), rows, uncalibrated / rows, mean / rows, "");
  return out;
}

}  // namespace sluice::bench::accuracy
