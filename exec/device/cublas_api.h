#pragma once

#include "model/namespaces.h"

// The part of the cuBLAS interface that cublas.h needs, with its own names, so that the build does
// not need its headers; tests/exec/device/cublas_abi_test.cc compares it with them.
namespace sluice::exec {

struct cublasContext;
using cublasHandle_t = cublasContext*;

enum cublasStatus_t : int { CUBLAS_STATUS_SUCCESS = 0 };
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasMath_t : int { CUBLAS_DEFAULT_MATH = 0, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };
enum cublasComputeType_t : int { CUBLAS_COMPUTE_32F = 68 };
enum cublasGemmAlgo_t : int { CUBLAS_GEMM_DEFAULT = -1 };

}  // namespace sluice::exec
