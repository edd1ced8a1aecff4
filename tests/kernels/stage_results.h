#pragma once

#include <vector>

#include "tests/kernels/training_run.h"

namespace sluice::test {

// Each kernel rounds its output by up to half a unit in the last place: 2^-11 in fp16, 2^-8 in bf16. The random errors
// of some two dozen consecutive kernels add up to less than ten times that.
double allowed_of_stages(Precision precision);

double norm(const std::vector<double>& numbers);  // Euclidean

// Expects every gradient within `relative` of its matrix's norm; vanishing ones (a GPT's key biases), of the queries'.
// Those of routers and gates are sums of dot products, whose terms partly cancel: within twice that.
void expect_close(const TrainingResult& result, const TrainingResult& reference, double relative);

// Weights that preserve the magnitude of their inputs, so that no softmax saturates.
Matrices tame_matrices(const Transformer& model);

}  // namespace sluice::test
