#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/stage.h"

namespace sluice::test {

// Whole matrices of a model by name, row-major [outputs, inputs].
using Matrices = std::map<std::string, std::vector<double>, std::less<>>;

// Tokens of one sequence, and its targets.
struct Sequence {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

// Returns the sum over all tokens of -ln p(target), computed with plain loops over scalars and independently of
// kernels/, from the papers' definition of the model (GPT-2: Radford et al. 2019; Llama: Touvron et al. 2023;
// Mixtral: Jiang et al. 2024).
double naive_loss(const Transformer& model, const Matrices& weights, const std::vector<Sequence>& sequences);

}  // namespace sluice::test
