#include "model/blocks/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/blocks/stage_kernels.h"
#include "model/blocks/transformer_footprint.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

constexpr int kAdapterRank = 32;
constexpr std::int64_t kSequence = 4096;

Training lora_training(int tp = 1) {
  Training training;
  training.tp = tp;
  training.lora_rank = kAdapterRank;
  training.sequence_length = kSequence;
  training.distributed_optimizer = true;
  training.transformer_engine = true;
  return training;
}

double gemm_flops(const Kernels& kernels) {
  double flops = 0;
  for (const KernelCall& call : kernels) flops += call.kind == KernelClass::gemm ? call.flops * call.count : 0;
  return flops;
}

// Llama 3 8B: QKV 4,096 x 6,144, projection 4,096 x 4,096, MLP 4,096 x 28,672 and 14,336 x 4,096, whose adapters have r
// (k + n) elements. Each pass multiplies all rows by them; only they have weight gradients.
TEST(Adapters, AreBesideEveryLinearLayer) {
  const Transformer model = example("llama3-8b/config.json");
  const std::int64_t elements = kAdapterRank * std::int64_t{4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096};
  const SliceShape slice{.sequences = 1, .tokens = kSequence, .context = 0};
  Training frozen = lora_training();
  Training all = frozen;
  all.lora_rank = 0;
  const double rows = kSequence;
  for (const OpKind kind : {OpKind::F, OpKind::I}) {
    EXPECT_DOUBLE_EQ(gemm_flops(layer_kernels(model, frozen, kind, slice)),
                     gemm_flops(layer_kernels(model, all, kind, slice)) + 2 * rows * static_cast<double>(elements));
  }
  EXPECT_DOUBLE_EQ(gemm_flops(layer_kernels(model, frozen, OpKind::W, slice)),
                   2 * rows * static_cast<double>(elements));
  EXPECT_TRUE(head_kernels(model, frozen, OpKind::W, slice).empty());
  EXPECT_EQ(adapter_elements(layer_kernels(model, frozen, OpKind::F, slice), frozen), elements);
  EXPECT_EQ(trained_parameters_per_device(model, frozen, {.layers = 2}), 2 * elements);
}

TEST(Adapters, AloneHaveGradientsAndOptimizerStates) {
  const Transformer model = example("llama3-8b/config.json");
  const std::vector<StageContents> stages = split_layers(model, 1, {}, 0, 0);
  const Training frozen = lora_training();
  const std::int64_t trained = trained_parameters_per_device(model, frozen, stages[0]);
  EXPECT_EQ(trained, 71'303'168);  // 32 layers of 2,228,224
  const StageBytes bytes = TransformerFootprint(model, frozen, stages).stage(0);
  EXPECT_EQ(bytes.weights, 2 * (parameters(model) + trained));
  EXPECT_EQ(bytes.gradients, 4 * trained);
  EXPECT_EQ(bytes.reduced, 4 * trained);
  EXPECT_EQ(bytes.optimizer, 12 * trained);
  EXPECT_EQ(bytes.scratch, 0);
}

// The experts of a rank share a pair of adapters: router and frozen experts have no weight gradients.
TEST(Adapters, AreSharedByTheExpertsOfARank) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = lora_training();
  training.dp = training.ep = 8;
  const SliceShape slice{.sequences = 1, .tokens = kSequence, .context = 0};
  const Kernels forward = layer_kernels(model, training, OpKind::F, slice, LayerKind::experts);
  // QKV 2,048 x (4,096 + 2 x 512), projection 4,096 x 2,048, experts 2,048 x 1,536 and 768 x 2,048.
  EXPECT_EQ(adapter_elements(forward, training), kAdapterRank * (2048 + 5120 + 4096 + 2048 + 2048 + 1536 + 768 + 2048));
  for (const KernelCall& call : layer_kernels(model, training, OpKind::W, slice, LayerKind::experts)) {
    if (call.kind != KernelClass::gemm) continue;
    EXPECT_THAT(std::string(call.name), testing::HasSubstr("adapter"));
  }
}

TEST(Adapters, NeedWholeFrozenParameters) {
  Training training = lora_training();
  training.zero = 3;
  EXPECT_EQ(error_of([&] { check_training(example("llama3-8b/config.json"), training); }),
            "/parallelism/lora_rank: frozen parameters are not sharded: expected a zero stage below 3");
}

}  // namespace
}  // namespace sluice::test
