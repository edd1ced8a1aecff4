// Compares kernels other than matrix multiplications with functions of the standard library.

#include "kernels/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace sluice::kernels::cpu {
namespace {

// Expects an error of exp of at most some units in the last place for results that are normal numbers: arguments from
// -87 to 0 (-708 for double), in steps that are unrelated to multiples of ln 2.
template <class T>
void expect_exponentials(T lowest, double units) {
  std::vector<T> x;
  for (T value = lowest; value <= 0; value += T(0.0371)) x.push_back(value);
  const std::vector<T> arguments = x;
  const T maximum = 0;
  T sum = 0;
  row_exponentials<T>(x.data(), 0, 1, static_cast<std::int64_t>(x.size()), &maximum, &sum);
  double total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(arguments[i]));
    total += exact;
    ASSERT_NEAR(static_cast<double>(x[i]), exact, units * std::numeric_limits<T>::epsilon() * exact) << arguments[i];
  }
  EXPECT_NEAR(static_cast<double>(sum), total, 1e-5 * total);
}

TEST(Exponential, EqualsTheLibraryFunction) {
  expect_exponentials<float>(-87, 2);
  expect_exponentials<double>(-708, 2);
}

TEST(Exponential, PropagatesNanAndUnderflowsToZero) {
  std::vector<double> x(9, -1e30);
  x[3] = std::numeric_limits<double>::quiet_NaN();
  const double maximum = 0;
  double sum = 0;
  row_exponentials<double>(x.data(), 0, 1, 9, &maximum, &sum);
  EXPECT_TRUE(std::isnan(x[3]));
  EXPECT_TRUE(std::isnan(sum));
  EXPECT_LT(x[4], 1e-300);
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

template <class T>
void expect_gelu(double tolerance) {
  constexpr std::int64_t rows = 3;
  constexpr std::int64_t width = 37;
  std::vector<T> x(rows * width);
  std::vector<T> bias(width);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = T(0.25) * static_cast<T>(static_cast<int>(i) - 55);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = T(0.125) * static_cast<T>(i % 5);
  const std::vector<T> before = x;
  std::vector<T> out(x.size());
  add_bias_gelu<T>(x.data(), bias.data(), rows, width, out.data());
  std::vector<T> gradient(x.size(), T(2));
  gelu_gradient<T>(x.data(), rows * width, gradient.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x[i], before[i] + bias[i % width]);
    const auto value = static_cast<double>(x[i]);
    ASSERT_NEAR(static_cast<double>(out[i]), gelu(value), tolerance * std::max(1.0, std::abs(value)));
    // Central difference, with an error of about 1e-10. 1 - s has the absolute error of s, and is multiplied by x^3.
    const double slope = (gelu(value + 1e-5) - gelu(value - 1e-5)) / 2e-5;
    ASSERT_NEAR(static_cast<double>(gradient[i]), 2 * slope, 20 * tolerance + 1e-9);
  }
}

TEST(Gelu, EqualsTheTanhApproximation) {
  expect_gelu<float>(5e-7);
  expect_gelu<double>(1e-15);
}

// Integers, whose sums are exact in any order, with every remainder of rows and columns.
TEST(ColumnSums, AreExactForIntegers) {
  for (std::int64_t rows = 1; rows <= 9; ++rows) {
    for (std::int64_t width = 1; width <= 35; ++width) {
      std::vector<float> matrix;
      std::vector<float> expected(static_cast<std::size_t>(width), 1);
      for (std::int64_t i = 0; i < rows * width; ++i) {
        matrix.push_back(static_cast<float>(i * 7 % 23 - 11));
        expected[i % width] += matrix.back();
      }
      std::vector<float> sums(static_cast<std::size_t>(width), 1);
      add_column_sums<float>(matrix.data(), rows, width, sums.data());
      ASSERT_EQ(sums, expected) << rows << " x " << width;
    }
  }
}

// Rows of a tile that attend to none, some and all of its columns. Scores are 0, so that every weight is 1.
TEST(SoftmaxTile, MasksColumnsAfterItsLimit) {
  constexpr std::int64_t columns = 5;
  std::vector<double> scores(4 * columns, 0.0);
  std::vector<double> maximum(4, 0.0);
  std::vector<double> sum(4, 1.0);
  std::vector<double> out(4, 7.0);
  const SoftmaxTile<double> tile{
      .scores = scores.data(), .stride = columns, .rows = 4, .columns = columns, .limit = -2};
  softmax_tile<double>(tile, false, maximum.data(), sum.data(), out.data(), 1, 1);
  // Row r attends to r - 1 columns.
  EXPECT_EQ(sum, (std::vector<double>{1, 1, 2, 3}));
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      EXPECT_EQ(scores[row * columns + column], column < row - 1 ? 1 : 0) << row;
    }
  }
  EXPECT_EQ(out, std::vector<double>(4, 7.0));  // the maximum has not changed
}

}  // namespace
}  // namespace sluice::kernels::cpu
