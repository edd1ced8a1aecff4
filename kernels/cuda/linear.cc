#include "kernels/cuda/linear.h"

namespace sluice::kernels::cuda {
namespace {

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
  device.multiply({.rows = rows,
                   .columns = inputs,
                   .inner = outputs,
                   .a = dout,
                   .a_stride = outputs,
                   .b = weights,
                   .b_stride = inputs,
                   .c = dx,
                   .c_stride = stride,
                   .in = element,
                   .out = element,
                   .beta = add ? 1.0F : 0.0F},
                  stream);
}

void Linear::weight_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs,
                             std::int64_t inputs, float* gradient, std::int64_t x_stride) const {
  if (rows == 0) return;
  device.multiply({.rows = outputs,
                   .columns = inputs,
                   .inner = rows,
                   .a = dout,
                   .a_stride = outputs,
                   .a_transposed = true,
                   .b = x,
                   .b_stride = x_stride > 0 ? x_stride : inputs,
                   .c = gradient,
                   .c_stride = inputs,
                   .in = element,
                   .out = Element::float32,
                   .beta = 1},
                  stream);
}

}  // namespace sluice::kernels::cuda
