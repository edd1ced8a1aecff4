// Public header.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

// Formats of the operands of linear layers' GEMMs. Weights, activations and output gradients are cast for the three
// GEMMs of each linear layer; attention, the router, the head, norms, accumulated gradients and the optimizer are not.
enum class GemmPrecision : std::uint8_t {
  bf16,
  fp16,
  fp8,          // one scale per tensor, from the maxima of previous iterations (delayed scaling)
  fp8_current,  // one scale per tensor, from its own maximum
  fp8_block,    // one scale per 128 elements of activations and gradients, and per 128 x 128 weights (DeepSeek-V3)
  mxfp8,        // one scale per 32 elements, Blackwell
  nvfp4,        // one scale per 16 elements; gradients rounded stochastically after a Hadamard transform, Blackwell
};

// A cast of one tensor to a narrow format.
struct Cast {
  double bytes = 0;  // moved per element
  int kernels = 0;
};

// The costs of a precision, per element of an operand.
struct PrecisionTraits {
  std::string_view name;
  int bits = 16;     // of an element
  double bytes = 2;  // of an element and its part of the scales
  // Of a linear layer's input: written by a norm, or anything else; and of its output gradient. Each is cast once, to
  // both layouts: as it is, for its own GEMM, and transposed, for the weight gradient.
  Cast normed_input;
  Cast input;
  Cast gradient;
  int layouts = 2;  // in which cast tensors are kept

  bool narrow() const { return bits < 16; }
};

// `any_layout`: tensor cores multiply operands in any layout, so that no transposed copy is needed where the scale does
// not depend on the layout (Transformer Engine's is_non_tn_fp8_gemm_supported: Blackwell).
const PrecisionTraits& traits_of(GemmPrecision precision, bool any_layout = false);

// Bytes of this number of elements of an operand, rounded up.
std::int64_t operand_bytes(GemmPrecision precision, std::int64_t elements);

// "bf16", "fp16", "fp8", "fp8-current", "fp8-block", "mxfp8", "nvfp4", in the order of the enumeration.
const std::vector<std::string>& precision_names();

}  // namespace sluice::model
