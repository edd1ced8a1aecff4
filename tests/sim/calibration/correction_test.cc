#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "sim/calibration/correction_fit.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

using Rows = std::vector<PredictedAndMeasured>;

Rows on_line(double scale, double fixed_s, const std::vector<double>& predicted) {
  Rows rows;
  for (const double p : predicted) rows.push_back({p, scale * p + fixed_s});
  return rows;
}

TEST(Correction, FindsTheLineThroughTheMeasurements) {
  for (const double scale : {0.6, 1.0, 1.4}) {
    for (const double fixed : {0.0, 0.3, 5.0}) {
      const Correction found = fit_correction(on_line(scale, fixed, {2, 4, 8, 20}));
      EXPECT_NEAR(found.scale, scale, 1e-12);
      EXPECT_NEAR(found.fixed_s, fixed, 1e-11);
      EXPECT_NEAR(found.at(10).seconds, scale * 10 + fixed, 1e-10);
      EXPECT_LT(found.at(10).low_s, found.at(10).seconds);
    }
  }
}

TEST(Correction, FitsOnlyAScaleToOneMeasurementOrToEqualOnes) {
  EXPECT_DOUBLE_EQ(fit_correction(Rows{{10, 12}}).scale, 1.2);
  const Correction alike = fit_correction(Rows{{10, 12}, {10.4, 12.48}});
  EXPECT_DOUBLE_EQ(alike.scale, 1.2);
  EXPECT_EQ(alike.fixed_s, 0);
  // Without a residual the prior of two measurements with 1 % remains. t(2, 0.95) = 2.920; a measurement with deviation
  // 0.01 sqrt(2 / 2) and an equally uncertain scale: 2.920 x 0.01 x sqrt(2).
  const Correction::Interval interval = fit_correction(Rows{{10, 12}}).at(20);
  EXPECT_NEAR(interval.high_s / interval.seconds - 1, 2.920 * 0.01 * std::sqrt(2), 1e-5);
}

TEST(Correction, FitsTheTermsThatAreAskedFor) {
  const Correction fixed = fit_correction(Rows{{10, 12}}, CorrectionTerms::fixed);
  EXPECT_EQ(fixed.scale, 1);
  EXPECT_DOUBLE_EQ(fixed.fixed_s, 2);
  EXPECT_DOUBLE_EQ(fixed.at(20).seconds, 22);
  // Without a residual, as above: 2.920 x 0.01 of the measurement, and of a fixed time as uncertain as 12 s are.
  EXPECT_NEAR(fixed.at(20).high_s - 22, 2.920 * 0.01 * std::hypot(22, 12), 1e-4);
  // Least squares of (10 + f) / 12 - 1 and (20 + f) / 24 - 1: f (1 / 12^2 + 1 / 24^2) = 2 / 12^2 + 4 / 24^2.
  EXPECT_NEAR(fit_correction(Rows{{10, 12}, {20, 24}}, CorrectionTerms::fixed).fixed_s, 2.4, 1e-12);
  EXPECT_NEAR(left_out_errors(Rows{{10, 12}, {20, 24}}, CorrectionTerms::fixed)[0], 14.0 / 12 - 1, 1e-12);

  const Correction scale = fit_correction(on_line(1.1, 3, {2, 4, 8}), CorrectionTerms::scale);
  EXPECT_EQ(scale.fixed_s, 0);
  EXPECT_GT(scale.scale, 1.1);
  EXPECT_EQ(error_of([] {
              fit_correction(Rows{{1, 2}, {9, 3}}, CorrectionTerms::fixed);
            }),
            "calibrate: the fixed time is -1.15 s, but a predicted iteration takes only 1 s: fit a scale instead");
}

TEST(Correction, FixedTimeIsNegativeIfTheMeasurementsHaveOne) {
  const Correction found = fit_correction(on_line(2, -2, {2, 4, 8}));
  EXPECT_NEAR(found.scale, 2, 1e-12);
  EXPECT_NEAR(found.fixed_s, -2, 1e-11);
  EXPECT_NEAR(found.at(6).seconds, 10, 1e-11);
  // Below the shortest prediction, 2 s with a corrected time of 2 s, times are in proportion: 2 x 0.5 / 2.
  EXPECT_NEAR(found.at(0.5).seconds, 0.5, 1e-11);
  EXPECT_GT(found.at(1e-6).seconds, 0);
  EXPECT_GT(found.at(1e-6).low_s, 0);
  EXPECT_EQ(found.at(0).seconds, 0);
  // The line through these is negative at 1 s.
  const Correction steep = fit_correction(Rows{{1, 0.1}, {1.06, 5}, {1.12, 5.2}});
  EXPECT_GT(steep.at(1).seconds, 0);
}

// The line through two measurements with errors of 2 %, 2.04 and 2.744 s, has a slope of 0.88, so that it is 11 % below
// an error-free measurement at 20 s.
TEST(Correction, TwoSimilarMeasurementsDetermineNoFixedTime) {
  const Correction alike = fit_correction(Rows{{2, 2.04}, {2.8, 2.744}});
  EXPECT_EQ(alike.fixed_s, 0);
  EXPECT_NEAR(alike.at(20).seconds, 20, 0.02 * 20);
  EXPECT_NE(fit_correction(Rows{{2, 2.04}, {3, 2.94}}).fixed_s, 0);
  EXPECT_NE(fit_correction(Rows{{2, 2.04}, {2.5, 2.5}, {2.8, 2.744}}).fixed_s, 0);
}

// Two rows: predicted by scaling the other, 4 x 1.2 / 5.2 and 2 x 1.3 / 2.4.
TEST(Correction, IntervalIsNotNarrowerThanTheHeldOutError) {
  const Correction two = fit_correction(Rows{{2, 2.4}, {4, 5.2}});
  ASSERT_TRUE(two.held_out);
  const double first = 2 * 1.3 / 2.4 - 1;
  const double second = 4 * 1.2 / 5.2 - 1;
  EXPECT_NEAR(*two.held_out, std::sqrt((first * first + second * second) / 2), 1e-12);
  const Correction::Interval interval = two.at(4);
  EXPECT_NEAR(interval.high_s / interval.seconds - 1, *two.held_out, 1e-12);
  EXPECT_FALSE(fit_correction(Rows{{2, 2.4}}).held_out);
}

TEST(Correction, IntervalCoversNineOfTenIterations) {
  // Rows with errors of 1 %, as in the prior: the interval covers nine of ten, within three standard deviations of a
  // fraction of 4,000 draws (0.0142).
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  const std::pair<int, double> cases[] = {{1, 0.5}, {2, 0.5}, {3, 0.5}, {6, 0.5}, {20, 0.5}, {3, -0.5}, {20, -0.5}};
  for (const auto& [count, fixed] : in_scope(cases)) {
    int inside = 0;
    constexpr int kDraws = 4000;
    for (int draw = 0; draw < kDraws; ++draw) {
      Rows rows;
      for (int i = 0; i < count; ++i) {
        const double predicted = 5.0 + 3 * i;
        // One row does not determine a fixed time, so there is none.
        rows.push_back({predicted, (1.1 * predicted + (count > 1 ? fixed : 0)) * (1 + 0.01 * normal(random))});
      }
      const Correction found = fit_correction(rows);
      const double predicted = 10;
      const double measured = (1.1 * predicted + (count > 1 ? fixed : 0)) * (1 + 0.01 * normal(random));
      const Correction::Interval interval = found.at(predicted);
      inside += interval.low_s <= measured && measured <= interval.high_s ? 1 : 0;
    }
    const double share = static_cast<double>(inside) / kDraws;
    EXPECT_GT(share, 0.9 - 0.0142) << count;
    // With few rows the prior's two measurements widen the interval.
    if (count >= 20) {
      EXPECT_LT(share, 0.9 + 0.0142 + 0.01) << count;
    }
  }
}

TEST(Correction, PredictsEachRowFromTheOthers) {
  EXPECT_TRUE(left_out_errors(Rows{{1, 1}}).empty());
  for (const double error : left_out_errors(on_line(1.3, 0.2, {1, 3, 9}))) EXPECT_NEAR(error, 0, 1e-12);
}

TEST(Correction, SurvivesARoundTripThroughAFile) {
  Correction found = fit_correction(Rows{{2, 2}, {4, 6.1}, {8, 14}});
  ASSERT_LT(found.fixed_s, 0);
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
  EXPECT_EQ(read.held_out, found.held_out);
  EXPECT_EQ(read.origins, found.origins);
}

TEST(Correction, InvalidFilesAreRejected) {
  const auto error = [](const char* key, const Json& value) {
    Json json = parse_json(to_json_text(fit_correction(Rows{{2, 2.5}, {4, 4.4}, {8, 8.7}})), "c.json");
    json[key] = value;
    return error_of([&] { correction_from_json(JsonReader(json, "c.json")); });
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
  EXPECT_EQ(error_of([] { fit_correction(Rows{}); }), "calibrate: expected at least one measured iteration");
  EXPECT_EQ(error_of([] { fit_correction(Rows{{1, 0}}); }), "calibrate: expected times above 0");
}

}  // namespace
}  // namespace sluice::test
