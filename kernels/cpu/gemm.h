#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::kernels::cpu {

// Matrix multiplication (GEMM) of row-major matrices with row strides. Single-threaded, and may be called concurrently.
// Sizes may be zero. OpenBLAS packs into buffers of its own, Eigen allocates them.

enum class Into : bool { set, add };

// out[m, n] = (or +=) scale a[m, k] b[n, k]^T: the forward pass, with weights [outputs, inputs].
template <class T>
void gemm_nt(std::int64_t m, std::int64_t n, std::int64_t k, T scale, const T* a, std::int64_t a_stride, const T* b,
             std::int64_t b_stride, Into into, T* out, std::int64_t out_stride);
// out[m, n] = (or +=) a[m, k] b[k, n]: input gradients.
template <class T>
void gemm_nn(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
             std::int64_t b_stride, Into into, T* out, std::int64_t out_stride);
// out[m, n] += a[k, m]^T b[k, n]: weight gradients.
template <class T>
void gemm_tn(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
             std::int64_t b_stride, T* out, std::int64_t out_stride);

// Returns the library's name and version: "OpenBLAS 0.3.21 DYNAMIC_ARCH ...", "Eigen 3.4.0".
std::string blas_name();

// Returns the value of OPENBLAS_CORETYPE that selects faster kernels than those that OpenBLAS has chosen for this CPU,
// or
// "". OpenBLAS knows CPUs by model: it takes kernels for AVX2 on newer ones with AVX-512.
std::string faster_blas_kernels();
// The rule: `chosen` is OpenBLAS's name of its kernels, `config` lists what the library was built with.
std::string faster_blas_kernels(std::string_view chosen, std::string_view config, bool has_avx512);

// Disables the BLAS's own threads, because ranks are threads already.
void use_one_thread();

}  // namespace sluice::kernels::cpu
