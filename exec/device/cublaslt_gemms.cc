#include "exec/device/cublaslt_gemms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace sluice::exec {
namespace {

// All kernels load vectors of 16 bytes at most, and buffers of a stage are aligned to more.
constexpr std::size_t kGemmAlignment = 16;

CublasLtType lt_type(Element element) {
  switch (element) {
    case Element::float16: return CublasLtType::float16;
    case Element::bfloat16: return CublasLtType::bfloat16;
    case Element::float32: break;
  }
  return CublasLtType::float32;
}

cublasLtEpilogue_t lt_epilogue(const GemmEpilogue& epilogue) {
  switch (epilogue.kind) {
    case GemmEpilogue::Kind::gelu:
      return epilogue.bias == nullptr ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::Kind::gelu_gradient: return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::Kind::row_sums: break;
  }
  return CUBLASLT_EPILOGUE_BGRADB;
}

const char* epilogue_text(cublasLtEpilogue_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_GELU_AUX: return "GELU";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return "bias and GELU";
    case CUBLASLT_EPILOGUE_DGELU: return "gradient of GELU";
    case CUBLASLT_EPILOGUE_BGRADB: break;
  }
  return "gradient of the bias";
}

void check_lt(const CublasLt& library, cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw DeviceError(fmt::format("{}: {}", call, library.status_text(status)));
}

// Owns a descriptor of cublasLt.
template <class T>
class LtDescriptor {
 public:
  explicit LtDescriptor(cublasStatus_t (*destroy)(T)) : destroy_(destroy) {}
  ~LtDescriptor() {
    if (at_ != nullptr) destroy_(at_);
  }
  LtDescriptor(LtDescriptor&& other) noexcept : destroy_(other.destroy_), at_(std::exchange(other.at_, nullptr)) {}
  LtDescriptor& operator=(LtDescriptor&&) = delete;
  T get() const { return at_; }
  T* place() { return &at_; }

 private:
  cublasStatus_t (*destroy_)(T);
  T at_ = nullptr;
};

// What the choice of an algorithm depends on.
struct GemmProblem {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  std::array<std::int64_t, 3> strides{};
  std::array<bool, 2> transposed{};
  Element in = Element::bfloat16;
  Element out = Element::bfloat16;
  bool accumulates = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_GELU_AUX;

  auto operator<=>(const GemmProblem&) const = default;  // NOLINT(modernize-use-nullptr)
};

GemmProblem problem_of(const GemmCall& gemm, const GemmEpilogue& epilogue) {
  return {.rows = gemm.rows,
          .columns = gemm.columns,
          .inner = gemm.inner,
          .strides = {gemm.a_stride, gemm.b_stride, gemm.c_stride},
          .transposed = {gemm.a_transposed, gemm.b_transposed},
          .in = gemm.in,
          .out = gemm.out,
          .accumulates = gemm.beta != 0,
          .epilogue = lt_epilogue(epilogue)};
}

// cublasLt is column-major, where a row-major matrix is its transpose: D = op(B)' op(A)', so that its first matrix is
// our B, and the columns of D are our rows.
struct GemmPlan {
  explicit GemmPlan(const CublasLt& library)
      : operation(library.destroy_operation),
        first(library.destroy_layout),
        second(library.destroy_layout),
        out(library.destroy_layout) {}
  LtDescriptor<cublasLtMatmulDesc_t> operation;
  LtDescriptor<cublasLtMatrixLayout_t> first;
  LtDescriptor<cublasLtMatrixLayout_t> second;
  LtDescriptor<cublasLtMatrixLayout_t> out;
  cublasLtMatmulAlgo_t algorithm{};
};

class CublasLtLibrary final : public CublasLtGemms {
 public:
  CublasLtLibrary(std::function<const CublasLt&()> load, CublasLtDevice device)
      : load_(std::move(load)), device_(std::move(device)) {}
  ~CublasLtLibrary() override {
    plans_.clear();
    if (handle_ != nullptr) library_->destroy(handle_);
  }
  CublasLtLibrary(const CublasLtLibrary&) = delete;
  CublasLtLibrary& operator=(const CublasLtLibrary&) = delete;

  bool multiply(const GemmCall& gemm, const GemmEpilogue& epilogue, Stream& stream) override {
    const GemmProblem problem = problem_of(gemm, epilogue);
    std::optional<GemmPlan>& plan = plan_of(problem);
    if (!plan) return false;
    std::byte* const workspace = device_.workspace(stream);
    try {
      set_pointers(*plan, problem.epilogue, epilogue.kind == GemmEpilogue::Kind::gelu ? epilogue.bias : epilogue.sums,
                   epilogue.preactivations);
      check_lt(*library_,
               library_->multiply(handle_, plan->operation.get(), &gemm.alpha, gemm.b, plan->first.get(), gemm.a,
                                  plan->second.get(), &gemm.beta, gemm.c, plan->out.get(), gemm.c, plan->out.get(),
                                  &plan->algorithm, workspace, device_.workspace_bytes,
                                  static_cast<CUstream_st*>(stream.native())),
               "cublasLtMatmul");
    } catch (const DeviceError& error) {
      note(problem, error);
      plan.reset();
      return false;
    }
    stream.launched();
    return true;
  }

  const std::vector<std::string>& notes() const override { return notes_; }

  void set_multiprocessors(int count) override {
    if (device_.multiprocessors == count) return;
    device_.multiprocessors = count;
    plans_.clear();
  }

 private:
  // Returns the plan, built with the first call; without a value if cublasLt cannot run the problem.
  std::optional<GemmPlan>& plan_of(const GemmProblem& problem) {
    const auto [entry, fresh] = plans_.try_emplace(problem);
    if (!fresh || !start()) return entry->second;
    try {
      entry->second.emplace(make_plan(problem));
    } catch (const DeviceError& error) {
      note(problem, error);
    }
    return entry->second;
  }

  GemmPlan make_plan(const GemmProblem& problem) const {
    const auto& [a_stride, b_stride, c_stride] = problem.strides;
    GemmPlan plan(*library_);
    check_lt(*library_, library_->create_operation(plan.operation.place(), CUBLAS_COMPUTE_32F, CublasLtType::float32),
             "cublasLtMatmulDescCreate");
    const cublasOperation_t first = problem.transposed[1] ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = problem.transposed[0] ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, second);
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, problem.epilogue);
    if (device_.multiprocessors > 0) {
      set(plan, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{device_.multiprocessors});
    }
    if (problem.epilogue != CUBLASLT_EPILOGUE_BGRADB) {
      set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{problem.columns});
    }
    // The heuristic reads the alignment of both.
    alignas(2 * kGemmAlignment) static constexpr std::array<std::byte, 2 * kGemmAlignment> kAddresses{};
    set_pointers(plan, problem.epilogue, &kAddresses[kGemmAlignment], &kAddresses[kGemmAlignment]);
    make_layout(plan.first, problem.in, problem.columns, problem.inner, problem.transposed[1], b_stride);
    make_layout(plan.second, problem.in, problem.inner, problem.rows, problem.transposed[0], a_stride);
    make_layout(plan.out, problem.out, problem.columns, problem.rows, false, c_stride);
    plan.algorithm = select(plan);
    return plan;
  }

  // A column-major matrix, of which the transpose is stored if `transposed`.
  void make_layout(LtDescriptor<cublasLtMatrixLayout_t>& layout, Element element, std::int64_t rows,
                   std::int64_t columns, bool transposed, std::int64_t stride) const {
    if (transposed) std::swap(rows, columns);
    check_lt(*library_,
             library_->create_layout(layout.place(), lt_type(element), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), stride),
             "cublasLtMatrixLayoutCreate");
  }

  cublasLtMatmulAlgo_t select(const GemmPlan& plan) const {
    LtDescriptor<cublasLtMatmulPreference_t> preference(library_->destroy_preference);
    check_lt(*library_, library_->create_preference(preference.place()), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      check_lt(*library_, library_->set_preference(preference.get(), name, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{device_.workspace_bytes});
    // Partial sums stay in float32 until the last one is added.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(name, std::uint32_t{kGemmAlignment});
    }
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    check_lt(*library_,
             library_->heuristic(handle_, plan.operation.get(), plan.first.get(), plan.second.get(), plan.out.get(),
                                 plan.out.get(), preference.get(), 1, &result, &found),
             "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) throw DeviceError("cublasLtMatmulAlgoGetHeuristic found no algorithm");
    check_lt(*library_, result.state, "cublasLtMatmulAlgoGetHeuristic");
    return result.algo;
  }

  template <class T>
  void set(const GemmPlan& plan, cublasLtMatmulDescAttributes_t name, const T& value) const {
    check_lt(*library_, library_->set_operation(plan.operation.get(), name, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
  }
  void set_pointers(const GemmPlan& plan, cublasLtEpilogue_t epilogue, const void* bias, const void* auxiliary) const {
    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_BGRADB) {
      set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    if (epilogue != CUBLASLT_EPILOGUE_BGRADB) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, auxiliary);
  }

  // Loads cublasLt with the first call. Returns whether it can be used.
  bool start() {
    if (started_) return handle_ != nullptr;
    started_ = true;
    try {
      library_ = &load_();
      check_lt(*library_, library_->create(&handle_), "cublasLtCreate");
    } catch (const DeviceError& error) {
      handle_ = nullptr;
      note(error.what());
    }
    return handle_ != nullptr;
  }

  void note(const GemmProblem& problem, const DeviceError& error) {
    note(fmt::format("GEMM of {} x {} x {} with {}: {}", problem.rows, problem.inner, problem.columns,
                     epilogue_text(problem.epilogue), error.what()));
  }
  void note(const std::string& why) {
    std::string line = fmt::format("{}: {}", device_.name, why);
    if (std::find(notes_.begin(), notes_.end(), line) == notes_.end()) notes_.push_back(std::move(line));
  }

  std::function<const CublasLt&()> load_;
  CublasLtDevice device_;
  bool started_ = false;
  const CublasLt* library_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmProblem, std::optional<GemmPlan>> plans_;
  std::vector<std::string> notes_;
};

}  // namespace

std::unique_ptr<CublasLtGemms> make_cublaslt_gemms(std::function<const CublasLt&()> load, CublasLtDevice device) {
  return std::make_unique<CublasLtLibrary>(std::move(load), std::move(device));
}

}  // namespace sluice::exec
