#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::kernels::cpu {

// Widest vectors that this processor and this build have.
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
// GCC takes half of the width unless told; Clang is not told so.
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

// Runs Loop::run compiled for these vectors. It must be always_inline, and so must all that it calls: one binary then
// serves every machine, with no function compiled twice under one name (as files with different flags would have it),
// and without target_clones, whose resolvers run before a sanitizer is ready.
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
