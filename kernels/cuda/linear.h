#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.h"
#include "kernels/device.h"

namespace sluice::kernels::cuda {

// The matrix multiplications of a linear layer without bias, enqueued on a stream. Weights are [outputs, inputs]. All
// matrices are dense, except where a stride, the distance between rows in elements, is given. Do nothing without rows.
struct Linear {
  Element element;
  Device& device;
  Stream& stream;

  // out [rows, outputs] = x [rows, inputs] x weights^T. x_stride 0: dense.
  void forward(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
               Half* out, std::int64_t x_stride = 0) const;
  void forward_to_float(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs,
                        std::int64_t inputs, float* out) const;
  // dx [rows, inputs] = dout [rows, outputs] x weights, or += if `add`.
  void input_gradient(const Half* dout, const Half* weights, std::int64_t rows, std::int64_t outputs,
                      std::int64_t inputs, Half* dx, std::int64_t stride, bool add = false) const;
  // gradient [outputs, inputs] += dout^T x, in float32. x_stride 0: dense.
  void weight_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       float* gradient, std::int64_t x_stride = 0) const;
};

}  // namespace sluice::kernels::cuda
