#include "model/workload/precision.h"

#include <cmath>

namespace sluice::model {
namespace {

// Bytes per element with scales of four bytes for 128 elements, and of one byte for 32 and for 16 elements.
constexpr double kBlock = 1 + 4.0 / 128;
constexpr double kMx = 1 + 1.0 / 32;
constexpr double kNv = 0.5 + 1.0 / 16;

// Casts as in Transformer Engine. fp8: read, write and write transposed; a norm writes 8 bits itself, and only the
// transposition remains. fp8-current: a reduction for the maximum first. fp8-block, mxfp8: both layouts in one pass,
// since each has its own scales. nvfp4: the maxima of the tensor as it is and after the transform, then both layouts.
constexpr std::array<PrecisionTraits, 7> kTraits = {{
    {"bf16"},
    {"fp16"},
    {"fp8", 8, 1, {1, 1}, {4, 1}, {4, 1}},
    {"fp8-current", 8, 1, {4, 1}, {6, 2}, {6, 2}},
    {"fp8-block", 8, kBlock, {2 + 2 * kBlock, 1}, {2 + 2 * kBlock, 1}, {2 + 2 * kBlock, 1}},
    {"mxfp8", 8, kMx, {2 + 2 * kMx, 1}, {2 + 2 * kMx, 1}, {2 + 2 * kMx, 1}},
    {"nvfp4", 4, kNv, {4 + 2 * kNv, 2}, {4 + 2 * kNv, 2}, {4 + 2 * kNv, 2}},
}};
constexpr PrecisionTraits kDelayed{"fp8", 8, 1, {}, {3, 1}, {3, 1}, 1};
constexpr PrecisionTraits kCurrent{"fp8-current", 8, 1, {3, 1}, {5, 2}, {5, 2}, 1};

}  // namespace

const PrecisionTraits& traits_of(GemmPrecision precision, bool any_layout) {
  if (any_layout && precision == GemmPrecision::fp8) return kDelayed;
  if (any_layout && precision == GemmPrecision::fp8_current) return kCurrent;
  return kTraits[static_cast<std::size_t>(precision)];
}

std::int64_t operand_bytes(GemmPrecision precision, std::int64_t elements) {
  return static_cast<std::int64_t>(std::ceil(traits_of(precision).bytes * static_cast<double>(elements)));
}

const std::vector<std::string>& precision_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const PrecisionTraits& traits : kTraits) out.emplace_back(traits.name);
    return out;
  }();
  return names;
}

}  // namespace sluice::model
