#include "exec/run/op_outcome.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace sluice::exec {
namespace {

// Tests the exponent with integer operations, which compilers vectorize.
template <typename Word>
bool no_exponent_is_full(const std::byte* data, std::int64_t elements, Word exponent) {
  Word full = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<std::int64_t>(sizeof word), sizeof word);
    full |= static_cast<Word>((word & exponent) == exponent ? 1 : 0);
  }
  return full == 0;
}

template <typename Scalar>
void fill(std::byte* data, std::int64_t elements) {
  std::fill_n(reinterpret_cast<Scalar*>(data), elements, std::numeric_limits<Scalar>::quiet_NaN());
}

}  // namespace

void compute(const Stage& stage, OpKind kind, SliceCall& call) {
  switch (kind) {
    case OpKind::F: return stage.forward(call);
    case OpKind::I: return stage.input_gradient(call);
    case OpKind::W: return stage.weight_gradient(call);
    case OpKind::B: return stage.backward(call);
    default: return;  // plans refuse vocabulary passes
  }
}

bool all_finite(const std::byte* data, std::int64_t elements, Precision precision) {
  if (precision == Precision::float64) {
    return no_exponent_is_full<std::uint64_t>(data, elements, std::uint64_t{0x7ff} << 52);
  }
  return no_exponent_is_full<std::uint32_t>(data, elements, std::uint32_t{0xff} << 23);
}

bool edges_finite(const Stage& stage, const std::byte* gradients, Precision precision) {
  const std::int64_t element = stage.element_bytes();
  for (const Parameter& parameter : stage.parameters()) {
    const std::byte* const first = gradients + parameter.offset * element;
    if (parameter.size() == 0) continue;
    if (parameter.columns == 1 || parameter.name == kWordEmbedding) {
      const std::int64_t count = parameter.columns == 1 ? parameter.rows : parameter.columns;
      if (!all_finite(first, count, precision)) return false;
      continue;
    }
    if (!all_finite(first, parameter.columns, precision)) return false;
    for (std::int64_t row = 1; row < parameter.rows; ++row) {
      if (!all_finite(first + row * parameter.columns * element, 1, precision)) return false;
    }
  }
  return true;
}

void fill_not_a_number(std::byte* data, std::int64_t elements, Precision precision) {
  precision == Precision::float64 ? fill<double>(data, elements) : fill<float>(data, elements);
}

const Parameter& word_embedding(const Stage& stage) {
  for (const Parameter& parameter : stage.parameters()) {
    if (parameter.name == kWordEmbedding) return parameter;
  }
  throw std::logic_error("stage without a word embedding");
}

}  // namespace sluice::exec
