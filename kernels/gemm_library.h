#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace sluice::kernels {

// How the GEMMs of a stage on a device are computed: by cuBLAS, or by cublasLt with a GemmEpilogue where the layer has
// one and the library supports it. With `cublaslt`, LayerActivations::pre includes the bias, and W instead of I
// accumulates the gradients of biases, whether the library computes them or not: in I, cublasLt would round them to 16
// bits per microbatch (DGELU_BGRAD).
enum class GemmChoice : std::uint8_t { cublas, cublaslt };

// An operation that is fused with the GEMM C = op(A) op(B). All matrices are dense.
struct GemmEpilogue {
  enum class Kind : std::uint8_t {
    gelu,           // writes P = op(A) op(B) + bias and C = gelu(P), in the tanh approximation
    gelu_gradient,  // writes C = op(A) op(B) * gelu'(P)
    row_sums        // also writes the sums of the rows of op(A)
  };
  Kind kind = Kind::gelu;
  const void* bias = nullptr;      // of gelu: [columns], of the type of C; null: none
  void* preactivations = nullptr;  // P [rows, columns], of the type of C
  float* sums = nullptr;           // [rows]
};

// GEMMs with epilogues by a library of the device (cublasLt). Never throws for what the library cannot do: the caller
// then uses a GEMM and kernels of its own. Used by the thread of its device.
class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;
  // Enqueues the GEMM, which is not a batch. Returns false if the library is missing, does not support the problem, or
  // fails; nothing is enqueued then. The first call for a problem selects an algorithm, which later calls use.
  virtual bool multiply(const GemmCall& gemm, const GemmEpilogue& epilogue, Stream& stream) = 0;
  // Returns one line for each reason why a GEMM was not run, without repetitions.
  virtual const std::vector<std::string>& notes() const = 0;
};

}  // namespace sluice::kernels
