// Stages on devices against those of the CPU in double, with the same weights of 16 bits.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/device_kernels.h"
#include "tests/kernels/device_training_run.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

StageContents whole(const Transformer& model) { return {.layers = model.layers, .embedding = true, .head = true}; }

TEST(Try, Prints) {
  for (const Transformer& model : {small_gpt(), small_llama()}) {
    for (const Precision precision : {Precision::bfloat16, Precision::float16}) {
      TrainingCase training{.model = model, .stages = {whole(model)}, .slices = {9}, .sequences = 2};
      const Matrices weights = rounded(precision, random_matrices(model, 3));
      const TrainingResult reference = run(training, weights);
      training.precision = precision;
      const TrainingResult result = run_on_devices(training, weights);
      EXPECT_TRUE(result.intact);
      printf("%s loss %g %g norm %g %g\n", model.name.c_str(), result.loss, reference.loss, result.squared_norm,
             reference.squared_norm);
      for (const auto& [name, gradient] : reference.gradients) {
        printf("  %-30s %g\n", name.c_str(), relative_error(result.gradients.at(name), gradient));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
