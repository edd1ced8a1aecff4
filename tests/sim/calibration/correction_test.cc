#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "sim/calibration/correction_fit.h"

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

TEST(Correction, NeverHasANegativeFixedTime) {
  // The line through these has a fixed time of -2 s.
  const Correction found = fit_correction(Rows{{2, 2}, {4, 6}, {8, 14}});
  EXPECT_EQ(found.fixed_s, 0);
  EXPECT_GT(found.scale, 0);
}

TEST(Correction, IntervalCoversNineOfTenIterations) {
  // Rows with errors of 1 %, as in the prior: the interval covers nine of ten, within three standard deviations of a
  // fraction of 4,000 draws (0.0142).
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (const int count : {1, 2, 3, 6, 20}) {
    int inside = 0;
    constexpr int kDraws = 4000;
    for (int draw = 0; draw < kDraws; ++draw) {
      Rows rows;
      for (int i = 0; i < count; ++i) {
        const double predicted = 5.0 + 3 * i;
        // One row does not determine a fixed time, so there is none.
        rows.push_back({predicted, (1.1 * predicted + (count > 1 ? 0.5 : 0)) * (1 + 0.01 * normal(random))});
      }
      const Correction found = fit_correction(rows);
      const double predicted = 10;
      const double measured = (1.1 * predicted + (count > 1 ? 0.5 : 0)) * (1 + 0.01 * normal(random));
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
  const Correction found = fit_correction(Rows{{2, 2.5}, {4, 4.4}, {8, 8.7}});
  const Json json = parse_json(to_json_text(found), "c.json");
  const Correction read = correction_from_json(JsonReader(json, "c.json"));
  EXPECT_EQ(read.at(5).seconds, found.at(5).seconds);
  EXPECT_EQ(read.at(5).low_s, found.at(5).low_s);
  EXPECT_EQ(read.measurements, 3);
  const Json bad = parse_json(R"({"schema": "sluice.calibration/1", "scale": -1})", "c.json");
  EXPECT_EQ(error_of([&] { correction_from_json(JsonReader(bad, "c.json")); }),
            "c.json: /scale: expected a number from 0.001 to 1000, got -1");
}

TEST(Correction, RejectsMissingAndInvalidInput) {
  EXPECT_EQ(error_of([] { fit_correction(Rows{}); }), "calibrate: expected at least one measured iteration");
  EXPECT_EQ(error_of([] { fit_correction(Rows{{1, 0}}); }), "calibrate: expected times above 0");
}

class MegatronLog : public testing::Test {
 protected:
  void write(const std::string& text) const { write_file_whole(path_, text); }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string path_ = testing::TempDir() + "sluice_megatron.log";
};

TEST_F(MegatronLog, IsReadInOlderAndNewerFormats) {
  write(
      " iteration        1/  500000 | elapsed time per iteration (ms): 9000.0 | learning rate 1.0E-05 | lm loss 9.1\n"
      "rank 0: saving\n"
      " [2025-01-01 10:00:00] iteration        2/     100 | consumed samples:          512 | elapsed time per "
      "iteration (ms): 7100.5 | throughput per GPU (TFLOP/s/GPU): 400.1 | learning rate: 1e-5\n");
  EXPECT_EQ(read_megatron_log(path_), (std::vector<double>{9, 7.1005}));
}

TEST_F(MegatronLog, ErrorsNameFileAndLine) {
  write("nothing\n");
  EXPECT_NE(error_of([&] { read_megatron_log(path_); }).find("expected a table (.csv), or a log"), std::string::npos);
  write("a\nelapsed time per iteration (ms): nan\n");
  EXPECT_EQ(error_of([&] { read_megatron_log(path_); }),
            path_ + ": line 2: expected milliseconds after 'elapsed time per iteration (ms):'");
}

}  // namespace
}  // namespace sluice::test
