#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "exec/device/cublaslt_api.h"

namespace sluice::exec {

// The functions of cublasLt that GEMMs with epilogues need.
struct CublasLt {
  std::size_t (*get_version)();
  cublasStatus_t (*create)(cublasLtHandle_t*);
  cublasStatus_t (*destroy)(cublasLtHandle_t);
  const char* (*status_text)(cublasStatus_t);
  cublasStatus_t (*create_operation)(cublasLtMatmulDesc_t*, cublasComputeType_t, CublasLtType);
  cublasStatus_t (*destroy_operation)(cublasLtMatmulDesc_t);
  cublasStatus_t (*set_operation)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*, std::size_t);
  cublasStatus_t (*create_layout)(cublasLtMatrixLayout_t*, CublasLtType, std::uint64_t, std::uint64_t, std::int64_t);
  cublasStatus_t (*destroy_layout)(cublasLtMatrixLayout_t);
  cublasStatus_t (*create_preference)(cublasLtMatmulPreference_t*);
  cublasStatus_t (*destroy_preference)(cublasLtMatmulPreference_t);
  cublasStatus_t (*set_preference)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*,
                                   std::size_t);
  cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                              cublasLtMatmulHeuristicResult_t*, int*);
  cublasStatus_t (*multiply)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t,
                             const void*, cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t,
                             void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, std::size_t,
                             CUstream_st*);
  std::string version;  // "13.0.2"
  std::string path;
};

// Loads libcublasLt.so.`major` from the loader's path or from one of `folders`. cuBLAS of the same major version loads
// the same library. Throws DeviceError if it is not found.
CublasLt load_cublaslt(int major, std::span<const std::string> folders);

}  // namespace sluice::exec
