#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <cctype>

#if SLUICE_OPENBLAS
#include <cblas.h>
// Not declared if cblas.h belongs to another BLAS.
extern "C" void openblas_set_num_threads(int count);
extern "C" char* openblas_get_config();
extern "C" char* openblas_get_corename();
#if SLUICE_OPENBLAS_LINKED
#include <cstdlib>
#else
#include <dlfcn.h>
#include <fmt/format.h>

#include "model/errors.h"
#endif
#else
#include <Eigen/Core>
#endif

namespace sluice::kernels::cpu {
namespace {

#if SLUICE_OPENBLAS

#if SLUICE_OPENBLAS_LINKED
// Before OpenBLAS starts a thread per core, which commands that multiply nothing would have, too.
[[gnu::constructor(101)]] void start_no_blas_threads() { setenv("OPENBLAS_NUM_THREADS", "1", 0); }
#define SLUICE_BLAS(function) function
#else
// Loaded at the first use, since it takes memory and starts a thread per core.
void* open_blas() {
  for (const char* name : {"libopenblas.so.0", "libopenblas.so", SLUICE_OPENBLAS_FILE}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  }
  throw InputError(fmt::format("OpenBLAS, which this program was built with, cannot be loaded: {}", dlerror()));
}
void* blas_library() {
  static void* const library = open_blas();
  return library;
}
template <class Function>
Function* blas_function(const char* name) {
  void* const found = dlsym(blas_library(), name);
  if (found == nullptr) throw InputError(fmt::format("OpenBLAS has no function {}", name));
  return reinterpret_cast<Function*>(found);
}
#define SLUICE_BLAS(function)                                                \
  [] {                                                                       \
    static auto* const found = blas_function<decltype(function)>(#function); \
    return found;                                                            \
  }()
#endif

int blas(std::int64_t size) { return static_cast<int>(size); }

void blas_gemm(CBLAS_TRANSPOSE a_form, CBLAS_TRANSPOSE b_form, std::int64_t m, std::int64_t n, std::int64_t k,
               float scale, const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, Into into,
               float* out, std::int64_t out_stride) {
  SLUICE_BLAS(cblas_sgemm)
  (CblasRowMajor, a_form, b_form, blas(m), blas(n), blas(k), scale, a, blas(a_stride), b, blas(b_stride),
   into == Into::add ? 1.0F : 0.0F, out, blas(out_stride));
}
void blas_gemm(CBLAS_TRANSPOSE a_form, CBLAS_TRANSPOSE b_form, std::int64_t m, std::int64_t n, std::int64_t k,
               double scale, const double* a, std::int64_t a_stride, const double* b, std::int64_t b_stride, Into into,
               double* out, std::int64_t out_stride) {
  SLUICE_BLAS(cblas_dgemm)
  (CblasRowMajor, a_form, b_form, blas(m), blas(n), blas(k), scale, a, blas(a_stride), b, blas(b_stride),
   into == Into::add ? 1.0 : 0.0, out, blas(out_stride));
}

#else

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
auto matrix(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return Eigen::Map<const RowMajor<T>, 0, Eigen::OuterStride<> >(data, rows, columns, Eigen::OuterStride<>(stride));
}
template <class T>
auto matrix(T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return Eigen::Map<RowMajor<T>, 0, Eigen::OuterStride<> >(data, rows, columns, Eigen::OuterStride<>(stride));
}

#endif

bool empty(std::int64_t m, std::int64_t n) { return m == 0 || n == 0; }

}  // namespace

template <class T>
void gemm_nt(std::int64_t m, std::int64_t n, std::int64_t k, T scale, const T* a, std::int64_t a_stride, const T* b,
             std::int64_t b_stride, Into into, T* out, std::int64_t out_stride) {
  if (empty(m, n)) return;
#if SLUICE_OPENBLAS
  blas_gemm(CblasNoTrans, CblasTrans, m, n, k, scale, a, a_stride, b, b_stride, into, out, out_stride);
#else
  auto result = matrix(out, m, n, out_stride);
  if (into == Into::set) result.setZero();
  result.noalias() += scale * (matrix(a, m, k, a_stride) * matrix(b, n, k, b_stride).transpose());
#endif
}

template <class T>
void gemm_nn(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
             std::int64_t b_stride, Into into, T* out, std::int64_t out_stride) {
  if (empty(m, n)) return;
#if SLUICE_OPENBLAS
  blas_gemm(CblasNoTrans, CblasNoTrans, m, n, k, T{1}, a, a_stride, b, b_stride, into, out, out_stride);
#else
  auto result = matrix(out, m, n, out_stride);
  if (into == Into::set) result.setZero();
  result.noalias() += matrix(a, m, k, a_stride) * matrix(b, k, n, b_stride);
#endif
}

template <class T>
void gemm_tn(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
             std::int64_t b_stride, T* out, std::int64_t out_stride) {
  if (empty(m, n)) return;
#if SLUICE_OPENBLAS
  blas_gemm(CblasTrans, CblasNoTrans, m, n, k, T{1}, a, a_stride, b, b_stride, Into::add, out, out_stride);
#else
  matrix(out, m, n, out_stride).noalias() += matrix(a, k, m, a_stride).transpose() * matrix(b, k, n, b_stride);
#endif
}

std::string blas_name() {
#if SLUICE_OPENBLAS
  return SLUICE_BLAS(openblas_get_config)();
#else
  return "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) + "." +
         std::to_string(EIGEN_MINOR_VERSION);
#endif
}

std::string faster_blas_kernels(std::string_view chosen, std::string_view config, bool has_avx512) {
  constexpr std::array kWithoutAvx512 = {"Prescott", "Core2",     "Nehalem",    "Sandybridge", "Haswell",   "Barcelona",
                                         "Bobcat",   "Bulldozer", "Piledriver", "Steamroller", "Excavator", "Zen"};
  // A library without DYNAMIC_ARCH has kernels for one CPU only.
  if (!has_avx512 || config.find("DYNAMIC_ARCH") == std::string_view::npos) return "";
  const auto is_chosen = [&](std::string_view name) {
    return std::equal(name.begin(), name.end(), chosen.begin(), chosen.end(),
                      [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  };
  return std::any_of(kWithoutAvx512.begin(), kWithoutAvx512.end(), is_chosen) ? "SkylakeX" : "";
}

std::string faster_blas_kernels() {
#if SLUICE_OPENBLAS && (defined(__x86_64__) || defined(__i386__))
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return faster_blas_kernels(SLUICE_BLAS(openblas_get_corename)(), blas_name(), has_avx512);
#else
  return "";
#endif
}

void use_one_thread() {
#if SLUICE_OPENBLAS
  static const bool done = (SLUICE_BLAS(openblas_set_num_threads)(1), true);  // once: must not be called concurrently
  static_cast<void>(done);
#endif
}

// NOLINTBEGIN(bugprone-macro-parentheses): types
#define SLUICE_INSTANTIATE(T)                                                                                         \
  template void gemm_nt(std::int64_t, std::int64_t, std::int64_t, T, const T*, std::int64_t, const T*, std::int64_t,  \
                        Into, T*, std::int64_t);                                                                      \
  template void gemm_nn(std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t,     \
                        Into, T*, std::int64_t);                                                                      \
  template void gemm_tn(std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, T*, \
                        std::int64_t);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(double)
#undef SLUICE_INSTANTIATE
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sluice::kernels::cpu
