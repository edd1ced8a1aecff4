// The part of the CUDA devices that runs without a GPU: arguments of cuBLAS, and the reason why there is no device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/device/cublas.h"
#include "exec/device/provider.h"
#include "model/errors.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// C = op(A) op(B) in columns, as the manual of cuBLAS has it: element (i, j) of a matrix of leading dimension ld is
// x[j * ld + i].
void column_major_gemm(const ColumnMajorGemm& how, const std::vector<double>& first, const std::vector<double>& second,
                       std::vector<double>& out) {
  const auto at = [](const std::vector<double>& x, int ld, bool transposed, int row, int column) {
    return x[transposed ? row * ld + column : column * ld + row];
  };
  for (int i = 0; i < how.m; ++i) {
    for (int j = 0; j < how.n; ++j) {
      double sum = 0;
      for (int l = 0; l < how.k; ++l) {
        sum += at(first, how.first_stride, how.first_operation == CUBLAS_OP_T, i, l) *
               at(second, how.second_stride, how.second_operation == CUBLAS_OP_T, l, j);
      }
      out[j * how.out_stride + i] = sum;
    }
  }
}

TEST(ColumnMajor, IsTheTransposedGemm) {
  constexpr int kRows = 3;
  constexpr int kColumns = 5;
  constexpr int kInner = 4;
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      // Strides above the widths, so that none passes for another.
      const GemmCall product{.rows = kRows,
                             .columns = kColumns,
                             .inner = kInner,
                             .a_stride = 7,
                             .a_transposed = a_transposed,
                             .b_stride = 8,
                             .b_transposed = b_transposed,
                             .c_stride = 9};
      std::vector<double> a(7 * 8);
      std::vector<double> b(8 * 8);
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i % 11) - 5;
      for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i % 13) - 6;
      std::vector<double> c(9 * kRows, 0.0);
      const ColumnMajorGemm how = column_major(product);
      EXPECT_EQ(how.batch, 1);
      column_major_gemm(how, b, a, c);
      for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
          double expected = 0;
          for (int l = 0; l < kInner; ++l) {
            expected += a[a_transposed ? l * 7 + row : row * 7 + l] * b[b_transposed ? column * 8 + l : l * 8 + column];
          }
          EXPECT_EQ(c[row * 9 + column], expected)
              << row << ", " << column << (a_transposed ? " A'" : " A") << (b_transposed ? " B'" : " B");
        }
      }
    }
  }
}

TEST(ColumnMajor, RejectsSizesAboveInt) { EXPECT_THROW(column_major({.rows = std::int64_t{1} << 31}), DeviceError); }

TEST(CudaDevices, ReportWhyThereAreNone) {
  const DeviceProvider* const provider = device_provider();
  ASSERT_NE(provider, nullptr);
  EXPECT_EQ(provider->name(), "cuda");
  EXPECT_THAT(provider->architectures(), HasSubstr("sm_80"));
  if (!provider->devices().empty()) GTEST_SKIP() << "there is a GPU here";
  EXPECT_THAT(why_no_devices(), Not(IsEmpty()));
  EXPECT_THAT(why_no_devices(), Not(HasSubstr("\n")));
  for (const char* const request : {"gpu", "gpu:2", "green:4", "stream:4"}) {
    EXPECT_EQ(test::error_from([&] { provider->open(parse_devices(request)); }), "devices: " + why_no_devices());
  }
}

}  // namespace
}  // namespace sluice::test
