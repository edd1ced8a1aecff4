#include "model/slicing/balanced.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/errors.h"

namespace sluice::model {

std::vector<std::int64_t> balanced_slices(const Transformer& model, std::int64_t tokens, int slices,
                                          std::int64_t multiple) {
  if (slices < 1 || multiple < 1 || slices > tokens / multiple) {
    throw InputError(fmt::format("expected at most {} slices of a sequence of {} tokens in multiples of {}, got {}",
                                 multiple < 1 ? 0 : tokens / multiple, tokens, multiple, slices));
  }
  // The first x tokens cost a x + b x^2 per layer, with a from the matrices (mean over layers of both kinds) and b from
  // attention.
  const SliceFlops one = layer_slice_flops(model, 1, 0);
  const double experts = static_cast<double>(model.layers - model.dense_layers()) / model.layers;
  const double a = (1 - experts) * one.matrices + experts * layer_slice_flops(model, 1, 0, LayerKind::experts).matrices;
  const double b = one.attention;  // 4 a d / 2
  const auto n = static_cast<double>(tokens);
  const double whole = a * n + b * n * n;
  std::vector<std::int64_t> out;
  std::int64_t begin = 0;
  for (int i = 1; i <= slices; ++i) {
    const double share = whole * i / slices;
    const double cut = b > 0 ? 2 * share / (a + std::sqrt(a * a + 4 * b * share)) : share / a;
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
