#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/stage.h"

namespace sluice::test {

// Whole matrices of a model by name, row-major [outputs, inputs].
using Matrices = std::map<std::string, std::vector<double>, std::less<>>;

// One sequence, and what it is to predict.
struct Sequence {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

// Sum over all tokens of -ln p(target), by plain loops over scalars, token by token, without anything of kernels/: the
// model as papers have it (GPT-2: Radford et al. 2019; Llama: Touvron et al. 2023).
double naive_loss(const Transformer& model, const Matrices& weights, const std::vector<Sequence>& sequences);

}  // namespace sluice::test
