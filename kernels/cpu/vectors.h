#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::kernels::cpu {

// Widest vector instructions of this processor and this build.
enum class Vectors : std::uint8_t { portable, avx2, avx512 };
Vectors widest_vectors();

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SLUICE_VECTOR_VARIANTS 1
#else
#define SLUICE_VECTOR_VARIANTS 0
#endif

#if SLUICE_VECTOR_VARIANTS
template <class Loop, class... Arguments>
[[gnu::target("avx2,fma")]] void run_avx2(Arguments... arguments) {
  Loop::run(arguments...);
}
// GCC uses vectors of half the width by default; Clang does not have the option.
#if defined(__clang__)
#define SLUICE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,fma"
#else
#define SLUICE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"
#endif
template <class Loop, class... Arguments>
[[gnu::target(SLUICE_AVX512)]] void run_avx512(Arguments... arguments) {
  Loop::run(arguments...);
}
#endif

// Calls Loop::run, compiled for the widest vectors. It and all functions that it calls must be always_inline. One
// binary then runs on every machine, without compiling functions of the same name with different flags, and without
// target_clones, whose resolvers run before a sanitizer is initialized.
template <class Loop, class... Arguments>
void run_vectorised(Arguments... arguments) {
#if SLUICE_VECTOR_VARIANTS
  static const Vectors vectors = widest_vectors();
  if (vectors == Vectors::avx512) return run_avx512<Loop>(arguments...);
  if (vectors == Vectors::avx2) return run_avx2<Loop>(arguments...);
#endif
  Loop::run(arguments...);
}

}  // namespace sluice::kernels::cpu
