#include "tests/kernels/stage_results.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace sluice::test {

double norm(const std::vector<double>& numbers) {
  return std::sqrt(std::inner_product(numbers.begin(), numbers.end(), numbers.begin(), 0.0));
}

double allowed_of_stages(Precision precision) { return 10 * (precision == Precision::float16 ? 0x1p-11 : 0x1p-8); }

void expect_close(const TrainingResult& result, const TrainingResult& reference, double relative) {
  EXPECT_TRUE(result.intact);
  EXPECT_NEAR(result.loss, reference.loss, relative * reference.loss);
  EXPECT_NEAR(result.squared_norm, reference.squared_norm, 2 * relative * reference.squared_norm);
  ASSERT_EQ(result.gradients.size(), reference.gradients.size());
  for (const auto& [name, gradient] : reference.gradients) {
    std::vector<double> difference = result.gradients.at(name);
    ASSERT_EQ(difference.size(), gradient.size()) << name;
    for (std::size_t i = 0; i < gradient.size(); ++i) difference[i] -= gradient[i];
    double scale = norm(gradient);
    const std::size_t key = name.find("key.bias");
    if (key != std::string::npos) scale = norm(reference.gradients.at(std::string(name).replace(key, 3, "query")));
    const bool cancels = name.ends_with("router.weight") || name.ends_with("shared_gate.weight");
    EXPECT_LE(norm(difference), (cancels ? 2 : 1) * relative * scale) << name;
  }
}

Matrices tame_matrices(const Transformer& model) {
  Matrices out = random_matrices(model, 3);
  for (auto& [name, matrix] : out) {
    if (name.ends_with("norm1.weight") || name.ends_with("norm2.weight") || name.ends_with("norm.weight")) continue;
    for (double& number : matrix) number /= 0.3 * std::sqrt(static_cast<double>(model.hidden));
  }
  return out;
}

}  // namespace sluice::test
