#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/namespaces.h"

namespace sluice::sim {

// A positive constant to fit between `low` and `high`. Its prior is `guess` up to a factor of exp(+-spread), which
// matters only where the data do not determine the constant.
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

// Predicts `row`, from 0 to measured.size() - 1. Predicted and measured values are above 0.
using FitModel = std::function<double(std::span<const double> constants, int row)>;

struct LogFit {
  std::vector<double> constants;
  std::vector<double> deviations;  // of the constants' logarithms over the folds: how well the rows determine them
  std::vector<double> predicted;   // by row
  std::vector<double> predicted_held_out;  // by row, fitted to the other folds
  FitErrors in_sample;
  FitErrors held_out;
  FitErrors known;  // of the constants before the fit, where its caller has any
};

struct LogFitOptions {
  int folds = 5;                    // at least 2
  std::span<const double> weights;  // of the rows' errors; empty: 1 each
  bool several_starts = true;       // also from 0.5 and 1.5 times the guesses
  bool parallel = false;            // `predict` may be called from several threads
};

// Fits constants to log(predicted / measured) by the Levenberg-Marquardt method on the constants' logarithms; errors
// count squared up to about 5 % and linearly beyond. `groups` has a number per row; rows of one group (such as one
// shape measured twice) are held out together. Deterministic.
LogFit fit_logarithms(std::span<const FitConstant> constants, const FitModel& predict, std::span<const double> measured,
                      std::span<const int> groups, const LogFitOptions& options = {});

}  // namespace sluice::sim
