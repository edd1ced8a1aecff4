#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/namespaces.h"

namespace sluice::sim {

// A positive constant to find: between low and high, believed to be `guess` up to a factor of exp(+-spread). The belief
// decides only where the data do not.
struct FitConstant {
  double guess = 1;
  double low = 0;
  double high = 1;
  double spread = 1;
};

// Relative errors of a prediction, |predicted / measured - 1|.
struct FitErrors {
  int rows = 0;
  double mean = 0;
  double median = 0;
  double worst = 0;
};
FitErrors fit_errors(std::span<const double> predicted, std::span<const double> measured);

// predict(constants, row) > 0, for rows 0 to measured.size() - 1, all measured > 0.
using FitModel = std::function<double(std::span<const double> constants, int row)>;

struct LogFit {
  std::vector<double> constants;
  std::vector<double> deviations;          // of the constants' logarithms over the folds: how well the rows decide them
  std::vector<double> predicted;           // by row
  std::vector<double> predicted_held_out;  // by row, from the folds that it is not in
  FitErrors in_sample;
  FitErrors held_out;
};

struct LogFitOptions {
  int folds = 5;                    // at least 2
  std::span<const double> weights;  // of the rows' errors; empty: 1 each
  bool several_starts = true;       // from half and one and a half of the guesses too
  bool parallel = false;            // predict may be called from several threads
};

// Constants that least change log(predicted / measured), by Levenberg and Marquardt's method on the constants'
// logarithms; errors count squared up to about 5 % and linearly beyond. Rows of one group (the same shape measured
// twice) are held out together; `groups` is one number a row. Deterministic.
LogFit fit_logarithms(std::span<const FitConstant> constants, const FitModel& predict, std::span<const double> measured,
                      std::span<const int> groups, const LogFitOptions& options = {});

}  // namespace sluice::sim
