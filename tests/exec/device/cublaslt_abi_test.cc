// Compares exec/device/cublaslt.h with cublasLt's own header, and loads the library.

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "exec/device/cublas.h"

namespace sluice::test {
namespace {

static_assert(int{CUBLASLT_MATMUL_DESC_TRANSA} == int{::CUBLASLT_MATMUL_DESC_TRANSA});
static_assert(int{CUBLASLT_MATMUL_DESC_TRANSB} == int{::CUBLASLT_MATMUL_DESC_TRANSB});
static_assert(int{CUBLASLT_MATMUL_DESC_EPILOGUE} == int{::CUBLASLT_MATMUL_DESC_EPILOGUE});
static_assert(int{CUBLASLT_MATMUL_DESC_BIAS_POINTER} == int{::CUBLASLT_MATMUL_DESC_BIAS_POINTER});
static_assert(int{CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER} == int{::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER});
static_assert(int{CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD} == int{::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD});
static_assert(int{CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET} == int{::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET});
static_assert(int{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES} == int{::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES});
static_assert(int{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK} == int{::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK});
static_assert(int{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES} == int{::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES});
static_assert(int{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES} == int{::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES});
static_assert(int{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES} == int{::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES});
static_assert(int{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES} == int{::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES});
static_assert(int{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE} == int{::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
static_assert(int{CUBLASLT_EPILOGUE_GELU_AUX} == int{::CUBLASLT_EPILOGUE_GELU_AUX});
static_assert(int{CUBLASLT_EPILOGUE_GELU_AUX_BIAS} == int{::CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
static_assert(int{CUBLASLT_EPILOGUE_DGELU} == int{::CUBLASLT_EPILOGUE_DGELU});
static_assert(int{CUBLASLT_EPILOGUE_BGRADB} == int{::CUBLASLT_EPILOGUE_BGRADB});
static_assert(int(CublasLtType::float32) == int{CUDA_R_32F} && int(CublasLtType::float16) == int{CUDA_R_16F} &&
              int(CublasLtType::bfloat16) == int{CUDA_R_16BF});
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) ==
              offsetof(::cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) == offsetof(::cublasLtMatmulHeuristicResult_t, state));

// The type of the header that stands for one of ours.
template <class T>
struct OfLtHeader {
  using Type = T;
};
#define SLUICE_OF_HEADER(ours, theirs)           \
  template <>                                    \
  struct OfLtHeader<ours> {                      \
    using Type = theirs;                         \
    static_assert(sizeof(ours) == sizeof(Type)); \
  }
SLUICE_OF_HEADER(cublasStatus_t, ::cublasStatus_t);
SLUICE_OF_HEADER(cublasComputeType_t, ::cublasComputeType_t);
SLUICE_OF_HEADER(CublasLtType, ::cudaDataType_t);
SLUICE_OF_HEADER(cublasLtHandle_t, ::cublasLtHandle_t);
SLUICE_OF_HEADER(cublasLtMatmulDesc_t, ::cublasLtMatmulDesc_t);
SLUICE_OF_HEADER(cublasLtMatrixLayout_t, ::cublasLtMatrixLayout_t);
SLUICE_OF_HEADER(cublasLtMatmulPreference_t, ::cublasLtMatmulPreference_t);
SLUICE_OF_HEADER(cublasLtMatmulDescAttributes_t, ::cublasLtMatmulDescAttributes_t);
SLUICE_OF_HEADER(cublasLtMatmulPreferenceAttributes_t, ::cublasLtMatmulPreferenceAttributes_t);
SLUICE_OF_HEADER(cublasLtMatmulAlgo_t, ::cublasLtMatmulAlgo_t);
SLUICE_OF_HEADER(cublasLtMatmulHeuristicResult_t, ::cublasLtMatmulHeuristicResult_t);
#undef SLUICE_OF_HEADER
template <class T>
struct OfLtHeader<T*> {
  using Type = std::conditional_t<std::is_const_v<T>, const typename OfLtHeader<std::remove_const_t<T>>::Type,
                                  typename OfLtHeader<T>::Type>*;
};
template <class Result, class... Parameters>
struct OfLtHeader<Result (*)(Parameters...)> {
  using Type = typename OfLtHeader<Result>::Type (*)(typename OfLtHeader<Parameters>::Type...);
};

// Compiles only where the header declares the function with these parameters.
#define SLUICE_DECLARED(ours, theirs) \
  static_assert(sizeof(static_cast<OfLtHeader<decltype(CublasLt::ours)>::Type>(&::theirs)) == sizeof(CublasLt::ours))
SLUICE_DECLARED(get_version, cublasLtGetVersion);
SLUICE_DECLARED(create, cublasLtCreate);
SLUICE_DECLARED(destroy, cublasLtDestroy);
SLUICE_DECLARED(status_text, cublasLtGetStatusString);
SLUICE_DECLARED(create_operation, cublasLtMatmulDescCreate);
SLUICE_DECLARED(destroy_operation, cublasLtMatmulDescDestroy);
SLUICE_DECLARED(set_operation, cublasLtMatmulDescSetAttribute);
SLUICE_DECLARED(create_layout, cublasLtMatrixLayoutCreate);
SLUICE_DECLARED(destroy_layout, cublasLtMatrixLayoutDestroy);
SLUICE_DECLARED(create_preference, cublasLtMatmulPreferenceCreate);
SLUICE_DECLARED(destroy_preference, cublasLtMatmulPreferenceDestroy);
SLUICE_DECLARED(set_preference, cublasLtMatmulPreferenceSetAttribute);
SLUICE_DECLARED(heuristic, cublasLtMatmulAlgoGetHeuristic);
SLUICE_DECLARED(multiply, cublasLtMatmul);
#undef SLUICE_DECLARED

TEST(CublasLtLibrary, LoadsAndReportsItsVersion) {
  const CublasLt& found = cublaslt();
  EXPECT_EQ(found.version.substr(0, 2), cublas().version.substr(0, 2)) << found.path;
  EXPECT_STREQ(found.status_text(CUBLAS_STATUS_SUCCESS), "CUBLAS_STATUS_SUCCESS");
}

}  // namespace
}  // namespace sluice::test
