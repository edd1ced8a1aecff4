#include "exec/device/cublas.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "exec/device/dynamic_library.h"

namespace sluice::exec {
namespace {

// The major version of the toolkit first.
#if CUDART_VERSION >= 13000
constexpr std::array<const char*, 2> kCublasNames = {"libcublas.so.13", "libcublas.so.12"};
#else
constexpr std::array<const char*, 2> kCublasNames = {"libcublas.so.12", "libcublas.so.13"};
#endif

Cublas load_cublas() {
  const DynamicLibrary library("cuBLAS", kCublasNames, cuda_library_folders());
  Cublas found{};
  library.find(found.create, "cublasCreate_v2");
  library.find(found.destroy, "cublasDestroy_v2");
  library.find(found.set_stream, "cublasSetStream_v2");
  library.find(found.set_workspace, "cublasSetWorkspace_v2");
  library.find(found.set_math_mode, "cublasSetMathMode");
  library.find(found.set_multiprocessors, "cublasSetSmCountTarget");
  library.find(found.get_property, "cublasGetProperty");
  library.find(found.status_text, "cublasGetStatusString");
  library.find(found.gemm, "cublasGemmEx");
  library.find(found.gemm_batched, "cublasGemmStridedBatchedEx");
  std::array<int, 3> version{};
  found.get_property(MAJOR_VERSION, &version[0]);
  found.get_property(MINOR_VERSION, &version[1]);
  found.get_property(PATCH_LEVEL, &version[2]);
  found.version = fmt::format("{}.{}.{}", version[0], version[1], version[2]);
  found.path = library.path();
  return found;
}

int as_int(std::int64_t value, const char* what) {
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    throw DeviceError(fmt::format("GEMM with {} of {}: cuBLAS supports sizes below 2^31", what, value));
  }
  return static_cast<int>(value);
}

}  // namespace

const Cublas& cublas() {
  static const Cublas table = load_cublas();  // retried at the next call if it throws
  return table;
}

ColumnMajorGemm column_major(const GemmCall& product) {
  return {.first_operation = product.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
          .second_operation = product.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
          .m = as_int(product.columns, "columns"),
          .n = as_int(product.rows, "rows"),
          .k = as_int(product.inner, "an inner size"),
          .first_stride = as_int(product.b_stride, "a stride"),
          .second_stride = as_int(product.a_stride, "a stride"),
          .out_stride = as_int(product.c_stride, "a stride"),
          .batch = as_int(product.batch, "a batch")};
}

}  // namespace sluice::exec
