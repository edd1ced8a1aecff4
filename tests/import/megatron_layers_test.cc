// Patterns of layers of Megatron-LM's hybrid models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "import/import.h"
#include "model/blocks/attention.h"
#include "model/blocks/layer.h"
#include "model/blocks/model_files.h"
#include "model/cluster/catalogue.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

// The arguments of Nemotron 3 Nano.
std::string nano_arguments(const std::string& pattern, int layers) {
  return "--hybrid-override-pattern " + pattern + " --num-layers " + std::to_string(layers) +
         " --is-hybrid-model --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --hidden-size 2688 "
         "--num-attention-heads 32 --group-query-attention --num-query-groups 2 --kv-channels 128 --seq-length 8192 "
         "--ffn-hidden-size 1856 --max-position-embeddings 262144 --position-embedding-type none --squared-relu "
         "--disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights --mamba-num-heads 64 "
         "--mamba-head-dim 64 --mamba-state-dim 128 --mamba-num-groups 8 --num-experts 128 --moe-router-topk 6 "
         "--moe-ffn-hidden-size 1856 --moe-shared-expert-intermediate-size 3712 --vocab-size 131072 "
         "--micro-batch-size 1 --bf16 --hidden-dropout 0 --attention-dropout 0";
}

Model model_of(const std::string& arguments) {
  const Imported imported = import_megatron_line(arguments, "line");
  EXPECT_THAT(imported.notes, testing::IsEmpty());
  return parse_model(imported.scenario.at("model").dump(), "model");
}

std::string error_of_layers(const std::string& arguments) {
  return error_from([&] { import_megatron_line(arguments, "line"); });
}

TEST(MegatronLayers, PatternsAreLayersOfBlocks) {
  const Model model = model_of(nano_arguments("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 52));
  for (const CatalogueFile& file : model_files()) {
    if (file.name != "nemotron-3-nano") continue;
    const Model ours = parse_model(file.text, "nemotron-3-nano");
    EXPECT_EQ(parameters(model), parameters(ours));
    EXPECT_EQ(active_parameters(model), active_parameters(ours));
    EXPECT_DOUBLE_EQ(iteration_model_flops(model, 8192, 4, false), iteration_model_flops(ours, 8192, 4, false));
  }
  // Borders of stages are no layers. A layer of multi-token prediction has all the blocks of its pattern.
  const Model predicts = model_of(nano_arguments("M*|ME/*E/*E --mtp-num-layers 2 --moe-latent-size 512", 4));
  EXPECT_EQ(predicts.layers, 4);
  EXPECT_EQ(predicts.mtp_layers, 2);
  EXPECT_EQ(layer_parameters(predicts, predicts.mtp_kind),
            layer_parameters(predicts, predicts.pattern()[1]) + layer_parameters(predicts, predicts.pattern()[3]));
}

TEST(MegatronLayers, ErrorsNameTheArgument) {
  EXPECT_THAT(error_of_layers(nano_arguments("MX", 2)),
              HasSubstr("--hybrid-override-pattern: expected M, G, *, +, D, - and E, got 'X'"));
  EXPECT_THAT(error_of_layers(nano_arguments("ME", 3)), HasSubstr("has 2 layers, not the 3 of --num-layers"));
  EXPECT_THAT(
      error_of_layers("--hybrid-override-pattern E --hidden-size 8 --num-attention-heads 2 --vocab-size 64 --bf16"),
      HasSubstr("--num-experts: required for layers of experts (E)"));
}

const std::string kGpt =
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 1024 --position-embedding-type rope --disable-bias-linear --micro-batch-size 1 --bf16 "
    "--num-experts 8 --ffn-hidden-size 1024 --normalization RMSNorm ";
const std::string kLatents = kGpt + "--multi-latent-attention --qk-layernorm --q-lora-rank 64 ";
const std::string kSparse = kLatents +
                            "--experimental-attention-variant dsa --dsa-indexer-n-heads 4 --dsa-indexer-head-dim 32 "
                            "--dsa-indexer-topk 128 --dsa-indexer-use-sparse-loss ";
const std::string kScan = kGpt + "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 ";

// Whether an argument, of which the last value counts, changes what a model computes or has.
bool changes(const std::string& arguments, const std::string& argument) {
  const Model before = model_of(arguments);
  const Imported imported = import_megatron_line(arguments + argument, "line");
  for (const std::string& note : imported.notes) EXPECT_THAT(note, HasSubstr("repeated"));
  const Model after = parse_model(imported.scenario.at("model").dump(), "model");
  const auto differs = [&](const auto& of) { return of(before) != of(after); };
  return differs([](const Model& model) { return parameters(model) + model.mtp_layers; }) ||
         differs([](const Model& model) { return slice_flops(model, 4096, 0).forward(); }) ||
         differs([](const Model& model) {
           const auto* const attention = dynamic_cast<const Attention*>(model.kinds()[0].steps[0].blocks[0].get());
           return attention != nullptr && attention->options().rotary;
         });
}

TEST(MegatronLayers, EveryArgumentHasAnEffect) {
  for (const auto& [base, argument] : {std::pair(kGpt, "--window-size 127,0"),
                                       {kGpt + "--window-size 127,0 ", "--window-attn-skip-freq 2"},
                                       {kGpt, "--softmax-type learnable"},
                                       {kGpt, "--attention-output-gate"},
                                       {kGpt, "--head-wise-attn-gate"},
                                       {kGpt, "--no-rope-freq 1"},
                                       {kGpt, "--moe-latent-size 128"},
                                       {kGpt, "--moe-layer-freq 2"},
                                       {kLatents,
                                        "--experimental-attention-variant dsa --dsa-indexer-n-heads 4 "
                                        "--dsa-indexer-head-dim 32 --dsa-indexer-topk 128 "
                                        "--dsa-indexer-use-sparse-loss"},
                                       {kSparse, "--dsa-indexer-n-heads 8"},
                                       {kSparse, "--dsa-indexer-head-dim 64"},
                                       {kSparse, "--dsa-indexer-topk 256"},
                                       {kSparse, "--dsa-indexer-topk-freq 4"},
                                       {kSparse + "--dsa-indexer-topk-freq 4 ", "--dsa-indexer-skip-topk-offset 3"},
                                       {kGpt, "--linear-attention-type gated_delta_net --linear-attention-freq 4"},
                                       {kScan, "--linear-attention-freq 2"},
                                       {kScan, "--linear-conv-kernel-dim 3"},
                                       {kScan, "--linear-key-head-dim 64"},
                                       {kScan, "--linear-value-head-dim 64"},
                                       {kScan, "--linear-num-key-heads 8"},
                                       {kScan, "--linear-num-value-heads 16"},
                                       {kScan, "--mtp-num-layers 1"},
                                       {kGpt, "--hybrid-layer-pattern 'MG*-E*-E'"}}) {
    EXPECT_TRUE(changes(base, argument)) << argument;
  }
}

TEST(MegatronLayers, BordersOfAPatternAreStages) {
  const std::string arguments = nano_arguments("M*|ME|M-|EM", 8) + " --pipeline-model-parallel-size 2";
  const nlohmann::json parallelism = import_megatron_line(arguments, "line").scenario.at("parallelism");
  EXPECT_EQ(parallelism.at("stage_layers"), nlohmann::json({2, 2, 2, 2}));
  EXPECT_EQ(parallelism.at("vpp"), 2);
}

TEST(MegatronLayers, WhatIsNotModeledIsNamed) {
  const auto notes_of = [](const std::string& arguments) { return import_megatron_line(arguments, "line").notes; };
  EXPECT_THAT(notes_of(kGpt + "--num-residual-streams 4 --mtp-use-repeated-layer"),
              testing::ElementsAre("line: unknown arguments: --num-residual-streams, --mtp-use-repeated-layer"));
  EXPECT_THAT(notes_of(kGpt + "--multi-latent-attention"),
              testing::ElementsAre(HasSubstr("latents without a norm (no --qk-layernorm)")));
  EXPECT_THAT(error_of_layers(kGpt + "--window-size 127,3"), HasSubstr("--window-size: expected 0 keys after a query"));
  EXPECT_THAT(error_of_layers(kGpt + "--window-size 127,0 --window-attn-skip-freq [1,0]"),
              HasSubstr("--window-attn-skip-freq: expected one number per layer, 8"));
  EXPECT_THAT(error_of_layers(kGpt + "--softmax-type learned"),
              HasSubstr("--softmax-type: expected vanilla, off-by-one or learnable, got 'learned'"));
  EXPECT_THAT(error_of_layers(kGpt + "--experimental-attention-variant dsv4_hybrid"),
              HasSubstr("expected gated_delta_net or dsa, got 'dsv4_hybrid'"));
  EXPECT_THAT(error_of_layers(kGpt + "--experimental-attention-variant dsa"),
              HasSubstr("requires --multi-latent-attention"));
  EXPECT_THAT(error_of_layers(kLatents + "--experimental-attention-variant dsa"),
              HasSubstr("--dsa-indexer-n-heads: required"));
  EXPECT_THAT(error_of_layers(nano_arguments("M|E*", 3) + " --pipeline-model-parallel-size 3"),
              HasSubstr("expected a divisor of the pattern's 2 stages"));
}

}  // namespace
}  // namespace sluice::test
