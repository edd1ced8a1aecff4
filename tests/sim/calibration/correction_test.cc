#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "sim/calibration/correction_fit.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using Rows = std::vector<PredictedAndMeasured>;

Rows on_line(double scale, double fixed_s, const std::vector<double>& predicted) {
  Rows rows;
  for (const double p : predicted) rows.push_back({p, scale * p + fixed_s});
  return rows;
}

// Measured times of `predicted`, with a common scale and normal errors.
Rows scaled(double scale, double error, const std::vector<double>& predicted, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Rows rows;
  for (const double p : predicted) rows.push_back({p, scale * p * std::exp(error * normal(random))});
  return rows;
}

std::vector<double> times(int count) {
  std::vector<double> out;
  for (int i = 0; i < count; ++i) out.push_back(5.0 + 3 * i);
  return out;
}

// With many measurements without errors, shrinkage vanishes.
TEST(Correction, FindsTheLineThroughManyMeasurements) {
  for (const double scale : {0.6, 1.0, 1.4}) {
    for (const double fixed : {0.0, 0.3}) {
      const Correction found = fit_correction(on_line(scale, fixed, times(24)));
      EXPECT_NEAR(found.at(10).seconds / (scale * 10 + fixed), 1, 5e-3) << scale << " " << fixed;
      EXPECT_LT(*found.held_out, scale == 1 && fixed == 0 ? 1e-12 : 0.1 * *found.held_out_before);
      EXPECT_EQ(kept_terms(found) == "nothing", scale == 1 && fixed == 0);
    }
  }
}

TEST(Correction, KeepsTheTermThatTheMeasurementsHaveInCommon) {
  std::mt19937_64 random(3);
  const Correction scale = fit_correction(scaled(1.2, 0.01, times(12), random));
  EXPECT_NEAR(scale.at(20).seconds / 20, 1.2, 0.012);
  EXPECT_GT(scale.weight, 0.9);
  // A time per iteration of a tenth of the shortest prediction, two deviations of the prior.
  const Correction fixed = fit_correction(on_line(1, 0.15, {1.5, 2, 3, 4, 6, 8, 12, 16}));
  EXPECT_TRUE(kept_terms(fixed) == "fixed" || kept_terms(fixed) == "both");
  EXPECT_NEAR(fixed.at(4).seconds, 4.15, 0.03);
  // Up to three measurements give no fixed time.
  EXPECT_EQ(fit_correction(on_line(1, 0.15, {1.5, 4, 16})).fixed_s, 0);
}

// The correction is zero, or between none and least squares.
TEST(Correction, FewMeasurementsAreShrunkTowardNothing) {
  double last = 0;
  for (const int count : {1, 2, 3, 6, 20}) {
    const Correction found = fit_correction(on_line(1.15, 0, times(count)));
    EXPECT_LT(found.scale, 1.15 + 1e-12) << count;
    EXPECT_GE(found.scale, last) << count;
    EXPECT_NEAR(found.weight, std::log(found.at(1).seconds) / std::log(1.15), 0.02) << count;
    last = found.scale;
  }
  EXPECT_GT(last, 1.145);
  EXPECT_GT(fit_correction(on_line(1.15, 0, times(2))).scale, 1.05);
}

TEST(Correction, MeasurementsThatDisagreeKeepNothing) {
  EXPECT_EQ(kept_terms(fit_correction(Rows{{10, 12}, {20, 17}})), "nothing");
  EXPECT_EQ(kept_terms(fit_correction(Rows{{10, 13}, {20, 20.4}})), "nothing");
  // One of them is an outlier, such as a run that waited for another job.
  EXPECT_EQ(kept_terms(fit_correction(Rows{{0.3, 9}, {0.4, 0.44}})), "nothing");
  EXPECT_EQ(kept_terms(fit_correction(Rows{{10, 10.2}})), "nothing");
}

// Errors without a common part: 90 % regions include no correction in about nine of ten draws, more with few rows.
// A machine that no published run is like: measurements that agree keep nearly all of a factor that the prior finds
// unlikely, and more of them keep more.
TEST(Correction, MeasurementsThatAgreeKeepALargeFactor) {
  for (const double factor : {0.3, 0.44, 2.3, 5.0}) {
    double before = 1;
    for (const int count : {2, 3, 6}) {
      std::vector<PredictedAndMeasured> rows;
      for (int i = 0; i < count; ++i) {
        const double predicted = 4.0 * (i + 1);
        rows.push_back({predicted, factor * predicted * (1 + 0.002 * (i % 3 - 1))});
      }
      const double off = std::abs(std::log(fit_correction(rows).scale / factor) / std::log(factor));
      EXPECT_LT(off, count == 2 ? 0.25 : 0.05) << factor << ", " << count;
      EXPECT_LE(off, before) << factor << ", " << count;
      before = off + 0.01;
    }
    const Correction one = fit_correction(std::vector<PredictedAndMeasured>{{8, 8 * factor}});
    EXPECT_NEAR(std::log(one.scale) / std::log(factor), 0, 0.1) << "one measurement may be an outlier";
  }
}

TEST(Correction, NoiseKeepsNothing) {
  std::mt19937_64 random(5);
  for (const int count : {2, 5}) {
    int nothing = 0;
    double before = 0;
    double after = 0;
    constexpr int kDraws = 150;
    for (int draw = 0; draw < kDraws; ++draw) {
      const Correction found = fit_correction(scaled(1, 0.08, times(count), random));
      nothing += kept_terms(found) == "nothing" ? 1 : 0;
      for (const auto& [predicted, measured] : scaled(1, 0.08, {8, 20, 40}, random)) {
        before += std::abs(predicted / measured - 1) / (3 * kDraws);
        after += std::abs(found.at(predicted).seconds / measured - 1) / (3 * kDraws);
      }
    }
    EXPECT_GT(nothing, 0.85 * kDraws) << count;
    EXPECT_LT(after, before + 0.001) << count;
  }
}

// Ensembles of settings with a common factor and their own errors, as large as in published tables and larger: the
// mean error of other settings increases nowhere by more than a 25th, which is the case without any common factor.
TEST(Correction, OtherSettingsDoNotBecomeWorse) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  for (const double common : {0.0, 0.03, 0.1, 0.3}) {
    for (const double own : {0.01, 0.03, 0.1}) {
      for (const int count : {1, 2, 3}) {
        double gain = 0;
        double before = 0;
        constexpr int kDraws = 200;
        for (int draw = 0; draw < kDraws; ++draw) {
          const double scale = std::exp(common * normal(random));
          const Correction found = fit_correction(scaled(scale, own, times(count), random));
          for (const auto& [predicted, measured] : scaled(scale, own, {8, 20}, random)) {
            const double plain = std::abs(predicted / measured - 1) / (2 * kDraws);
            before += plain;
            gain += plain - std::abs(found.at(predicted).seconds / measured - 1) / (2 * kDraws);
          }
        }
        EXPECT_GT(gain, -0.04 * before) << common << " " << own << " " << count;
        if (common >= 0.1 && own <= 0.03 && count >= 2) {
          EXPECT_GT(gain, 0.25 * before) << common << " " << own << " " << count;
        }
      }
    }
  }
}

TEST(Correction, FitsTheTermsThatAreAskedFor) {
  EXPECT_DOUBLE_EQ(fit_correction(Rows{{10, 12}}, CorrectionTerms::scale).scale, 1.2);
  const Correction fixed = fit_correction(Rows{{10, 12}}, CorrectionTerms::fixed);
  EXPECT_EQ(fixed.scale, 1);
  EXPECT_EQ(fixed.weight, 1);
  EXPECT_DOUBLE_EQ(fixed.fixed_s, 2);
  EXPECT_DOUBLE_EQ(fixed.at(20).seconds, 22);
  // Without a residual the prior of two measurements remains, whose deviation at 10 s is 0.067 x 10^-0.17, here times
  // sqrt(2 / 2). t(2, 0.95) = 2.920, of the measurement, and of a fixed time as uncertain as 12 s are.
  EXPECT_NEAR(fixed.at(20).high_s - 22, 2.920 * 0.067 * std::pow(10, -0.17) * std::hypot(22, 12), 1e-3);
  // Least squares of (10 + f) / 12 - 1 and (20 + f) / 24 - 1: f (1 / 12^2 + 1 / 24^2) = 2 / 12^2 + 4 / 24^2.
  EXPECT_NEAR(fit_correction(Rows{{10, 12}, {20, 24}}, CorrectionTerms::fixed).fixed_s, 2.4, 1e-12);
  EXPECT_NEAR(left_out_errors(Rows{{10, 12}, {20, 24}}, CorrectionTerms::fixed)[0], 14.0 / 12 - 1, 1e-12);

  const Correction scale = fit_correction(on_line(1.1, 3, {2, 4, 8}), CorrectionTerms::scale);
  EXPECT_EQ(scale.fixed_s, 0);
  EXPECT_GT(scale.scale, 1.1);
  EXPECT_EQ(error_from([] {
              fit_correction(Rows{{1, 2}, {9, 3}}, CorrectionTerms::fixed);
            }),
            "calibrate: the fixed time is -1.15 s, but a predicted iteration takes only 1 s: fit a scale instead");
}

TEST(Correction, FixedTimeIsNegativeIfTheMeasurementsHaveOne) {
  const Correction found = fit_correction(Rows{{2, 1.5}, {4, 3.4}, {8, 7.6}}, CorrectionTerms::fixed);
  ASSERT_LT(found.fixed_s, -0.4);
  EXPECT_DOUBLE_EQ(found.at(6).seconds, 6 + found.fixed_s);
  // Below the shortest prediction, 2 s, times are in proportion to its corrected time.
  EXPECT_NEAR(found.at(0.5).seconds, (2 + found.fixed_s) * 0.5 / 2, 1e-11);
  EXPECT_GT(found.at(1e-6).low_s, 0);
  EXPECT_EQ(found.at(0).seconds, 0);
  // The line through these is negative at 1 s.
  const Correction steep = fit_correction(Rows{{1, 0.1}, {1.06, 5}, {1.12, 5.2}, {1.2, 5.6}});
  EXPECT_GT(steep.at(1).seconds, 0);
}

// Two rows: scaling one predicts the other, 4 x 1.2 / 5.2 and 2 x 1.3 / 2.4.
TEST(Correction, IntervalIsNotNarrowerThanTheHeldOutError) {
  const Correction two = fit_correction(Rows{{2, 2.4}, {4, 5.2}}, CorrectionTerms::scale);
  ASSERT_TRUE(two.held_out);
  const double first = 2 * 1.3 / 2.4 - 1;
  const double second = 4 * 1.2 / 5.2 - 1;
  EXPECT_NEAR(*two.held_out, std::sqrt((first * first + second * second) / 2), 1e-12);
  EXPECT_NEAR(*two.held_out_before, std::sqrt((std::pow(1 - 2 / 2.4, 2) + std::pow(1 - 4 / 5.2, 2)) / 2), 1e-12);
  Correction wide = two;
  wide.held_out = 0.9;
  const Correction::Interval interval = wide.at(4);
  EXPECT_NEAR(interval.high_s / interval.seconds - 1, 0.9, 1e-12);
  EXPECT_FALSE(fit_correction(Rows{{2, 2.4}}).held_out);
}

TEST(Correction, IntervalCoversNineOfTenIterations) {
  // Scale and deviation as in the prior: the interval covers nine of ten, within three standard deviations of a
  // fraction of 1,000 draws (0.028), or more.
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (const int count : in_scope(std::array{1, 2, 3, 5})) {
    int inside = 0;
    constexpr int kDraws = 1000;
    for (int draw = 0; draw < kDraws; ++draw) {
      const double scale = std::exp(kCorrectionPrior.scale * normal(random));
      const double own = kCorrectionPrior.deviation * std::pow(10, -kCorrectionPrior.power) *
                         std::exp(kCorrectionPrior.spread * normal(random));
      Rows rows = scaled(scale, own, times(count + 1), random);
      const auto [predicted, measured] = rows.back();
      rows.pop_back();
      const Correction::Interval interval = fit_correction(rows).at(predicted);
      inside += interval.low_s <= measured && measured <= interval.high_s ? 1 : 0;
    }
    EXPECT_GT(static_cast<double>(inside) / kDraws, 0.9 - 0.028) << count;
    EXPECT_LT(static_cast<double>(inside) / kDraws, 0.985) << count;
  }
}

TEST(Correction, PredictsEachRowFromTheOthers) {
  EXPECT_TRUE(left_out_errors(Rows{{1, 1}}).empty());
  for (const double error : left_out_errors(on_line(1.3, 0, {1, 3, 9}), CorrectionTerms::scale)) {
    EXPECT_NEAR(error, 0, 1e-12);
  }
  // Without a common error, each row is predicted as without a correction.
  const std::vector<double> errors = left_out_errors(Rows{{10, 12}, {20, 17}, {30, 30}, {40, 44}, {50, 45}});
  EXPECT_NEAR(errors[0], 10.0 / 12 - 1, 1e-12);
  // More rows than folds.
  EXPECT_EQ(left_out_errors(on_line(1.3, 0.2, times(50))).size(), 50);
}

TEST(Correction, SurvivesARoundTripThroughAFile) {
  Correction found = fit_correction(Rows{{2, 1.5}, {4, 3.4}, {8, 7.6}}, CorrectionTerms::fixed);
  ASSERT_LT(found.fixed_s, 0);
  found.weight = 0.5;
  found.origins = {
      {.model = "gpt", .parameters = 1000, .framework = "megatron-lm", .precision = "16-bit", .gpu = "a100"},
      {.gpu = "h100"}};
  const Json json = parse_json(to_json_text(found), "c.json");
  const Correction read = correction_from_json(JsonReader(json, "c.json"));
  for (const double predicted : {0.5, 5.0}) {
    EXPECT_EQ(read.at(predicted).seconds, found.at(predicted).seconds);
    EXPECT_EQ(read.at(predicted).low_s, found.at(predicted).low_s);
  }
  EXPECT_EQ(read.measurements, 3);
  EXPECT_EQ(read.weight, 0.5);
  EXPECT_EQ(read.held_out, found.held_out);
  EXPECT_EQ(read.held_out_before, found.held_out_before);
  EXPECT_EQ(read.origins, found.origins);
}

TEST(Correction, InvalidFilesAreRejected) {
  const auto error = [](const char* key, const Json& value) {
    Json json = parse_json(to_json_text(fit_correction(Rows{{2, 2.4}, {4, 4.8}}, CorrectionTerms::scale)), "c.json");
    json[key] = value;
    if (std::string_view(key) != "kept") json.erase("kept");
    return error_from([&] { correction_from_json(JsonReader(json, "c.json")); });
  };
  EXPECT_EQ(error("scale", -1), "c.json: /scale: expected a number from 0.001 to 1000, got -1");
  EXPECT_EQ(error("fixed_s", -9), "c.json: /fixed_s: expected a number above -scale x shortest_predicted_s, got -9");
  EXPECT_EQ(error("covariance", {-1e-9, 0, 1}),
            "c.json: /covariance: expected variances (the first and the last number) of at least 0, got [-1e-09,0,1]");
  EXPECT_EQ(error("covariance", {1e-4, 0, -1}),
            "c.json: /covariance: expected variances (the first and the last number) of at least 0, got [0.0001,0,-1]");
  EXPECT_EQ(error("covariance", {1, -3, 4}),
            "c.json: /covariance: expected a covariance (the second number) within the square root of the product of "
            "the variances, got [1,-3,4]");
  EXPECT_EQ(error("covariance", {1, -2, 4}), "no error");
  EXPECT_EQ(error("kept", "fixed"), "c.json: /kept: expected \"scale\", as scale and fixed_s are, got \"fixed\"");
  EXPECT_EQ(error("weight", 2), "c.json: /weight: expected a number from 0 to 1, got 2");
  EXPECT_EQ(error("held_out_error", -0.1), "c.json: /held_out_error: expected a number from 0 to 1000, got -0.1");
  EXPECT_EQ(error("made_from", Json::parse(R"([{"gpus": "a100"}])")),
            "c.json: /made_from/0/gpus: unknown key; did you mean 'gpu'?");
}

TEST(Correction, OtherOriginsAreNamed) {
  Correction correction;
  const CorrectionOrigin here{
      .model = "gpt", .parameters = 2'000'000'000, .framework = "megatron-lm", .precision = "16-bit", .gpu = "a100"};
  EXPECT_EQ(other_origin(correction, here), "");  // a file without origins
  correction.origins = {here};
  EXPECT_EQ(other_origin(correction, here), "");
  CorrectionOrigin renamed = here;
  renamed.model = "gpt-2b";
  EXPECT_EQ(other_origin(correction, renamed), "");
  EXPECT_EQ(other_origin(correction, {}), "");
  CorrectionOrigin there = here;
  there.gpu = "h100";
  there.precision = "8-bit";
  EXPECT_EQ(other_origin(correction, there), "precision 8-bit, GPU h100 (it was made from precision 16-bit, GPU a100)");
  correction.origins.push_back(there);
  EXPECT_EQ(other_origin(correction, there), "");
  there.parameters = 4'000'000'000;
  EXPECT_EQ(other_origin(correction, there),
            "model gpt (4 B parameters) (it was made from model gpt (2 B parameters))");
  there.parameters = here.parameters;
  there.framework = "nemo-2024";
  EXPECT_EQ(other_origin(correction, there), "framework nemo-2024 (it was made from framework megatron-lm)");
}

TEST(Correction, RejectsMissingAndInvalidInput) {
  EXPECT_EQ(error_from([] { fit_correction(Rows{}); }), "calibrate: expected at least one measured iteration");
  EXPECT_EQ(error_from([] { fit_correction(Rows{{1, 0}}); }), "calibrate: expected times above 0");
}

}  // namespace
}  // namespace sluice::test
