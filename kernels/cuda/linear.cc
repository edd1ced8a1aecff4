#include "kernels/cuda/linear.h"

namespace sluice::kernels::cuda {
namespace {

bool run_fused(const Linear& linear, const GemmCall& call, const GemmEpilogue& epilogue) {
  return linear.library != nullptr && linear.library->multiply(call, epilogue, linear.stream);
}

std::int64_t stride(std::int64_t given, std::int64_t width) { return given > 0 ? given : width; }

GemmCall forward_call(const Linear& linear, const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs,
                      std::int64_t inputs, void* out, Element out_element, const LinearOptions& options = {}) {
  return {.rows = rows,
          .columns = outputs,
          .inner = inputs,
          .a = x,
          .a_stride = stride(options.inputs_stride, inputs),
          .b = weights,
          .b_stride = inputs,
          .b_transposed = true,
          .c = out,
          .c_stride = stride(options.outputs_stride, outputs),
          .in = linear.element,
          .out = out_element};
}

GemmCall input_gradient_call(const Linear& linear, const Half* dout, const Half* weights, std::int64_t rows,
                             std::int64_t outputs, std::int64_t inputs, Half* dx, const LinearOptions& options = {}) {
  return {.rows = rows,
          .columns = inputs,
          .inner = outputs,
          .a = dout,
          .a_stride = stride(options.outputs_stride, outputs),
          .b = weights,
          .b_stride = inputs,
          .c = dx,
          .c_stride = stride(options.inputs_stride, inputs),
          .in = linear.element,
          .out = linear.element,
          .beta = options.add ? 1.0F : 0.0F};
}

GemmCall weight_gradient_call(const Linear& linear, const Half* dout, const Half* x, std::int64_t rows,
                              std::int64_t outputs, std::int64_t inputs, float* gradient,
                              const LinearOptions& options = {}) {
  return {.rows = outputs,
          .columns = inputs,
          .inner = rows,
          .a = dout,
          .a_stride = stride(options.outputs_stride, outputs),
          .a_transposed = true,
          .b = x,
          .b_stride = stride(options.inputs_stride, inputs),
          .c = gradient,
          .c_stride = inputs,
          .in = linear.element,
          .out = Element::float32,
          .beta = 1};
}

}  // namespace

void Linear::forward(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                     Half* out, const LinearOptions& options) const {
  if (rows == 0) return;
  device.multiply(forward_call(*this, x, weights, rows, outputs, inputs, out, element, options), stream);
}

void Linear::forward_to_real(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs,
                             std::int64_t inputs, float* out) const {
  if (rows == 0) return;
  device.multiply(forward_call(*this, x, weights, rows, outputs, inputs, out, Element::float32), stream);
}

void Linear::input_gradient(const Half* dout, const Half* weights, std::int64_t rows, std::int64_t outputs,
                            std::int64_t inputs, Half* dx, const LinearOptions& options) const {
  if (rows == 0) return;
  device.multiply(input_gradient_call(*this, dout, weights, rows, outputs, inputs, dx, options), stream);
}

void Linear::weight_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs,
                             std::int64_t inputs, float* gradient, const LinearOptions& options) const {
  if (rows == 0) return;
  device.multiply(weight_gradient_call(*this, dout, x, rows, outputs, inputs, gradient, options), stream);
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
  if (run_fused(*this, input_gradient_call(*this, dout, weights, rows, outputs, inputs, dpre), epilogue)) {
    return;
  }
  input_gradient(dout, weights, rows, outputs, inputs, dpre);
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
