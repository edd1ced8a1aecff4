#include "model/blocks/encoder.h"

#include <gtest/gtest.h>

#include "model/blocks/model_files.h"
#include "model/blocks/stage.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using namespace model;  // NOLINT(google-build-using-namespace)

Model with_images(const std::string& images, bool frozen = false) {
  Model out = read_model(SLUICE_SOURCE_DIR "/examples/models/qwen3-vl-8b/config.json");
  set_images(out, images, frozen, "test");
  return out;
}

double flops_of(const Kernels& kernels) {
  double sum = 0;
  for (const KernelCall& call : kernels) sum += call.flops;
  return sum;
}

// Each kernel's FLOPs, of which tensor parallelism divides all but the projection of patches.
TEST(Encoder, KernelsHaveTheFlopsOfTheModel) {
  for (const std::string images : {"1x256", "4x1024", "3x2048"}) {
    const Model model = with_images(images);
    const Encoder& encoder = *model.encoder;
    const double projection =
        2.0 * static_cast<double>(encoder.images * encoder.patches * encoder.patch_inputs * encoder.layers.hidden);
    for (const int tp : {1, 2, 4}) {
      const Training training{.tp = tp, .micro_batch = 2, .sequence_length = 4096};
      const SliceShape slice{.sequences = 2, .tokens = 4096};
      const auto of = [&](OpKind kind) {
        const EncoderKernels kernels =
            encoder_kernels(encoder, training, kind, slice, encoder_stages(encoder, 1).front());
        return encoder.layers.layers * flops_of(kernels.layer) + flops_of(kernels.ends);
      };
      const double forward = 2 * (projection + (encoder_model_flops(encoder) - projection) / tp);
      EXPECT_NEAR(of(OpKind::F) / forward, 1, 1e-9) << images << " " << tp;
      // Of patches there is no input gradient, and of attention none of weights.
      const double attention = 2 * 2.0 * 2 * encoder.images * encoder.layers.layers *
                               static_cast<double>(encoder.patches * encoder.patches * encoder.layers.hidden) / tp;
      EXPECT_NEAR(of(OpKind::W) / (forward - attention), 1, 1e-9) << images << " " << tp;
    }
  }
}

TEST(Encoder, RunsWithTheFirstSliceAndFrozenForwardAlone) {
  const Training training{.sequence_length = 4096};
  const auto runs = [&](const Model& model, OpKind kind, std::int64_t context) {
    const SliceShape slice{.sequences = 1, .tokens = 1024, .context = context};
    return !encoder_kernels(*model.encoder, training, kind, slice, encoder_stages(*model.encoder, 1).front())
                .layer.empty();
  };
  const Model trained = with_images("4x1024");
  for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) {
    EXPECT_TRUE(runs(trained, kind, 0));
    EXPECT_FALSE(runs(trained, kind, 1024));
    EXPECT_EQ(runs(with_images("4x1024", true), kind, 0), kind == OpKind::F);
  }
}

// 576,388,336 is counted on the modules of transformers 5.24.0.
TEST(Encoder, IsOnTheFirstStageAndTrainedUnlessFrozen) {
  const Model model = with_images("1x256");
  EXPECT_EQ(encoder_parameters(*model.encoder, 1, encoder_stages(*model.encoder, 1).front()), 576'388'336);
  for (const int tp : {1, 2, 8}) {
    const Training training{.tp = tp};
    const std::int64_t own = encoder_parameters(*model.encoder, tp, encoder_stages(*model.encoder, 1).front());
    const std::vector<StageContents> stages = split_layers(model, 3, {}, 0, 0);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      StageContents without = stages[stage];
      without.encoder_begin = without.encoder_end = false;
      without.encoder_layers = 0;
      const auto added = [&](const Model& with) {
        return trained_parameters_per_device(with, training, stages[stage]) -
               trained_parameters_per_device(with, training, without);
      };
      EXPECT_EQ(added(model), stage == 0 ? own : 0);
      EXPECT_EQ(added(with_images("1x256", true)), 0);
      EXPECT_EQ(stage_parameters_per_device(model, tp, stages[stage]) - stage_parameters_per_device(model, tp, without),
                stage == 0 ? own : 0);
    }
  }
}

TEST(Encoder, ImagesAreChecked) {
  const auto error = [](const std::string& images) { return error_from([&] { with_images(images); }); };
  for (const std::string images : {"4", "x", "4x", "x4", "0x4", "4x-4", "4x4x4", "4 x 4", "4x99999999999999999999"}) {
    EXPECT_EQ(error(images), "test: expected images per sequence x patches of each, as 4x1024, got \"" + images + "\"");
  }
  EXPECT_EQ(error("4x1022"), "test: expected a multiple of 4 patches, which are merged to a token, got 1022");
  EXPECT_EQ(with_images("").encoder, nullptr);
  EXPECT_NE(error("1025x4"), "no error");
  const Model model = with_images("4x1024");
  EXPECT_EQ(error_from([&] { check_training(model, {.sequence_length = 1023}); }),
            "/batch/images: qwen3-vl-8b: 1024 tokens of images are more than the sequence's 1023");
  EXPECT_EQ(error_from([&] { check_training(model, {.tp = 32, .sequence_length = 4096}); }),
            "/batch/images: qwen3-vl-8b: tp 32 does not divide the 16 heads of its encoder");
}

}  // namespace
}  // namespace sluice::test
