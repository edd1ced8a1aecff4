#include "tests/support/fake_cublaslt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/emulation/device.h"
#include "kernels/emulation/lanes.h"
#include "model/to_size.h"

namespace sluice::test {
namespace {

constexpr auto kLtFailed = static_cast<cublasStatus_t>(7);         // CUBLAS_STATUS_INVALID_VALUE
constexpr auto kLtNotSupported = static_cast<cublasStatus_t>(15);  // CUBLAS_STATUS_NOT_SUPPORTED
constexpr std::size_t kLtWorkspace = 256;

struct LtAttributes {
  std::map<int, std::vector<std::byte>> values;

  bool set(int name, const void* from, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(from);
    values[name].assign(first, first + bytes);
    return from != nullptr;
  }
  // Returns 0 if it is not set. Throws if it has another size.
  template <class T>
  T get(int name) const {
    T out{};
    const auto found = values.find(name);
    if (found == values.end()) return out;
    if (found->second.size() != sizeof out) throw std::logic_error("wrong size of attribute " + std::to_string(name));
    std::memcpy(&out, found->second.data(), sizeof out);
    return out;
  }
};

struct LtOperation : LtAttributes {
  bool transposed(int name) const { return get<std::int32_t>(name) == int{CUBLAS_OP_T}; }
  int epilogue() const { return get<std::int32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE); }
  bool has_auxiliary() const { return (epilogue() & 128) != 0; }
  bool has_bias() const {
    return epilogue() == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue() == CUBLASLT_EPILOGUE_BGRADB;
  }
  void* bias() const { return get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER); }
  void* auxiliary() const { return get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER); }
};

// A column-major matrix.
struct LtLayout {
  CublasLtType type;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stride;

  double read(const void* data, std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row + column * stride;
    switch (type) {
      case CublasLtType::float16: return kernels::cuda::to_float(static_cast<const kernels::cuda::float16*>(data)[at]);
      case CublasLtType::bfloat16:
        return kernels::cuda::to_float(static_cast<const kernels::cuda::bfloat16*>(data)[at]);
      case CublasLtType::float32: break;
    }
    return static_cast<const float*>(data)[at];
  }
  void write(void* data, std::int64_t row, std::int64_t column, double number) const {
    const std::int64_t at = row + column * stride;
    const auto value = static_cast<float>(number);
    switch (type) {
      case CublasLtType::float16:
        static_cast<kernels::cuda::float16*>(data)[at] = kernels::cuda::from_float<kernels::cuda::float16>(value);
        return;
      case CublasLtType::bfloat16:
        static_cast<kernels::cuda::bfloat16*>(data)[at] = kernels::cuda::from_float<kernels::cuda::bfloat16>(value);
        return;
      case CublasLtType::float32: static_cast<float*>(data)[at] = value; return;
    }
  }
};

LtOperation& lt(cublasLtMatmulDesc_t at) { return *reinterpret_cast<LtOperation*>(at); }
LtLayout& lt(cublasLtMatrixLayout_t at) { return *reinterpret_cast<LtLayout*>(at); }
LtAttributes& lt(cublasLtMatmulPreference_t at) { return *reinterpret_cast<LtAttributes*>(at); }

bool lt_fails_now() { return ++fake_cublaslt_state().calls == fake_cublaslt_state().fails_at; }

template <class Object, class Handle>
cublasStatus_t create_object(Handle* to, Object object) {
  if (lt_fails_now()) return kLtFailed;
  *to = reinterpret_cast<Handle>(new Object(std::move(object)));
  ++fake_cublaslt_state().objects;
  return CUBLAS_STATUS_SUCCESS;
}
template <class Object, class Handle>
cublasStatus_t destroy_object(Handle object) {
  delete reinterpret_cast<Object*>(object);
  --fake_cublaslt_state().objects;
  return CUBLAS_STATUS_SUCCESS;
}

// A GEMM with everything that a task of a stream needs.
struct LtGemm {
  LtOperation operation;
  LtLayout a;
  LtLayout b;
  LtLayout out;

  std::int64_t inner() const { return operation.transposed(CUBLASLT_MATMUL_DESC_TRANSA) ? a.rows : a.columns; }
  bool matches() const {
    const bool a_transposed = operation.transposed(CUBLASLT_MATMUL_DESC_TRANSA);
    const bool b_transposed = operation.transposed(CUBLASLT_MATMUL_DESC_TRANSB);
    const auto auxiliary_stride = operation.get<std::int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
    const bool is_float = out.type == CublasLtType::float32;
    if ((a_transposed ? a.columns : a.rows) != out.rows || (b_transposed ? b.rows : b.columns) != out.columns) {
      return false;
    }
    if ((b_transposed ? b.columns : b.rows) != inner() || a.type != b.type) return false;
    if (a.stride < a.rows || b.stride < b.rows || out.stride < out.rows) return false;
    if (operation.has_bias() && operation.bias() == nullptr) return false;
    if (!operation.has_auxiliary()) return is_float;
    return !is_float && operation.auxiliary() != nullptr && auxiliary_stride >= out.rows && auxiliary_stride % 8 == 0;
  }
  // Equal for calls that differ in pointers only.
  cublasLtMatmulAlgo_t token() const {
    cublasLtMatmulAlgo_t of{};
    std::size_t at = 0;
    for (const LtLayout* const layout : {&a, &b, &out}) {
      of.data[at++] = static_cast<std::uint64_t>(layout->rows * 1000003 + layout->columns);
      of.data[at++] = static_cast<std::uint64_t>(layout->stride * 100 + static_cast<int>(layout->type));
    }
    of.data[at] = static_cast<std::uint64_t>(operation.epilogue());
    return of;
  }

  double first(const void* data, std::int64_t row, std::int64_t k) const {
    return operation.transposed(CUBLASLT_MATMUL_DESC_TRANSA) ? a.read(data, k, row) : a.read(data, row, k);
  }
  double second(const void* data, std::int64_t k, std::int64_t column) const {
    return operation.transposed(CUBLASLT_MATMUL_DESC_TRANSB) ? b.read(data, column, k) : b.read(data, k, column);
  }

  void run(float alpha, float beta, const void* a_data, const void* b_data, void* c) const {
    const LtLayout auxiliary{out.type, out.rows, out.columns,
                             operation.get<std::int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)};
    const LtLayout vector{out.type, std::max(out.rows, out.columns), 1, 0};
    for (std::int64_t column = 0; column < out.columns; ++column) {
      for (std::int64_t row = 0; row < out.rows; ++row) {
        double sum = 0;
        for (std::int64_t k = 0; k < inner(); ++k) sum += first(a_data, row, k) * second(b_data, k, column);
        double result = alpha * sum + (beta == 0 ? 0 : beta * out.read(c, row, column));
        if (operation.epilogue() == CUBLASLT_EPILOGUE_DGELU) {
          result *= slope(auxiliary.read(operation.auxiliary(), row, column));
        } else if (operation.has_auxiliary()) {
          if (operation.has_bias()) result += vector.read(operation.bias(), row, 0);
          auxiliary.write(operation.auxiliary(), row, column, result);
          result *= logistic(result);
        }
        out.write(c, row, column, result);
      }
      if (operation.epilogue() != CUBLASLT_EPILOGUE_BGRADB) continue;
      double sum = 0;
      for (std::int64_t k = 0; k < inner(); ++k) sum += second(b_data, k, column);
      vector.write(operation.bias(), column, 0, sum);
    }
  }

  // gelu(x) = x / (1 + exp(-2 y)) = x (1 + tanh(y)) / 2 with y = sqrt(2 / pi) (x + 0.044715 x^3), and its derivative.
  static double inside(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
  static double logistic(double x) { return 0.5 * (1 + std::tanh(inside(x))); }
  static double slope(double x) {
    const double t = std::tanh(inside(x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  }
};

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                         cublasLtMatmulPreference_t preference, int count, cublasLtMatmulHeuristicResult_t* result,
                         int* found) {
  const LtGemm gemm{lt(operation), lt(a), lt(b), lt(out)};
  const LtAttributes& wish = lt(preference);
  for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    if (wish.get<std::uint32_t>(name) != 16) return kLtFailed;
  }
  if (lt_fails_now() || !gemm.matches() || count != 1 || c != out ||
      wish.get<std::uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ||
      wish.get<std::uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) != kLtWorkspace) {
    return kLtFailed;
  }
  *found = 0;
  if (gemm.operation.epilogue() == fake_cublaslt_state().unsupported) return kLtNotSupported;
  ++fake_cublaslt_state().heuristics;
  *found = 1;
  *result = {.algo = gemm.token(), .workspaceSize = kLtWorkspace, .state = CUBLAS_STATUS_SUCCESS};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                        cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                        const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* out,
                        cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                        std::size_t workspace_bytes, CUstream_st* stream) {
  const LtGemm gemm{lt(operation), lt(a_layout), lt(b_layout), lt(out_layout)};
  const cublasLtMatmulAlgo_t expected = gemm.token();
  if (lt_fails_now() || !gemm.matches() || c != out || c_layout != out_layout || workspace_bytes != kLtWorkspace ||
      std::memcmp(&expected, algorithm, sizeof expected) != 0) {
    return kLtFailed;
  }
  for (const void* const pointer :
       {a, b, c, const_cast<const void*>(gemm.operation.bias()), const_cast<const void*>(gemm.operation.auxiliary())}) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return kLtFailed;
  }
  ++fake_cublaslt_state().multiplied;
  const float alpha_now = *static_cast<const float*>(alpha);
  const float beta_now = *static_cast<const float*>(beta);
  emulation::put(*reinterpret_cast<Stream*>(stream), [=] {
    std::fill_n(static_cast<std::byte*>(workspace), kLtWorkspace, std::byte{0xff});  // as an algorithm may
    gemm.run(alpha_now, beta_now, a, b, out);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

FakeCublasLtState& fake_cublaslt_state() {
  static FakeCublasLtState state;
  return state;
}

std::unique_ptr<exec::CublasLtGemms> make_fake_gemms() {
  auto room = std::make_shared<std::vector<std::byte>>(kLtWorkspace);
  return exec::make_cublaslt_gemms(
      fake_cublaslt,
      {.name = "GPU 0", .workspace = [room](Stream&) { return room->data(); }, .workspace_bytes = kLtWorkspace});
}

const CublasLt& fake_cublaslt() {
  static const CublasLt table{
      .get_version = [] { return std::size_t{130002}; },
      .create = [](cublasLtHandle_t* to) { return create_object(to, 0); },
      .destroy = destroy_object<int, cublasLtHandle_t>,
      .status_text =
          [](cublasStatus_t status) {
            return status == kLtNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
          },
      .create_operation =
          [](cublasLtMatmulDesc_t* to, cublasComputeType_t compute, CublasLtType scale) {
            if (compute != CUBLAS_COMPUTE_32F || scale != CublasLtType::float32) return kLtFailed;
            return create_object(to, LtOperation{});
          },
      .destroy_operation = destroy_object<LtOperation, cublasLtMatmulDesc_t>,
      .set_operation =
          [](cublasLtMatmulDesc_t of, cublasLtMatmulDescAttributes_t name, const void* value, std::size_t bytes) {
            return lt_fails_now() || !lt(of).set(name, value, bytes) ? kLtFailed : CUBLAS_STATUS_SUCCESS;
          },
      .create_layout =
          [](cublasLtMatrixLayout_t* to, CublasLtType type, std::uint64_t rows, std::uint64_t columns,
             std::int64_t stride) {
            return create_object(
                to, LtLayout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), stride});
          },
      .destroy_layout = destroy_object<LtLayout, cublasLtMatrixLayout_t>,
      .create_preference = [](cublasLtMatmulPreference_t* to) { return create_object(to, LtAttributes{}); },
      .destroy_preference = destroy_object<LtAttributes, cublasLtMatmulPreference_t>,
      .set_preference =
          [](cublasLtMatmulPreference_t of, cublasLtMatmulPreferenceAttributes_t name, const void* value,
             std::size_t bytes) {
            return lt_fails_now() || !lt(of).set(name, value, bytes) ? kLtFailed : CUBLAS_STATUS_SUCCESS;
          },
      .heuristic = heuristic,
      .multiply = multiply,
      .version = "13.0.2",
      .path = "fake"};
  return table;
}

}  // namespace sluice::test
