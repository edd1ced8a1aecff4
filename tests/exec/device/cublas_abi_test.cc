// Compares exec/device/cublas.h with cuBLAS's own header, and loads the library.

#include <cublas_v2.h>
#include <gtest/gtest.h>

#include "exec/device/cublas.h"

namespace sluice::test {
namespace {

static_assert(int{CUBLAS_STATUS_SUCCESS} == int{::CUBLAS_STATUS_SUCCESS});
static_assert(int{CUBLAS_OP_N} == int{::CUBLAS_OP_N} && int{CUBLAS_OP_T} == int{::CUBLAS_OP_T});
static_assert(int{CUBLAS_DEFAULT_MATH} == int{::CUBLAS_DEFAULT_MATH});
static_assert(int{CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION} ==
              int{::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION});
static_assert(int{CUBLAS_COMPUTE_32F} == int{::CUBLAS_COMPUTE_32F});
static_assert(int{CUBLAS_GEMM_DEFAULT} == int{::CUBLAS_GEMM_DEFAULT});

// The type of the header that stands for one of ours.
template <class T>
struct OfHeader {
  using Type = T;
};
#define SLUICE_OF_HEADER(name)                   \
  template <>                                    \
  struct OfHeader<name> {                        \
    using Type = ::name;                         \
    static_assert(sizeof(name) == sizeof(Type)); \
  }
SLUICE_OF_HEADER(cublasHandle_t);
SLUICE_OF_HEADER(cublasStatus_t);
SLUICE_OF_HEADER(cublasOperation_t);
SLUICE_OF_HEADER(cublasMath_t);
SLUICE_OF_HEADER(cublasComputeType_t);
SLUICE_OF_HEADER(cublasGemmAlgo_t);
#undef SLUICE_OF_HEADER
template <>
struct OfHeader<cublasHandle_t*> {
  using Type = ::cublasHandle_t*;
};
template <class Result, class... Parameters>
struct OfHeader<Result (*)(Parameters...)> {
  using Type = typename OfHeader<Result>::Type (*)(typename OfHeader<Parameters>::Type...);
};

// Compiles only where the header declares the function with these parameters.
#define SLUICE_DECLARED(ours, theirs) \
  static_assert(sizeof(static_cast<OfHeader<decltype(Cublas::ours)>::Type>(&::theirs)) == sizeof(Cublas::ours))
SLUICE_DECLARED(create, cublasCreate_v2);
SLUICE_DECLARED(destroy, cublasDestroy_v2);
SLUICE_DECLARED(set_stream, cublasSetStream_v2);
SLUICE_DECLARED(set_workspace, cublasSetWorkspace_v2);
SLUICE_DECLARED(set_math_mode, cublasSetMathMode);
SLUICE_DECLARED(set_multiprocessors, cublasSetSmCountTarget);
SLUICE_DECLARED(get_property, cublasGetProperty);
SLUICE_DECLARED(status_text, cublasGetStatusString);
SLUICE_DECLARED(gemm, cublasGemmEx);
SLUICE_DECLARED(gemm_batched, cublasGemmStridedBatchedEx);
#undef SLUICE_DECLARED

TEST(CublasLibrary, LoadsAndReportsItsVersion) {
  const Cublas& found = cublas();
  EXPECT_EQ(found.version.substr(0, 1), "1") << found.path;  // 12 or 13
  EXPECT_STREQ(found.status_text(CUBLAS_STATUS_SUCCESS), "success");
}

}  // namespace
}  // namespace sluice::test
