#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <string>

#include "exec/device/cublas_api.h"
#include "kernels/device.h"

namespace sluice::exec {

// The functions of cuBLAS that matrix multiplications need; the library is loaded on first use.
struct Cublas {
  cublasStatus_t (*create)(cublasHandle_t*);
  cublasStatus_t (*destroy)(cublasHandle_t);
  cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
  cublasStatus_t (*set_workspace)(cublasHandle_t, void*, std::size_t);
  cublasStatus_t (*set_math_mode)(cublasHandle_t, cublasMath_t);
  cublasStatus_t (*set_multiprocessors)(cublasHandle_t, int);
  cublasStatus_t (*get_property)(libraryPropertyType, int*);
  const char* (*status_text)(cublasStatus_t);
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*,
                         cudaDataType, int, const void*, cudaDataType, int, const void*, void*, cudaDataType, int,
                         cublasComputeType_t, cublasGemmAlgo_t);
  cublasStatus_t (*gemm_batched)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                 const void*, cudaDataType, int, long long, const void*, cudaDataType, int, long long,
                                 const void*, void*, cudaDataType, int, long long, int, cublasComputeType_t,
                                 cublasGemmAlgo_t);
  std::string version;  // "13.0.2"
  std::string path;
};

// Throws DeviceError, on every call, if the library is not found.
const Cublas& cublas();

// A GEMM as cuBLAS takes it: column-major, where a row-major matrix is its transpose. So C' = op(B)' op(A)'.
struct ColumnMajorGemm {
  cublasOperation_t first_operation;   // on B
  cublasOperation_t second_operation;  // on A
  int m;                               // columns of C
  int n;                               // rows of C
  int k;
  int first_stride;
  int second_stride;
  int out_stride;
  int batch;
};
// Throws DeviceError if a size exceeds the int of cuBLAS.
ColumnMajorGemm column_major(const GemmCall& product);

}  // namespace sluice::exec
