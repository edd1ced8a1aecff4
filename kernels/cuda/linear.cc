#include "kernels/cuda/linear.h"

namespace sluice::kernels::cuda {
namespace {

bool run_fused(const Linear& linear, const GemmCall& call, const GemmEpilogue& epilogue) {
  return linear.library != nullptr && linear.library->multiply(call, epilogue, linear.stream);
}

GemmCall forward_call(const Linear& linear, const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs,
                      std::int64_t inputs, void* out, Element out_element) {
  return {.rows = rows,
          .columns = outputs,
          .inner = inputs,
          .a = x,
          .a_stride = inputs,
          .b = weights,
          .b_stride = inputs,
          .b_transposed = true,
          .c = out,
          .c_stride = outputs,
          .in = linear.element,
          .out = out_element};
}

GemmCall input_gradient_call(const Linear& linear, const Half* dout, const Half* weights, std::int64_t rows,
                             std::int64_t outputs, std::int64_t inputs, Half* dx, std::int64_t stride) {
  return {.rows = rows,
          .columns = inputs,
          .inner = outputs,
          .a = dout,
          .a_stride = outputs,
          .b = weights,
          .b_stride = inputs,
          .c = dx,
          .c_stride = stride,
          .in = linear.element,
          .out = linear.element};
}

GemmCall weight_gradient_call(const Linear& linear, const Half* dout, const Half* x, std::int64_t rows,
                              std::int64_t outputs, std::int64_t inputs, float* gradient) {
  return {.rows = outputs,
          .columns = inputs,
          .inner = rows,
          .a = dout,
          .a_stride = outputs,
          .a_transposed = true,
          .b = x,
          .b_stride = inputs,
          .c = gradient,
          .c_stride = inputs,
          .in = linear.element,
          .out = Element::float32,
          .beta = 1};
}

}  // namespace

void Linear::forward(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                     Half* out, std::int64_t x_stride) const {
  if (rows == 0) return;
  GemmCall call = forward_call(*this, x, weights, rows, outputs, inputs, out, element);
  if (x_stride > 0) call.a_stride = x_stride;
  device.multiply(call, stream);
}

void Linear::forward_to_float(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs,
                              std::int64_t inputs, float* out) const {
  if (rows == 0) return;
  device.multiply(forward_call(*this, x, weights, rows, outputs, inputs, out, Element::float32), stream);
}

void Linear::input_gradient(const Half* dout, const Half* weights, std::int64_t rows, std::int64_t outputs,
                            std::int64_t inputs, Half* dx, std::int64_t stride, bool add) const {
  if (rows == 0) return;
  GemmCall call = input_gradient_call(*this, dout, weights, rows, outputs, inputs, dx, stride);
  if (add) call.beta = 1;
  device.multiply(call, stream);
}

void Linear::weight_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs,
                             std::int64_t inputs, float* gradient, std::int64_t x_stride) const {
  if (rows == 0) return;
  GemmCall call = weight_gradient_call(*this, dout, x, rows, outputs, inputs, gradient);
  if (x_stride > 0) call.b_stride = x_stride;
  device.multiply(call, stream);
}

void Linear::forward_gelu(const Half* x, const Half* weights, const Half* bias, std::int64_t rows, std::int64_t outputs,
                          std::int64_t inputs, Half* pre, Half* out) const {
  if (rows == 0) return;
  const GemmEpilogue epilogue{.kind = GemmEpilogue::Kind::gelu, .bias = bias, .preactivations = pre};
  if (run_fused(*this, forward_call(*this, x, weights, rows, outputs, inputs, out, element), epilogue)) return;
  forward(x, weights, rows, outputs, inputs, pre);
  gelu_after_bias(stream, element, pre, bias, rows, outputs, out);
}

void Linear::input_gradient_gelu(const Half* dout, const Half* weights, const Half* pre, std::int64_t rows,
                                 std::int64_t outputs, std::int64_t inputs, Half* dpre) const {
  if (rows == 0) return;
  const GemmEpilogue epilogue{.kind = GemmEpilogue::Kind::gelu_gradient, .preactivations = const_cast<Half*>(pre)};
  if (run_fused(*this, input_gradient_call(*this, dout, weights, rows, outputs, inputs, dpre, inputs), epilogue)) {
    return;
  }
  input_gradient(dout, weights, rows, outputs, inputs, dpre, inputs);
  activate_gradient(stream, element, false, pre, nullptr, rows, inputs, dpre);
}

VectorSum Linear::weight_and_bias_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs,
                                           std::int64_t inputs, float* gradient, float* bias_gradient,
                                           float* sums) const {
  if (rows == 0) return {};
  const GemmEpilogue epilogue{.kind = GemmEpilogue::Kind::row_sums, .sums = sums};
  if (run_fused(*this, weight_gradient_call(*this, dout, x, rows, outputs, inputs, gradient), epilogue)) {
    return {.from = sums, .count = outputs, .into = bias_gradient};
  }
  add_column_sums(stream, element, dout, rows, outputs, bias_gradient);
  weight_gradient(dout, x, rows, outputs, inputs, gradient);
  return {};
}

}  // namespace sluice::kernels::cuda
