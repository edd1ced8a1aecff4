#pragma once

#include <string>
#include <vector>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Iteration times of one model on one GPU in one precision, each predicted after calibration on two others.
struct CalibratedGroup {
  std::string name;  // "16384 x 126 layers, H100-SXM, fp8"
  int rows = 0;
  int settings = 0;         // that differ
  double uncalibrated = 0;  // mean absolute relative error of the rows
  double mean = 0;          // of the absolute relative errors of the other rows, over all pairs
  double worst = 0;
};

// Fits a correction (sim::fit_correction) to every pair of rows with different settings of each group with at least
// three rows, and predicts the group's other rows with it. Only comparisons in seconds with a model are used. Groups
// are in the order of their first rows.
std::vector<CalibratedGroup> calibrated_on_two(const TableScore& score);

// One line per group, and the mean over the groups weighted by rows; "" without groups.
std::string calibrated_text(const std::vector<CalibratedGroup>& groups);

}  // namespace sluice::bench::accuracy
