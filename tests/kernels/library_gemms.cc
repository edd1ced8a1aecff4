#include "tests/kernels/library_gemms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "model/to_size.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

using Column = std::vector<double>;

double tanh_gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

// Rounded matrices with the library that multiplies them.
class LinearProblem {
 public:
  LinearProblem(const LinearCase& of, Device& device)
      : of_(of), device_(device), stream_(device.make_stream(StreamPriority::normal)) {}

  // Preactivations of magnitude 1, between which and the exact GELU the difference is largest.
  void forward(bool with_bias) {
    const Column x = random(of_.rows * of_.inputs, 1);
    const Column weights = random(of_.outputs * of_.inputs, 1 / std::sqrt(static_cast<double>(of_.inputs)));
    const Column bias = random(of_.outputs, 1);
    Column pre(to_size(of_.rows * of_.outputs));
    Column out(pre.size());
    for (std::int64_t row = 0; row < of_.rows; ++row) {
      for (std::int64_t column = 0; column < of_.outputs; ++column) {
        double sum = with_bias ? bias[column] : 0;
        for (std::int64_t k = 0; k < of_.inputs; ++k) sum += x[row * of_.inputs + k] * weights[column * of_.inputs + k];
        pre[row * of_.outputs + column] = sum;
        out[row * of_.outputs + column] = tanh_gelu(sum);
      }
    }
    DeviceMemory& pre_there = room(of_.element, of_.rows * of_.outputs);
    DeviceMemory& out_there = room(of_.element, of_.rows * of_.outputs);
    multiply({.rows = of_.rows,
              .columns = of_.outputs,
              .inner = of_.inputs,
              .a = written(x),
              .a_stride = of_.inputs,
              .b = written(weights),
              .b_stride = of_.inputs,
              .b_transposed = true,
              .c = out_there.data(),
              .c_stride = of_.outputs,
              .in = of_.element,
              .out = of_.element},
             {.kind = GemmEpilogue::Kind::gelu,
              .bias = with_bias ? written(bias) : nullptr,
              .preactivations = pre_there.data()});
    expect_equal(of_.element, pre_there, pre);
    expect_equal(of_.element, out_there, out);
    if (of_.element != Element::float16) return;
    const Column result = as_numbers(of_.element, out_there.read());
    int compared = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double exact = 0.5 * pre[i] * (1 + std::erf(pre[i] / std::sqrt(2.0)));
      if (std::abs(exact - out[i]) < 2e-4 || std::abs(out[i]) > 0.2) continue;  // rounding is below 6e-5
      EXPECT_NEAR(result[i], out[i], 1e-4);
      ++compared;
    }
    EXPECT_GT(compared, 0);
  }

  void input_gradient() {
    const Column gradient = random(of_.rows * of_.outputs, 1);
    const Column weights = random(of_.outputs * of_.inputs, 1 / std::sqrt(static_cast<double>(of_.outputs)));
    const Column pre = random(of_.rows * of_.inputs, 1);
    Column out(pre.size());
    constexpr double kStep = 1e-5;
    for (std::int64_t row = 0; row < of_.rows; ++row) {
      for (std::int64_t column = 0; column < of_.inputs; ++column) {
        double sum = 0;
        for (std::int64_t k = 0; k < of_.outputs; ++k) {
          sum += gradient[row * of_.outputs + k] * weights[k * of_.inputs + column];
        }
        const double x = pre[row * of_.inputs + column];
        out[row * of_.inputs + column] = sum * (tanh_gelu(x + kStep) - tanh_gelu(x - kStep)) / (2 * kStep);
      }
    }
    DeviceMemory& out_there = room(of_.element, of_.rows * of_.inputs);
    multiply({.rows = of_.rows,
              .columns = of_.inputs,
              .inner = of_.outputs,
              .a = written(gradient),
              .a_stride = of_.outputs,
              .b = written(weights),
              .b_stride = of_.inputs,
              .c = out_there.data(),
              .c_stride = of_.inputs,
              .in = of_.element,
              .out = of_.element},
             {.kind = GemmEpilogue::Kind::gelu_gradient, .preactivations = written(pre)});
    expect_equal(of_.element, out_there, out);
  }

  void weight_gradient() {
    const Column gradient = random(of_.rows * of_.outputs, 1, 0.5);
    const Column x = random(of_.rows * of_.inputs, 1);
    Column sums(to_size(of_.outputs));
    Column out(to_size(of_.outputs * of_.inputs), 3);
    for (std::int64_t row = 0; row < of_.outputs; ++row) {
      for (std::int64_t k = 0; k < of_.rows; ++k) {
        const double factor = gradient[k * of_.outputs + row];
        sums[row] += factor;
        // Accumulated by each of the two calls.
        for (std::int64_t column = 0; column < of_.inputs; ++column) {
          out[row * of_.inputs + column] += 2 * factor * x[k * of_.inputs + column];
        }
      }
    }
    DeviceMemory& out_there = room(Element::float32, of_.outputs * of_.inputs);
    out_there.write(as_bytes(Element::float32, Column(out.size(), 3)));
    DeviceMemory& sums_there = room(Element::float32, of_.outputs);
    multiply({.rows = of_.outputs,
              .columns = of_.inputs,
              .inner = of_.rows,
              .a = written(gradient),
              .a_stride = of_.outputs,
              .a_transposed = true,
              .b = written(x),
              .b_stride = of_.inputs,
              .c = out_there.data(),
              .c_stride = of_.inputs,
              .in = of_.element,
              .out = Element::float32,
              .beta = 1},
             {.kind = GemmEpilogue::Kind::row_sums, .sums = reinterpret_cast<float*>(sums_there.data())});
    EXPECT_LT(relative_error(as_numbers(Element::float32, out_there.read()), out), 1e-5);
    EXPECT_LT(relative_error(as_numbers(Element::float32, sums_there.read()), sums), 1e-5);
  }

  bool intact() const {
    bool all = true;
    for (const auto& memory : memories_) all = all && memory->intact();
    return all;
  }

 private:
  Column random(std::int64_t count, double deviation, double mean = 0) {
    std::normal_distribution<double> normal(mean, deviation);
    Column out(to_size(count));
    for (double& number : out) number = normal(engine_);
    return rounded(of_.element, out);
  }
  DeviceMemory& room(Element element, std::int64_t count) {
    return *memories_.emplace_back(std::make_unique<DeviceMemory>(device_, *stream_, count * bytes_of(element)));
  }
  std::byte* written(const Column& numbers) {
    DeviceMemory& to = room(of_.element, static_cast<std::int64_t>(numbers.size()));
    to.write(as_bytes(of_.element, numbers));
    return to.data();
  }
  void multiply(const GemmCall& gemm, const GemmEpilogue& epilogue) {
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(device_.gemm_library()->multiply(gemm, epilogue, *stream_));
    device_.synchronize(*stream_);
  }
  void expect_equal(Element element, const DeviceMemory& there, const Column& numbers) const {
    EXPECT_LT(relative_error(as_numbers(element, there.read()), numbers), allowed_error(element));
  }

  LinearCase of_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<DeviceMemory>> memories_;
  std::mt19937_64 engine_{7};
};

}  // namespace

void expect_epilogues_equal_naive(const LinearCase& of, Device& device) {
  LinearProblem problem(of, device);
  problem.forward(true);
  problem.forward(false);
  problem.input_gradient();
  problem.weight_gradient();
  EXPECT_TRUE(problem.intact());
  for (const std::string& note : device.gemm_library()->notes()) ADD_FAILURE() << note;
}

}  // namespace sluice::test
