#pragma once

#include <cstdint>

#include "kernels/cuda/buffers.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/device.h"
#include "kernels/gemm_library.h"

namespace sluice::kernels::cuda {

// The matrix multiplications of a linear layer, enqueued on a stream. Weights are [outputs, inputs]. Do nothing without
// rows.
struct Linear {
  Element element;
  Device& device;
  Stream& stream;
  GemmLibrary* library = nullptr;  // null: none

  // out [rows, outputs] = x [rows, inputs] x weights^T.
  void forward(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
               Half* out, const LinearOptions& options = {}) const;
  void forward_to_real(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       float* out) const;
  // dx [rows, inputs] = dout [rows, outputs] x weights.
  void input_gradient(const Half* dout, const Half* weights, std::int64_t rows, std::int64_t outputs,
                      std::int64_t inputs, Half* dx, const LinearOptions& options = {}) const;
  // gradient [outputs, inputs] += dout^T x, in float32.
  void weight_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       float* gradient, const LinearOptions& options = {}) const;

  // With an epilogue where the library supports it, else with kernels of our own.
  // pre [rows, outputs] = x weights^T + bias, and out = gelu(pre) in the tanh approximation; bias may be null.
  void forward_gelu(const Half* x, const Half* weights, const Half* bias, std::int64_t rows, std::int64_t outputs,
                    std::int64_t inputs, Half* pre, Half* out) const;
  // dpre [rows, inputs] = dout [rows, outputs] x weights * gelu'(pre).
  void input_gradient_gelu(const Half* dout, const Half* weights, const Half* pre, std::int64_t rows,
                           std::int64_t outputs, std::int64_t inputs, Half* dpre) const;
  // Also adds the sums of the columns of dout to bias_gradient [outputs], or writes them to `sums` [outputs] and
  // returns the addition that the caller owes.
  VectorSum weight_and_bias_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs,
                                     std::int64_t inputs, float* gradient, float* bias_gradient, float* sums) const;
};

}  // namespace sluice::kernels::cuda
