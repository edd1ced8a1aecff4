#include "model/slicing/balanced.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/errors.h"

namespace sluice::model {
namespace {

// The number of tokens with the first `part` of `parts` equal parts of a sequence's FLOPs. The first x tokens cost
// a x + b x^2, with a from the matrices and b from attention.
double closed_cut(const Model& model, std::int64_t tokens, int part, int parts) {
  const SliceFlops one = slice_flops(model, 1, 0);
  const double a = one.matrices;
  const double b = one.attention;  // 4 a d / 2 per layer
  const auto n = static_cast<double>(tokens);
  const double share = (a * n + b * n * n) * part / parts;
  return b > 0 ? 2 * share / (a + std::sqrt(a * a + 4 * b * share)) : share / a;
}

// The same for any layers: between two tokens in proportion.
double searched_cut(const Model& model, std::int64_t tokens, int part, int parts) {
  const auto flops = [&](std::int64_t first) { return slice_flops(model, first, 0).forward(); };
  const double share = flops(tokens) * part / parts;
  std::int64_t low = 0;
  std::int64_t high = tokens;
  while (high - low > 1) {
    const std::int64_t middle = std::midpoint(low, high);
    (flops(middle) <= share ? low : high) = middle;
  }
  const double below = flops(low);
  const double step = flops(high) - below;
  return static_cast<double>(low) + (step > 0 ? (share - below) / step : 0);
}

}  // namespace

std::vector<std::int64_t> balanced_slices(const Model& model, std::int64_t tokens, int slices, std::int64_t multiple) {
  if (slices < 1 || multiple < 1 || slices > tokens / multiple) {
    throw InputError(fmt::format("expected at most {} slices of a sequence of {} tokens in multiples of {}, got {}",
                                 multiple < 1 ? 0 : tokens / multiple, tokens, multiple, slices));
  }
  std::vector<std::int64_t> out;
  std::int64_t begin = 0;
  for (int i = 1; i <= slices; ++i) {
    const double cut = model.flat ? closed_cut(model, tokens, i, slices) : searched_cut(model, tokens, i, slices);
    std::int64_t end = std::llround(cut / static_cast<double>(multiple)) * multiple;
    end = i == slices ? tokens : std::clamp(end, begin + multiple, tokens - (slices - i) * multiple);
    out.push_back(end - begin);
    begin = end;
  }
  return out;
}

std::vector<std::int64_t> even_slices(std::int64_t tokens, int slices) {
  if (slices > tokens) {
    throw InputError(fmt::format("expected at most one slice for each of {} tokens, got {}", tokens, slices));
  }
  std::vector<std::int64_t> out;
  for (int i = 0; i < slices; ++i) out.push_back(tokens / slices + (i < tokens % slices ? 1 : 0));
  return out;
}

}  // namespace sluice::model
