#pragma once

#include <cstdint>
#include <string>

#include "model/namespaces.h"

namespace sluice::kernels::cpu {

// Products of row-major matrices, each given with the distance between its rows. Single-threaded, and safe to call from
// several threads. Any size may be zero. The BLAS packs in buffers of its own; Eigen takes them from malloc.

enum class Into : bool { set, add };

// out[m, n] = scale a[m, k] b[n, k]^T, or += : a layer's forward product, for weights [outputs, inputs].
template <class T>
void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, T scale, const T* a, std::int64_t a_stride,
                         const T* b, std::int64_t b_stride, Into into, T* out, std::int64_t out_stride);
// out[m, n] = a[m, k] b[k, n]: input gradients.
template <class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
              std::int64_t b_stride, Into into, T* out, std::int64_t out_stride);
// out[m, n] += a[k, m]^T b[k, n]: weight gradients.
template <class T>
void add_product_of_transposed(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride,
                               const T* b, std::int64_t b_stride, T* out, std::int64_t out_stride);

// What computes them: "OpenBLAS 0.3.21 DYNAMIC_ARCH ...", "Eigen 3.4.0".
std::string blas_name();

// Makes the BLAS compute in the thread that calls it: ranks are threads, and each has one.
void use_one_thread();

}  // namespace sluice::kernels::cpu
