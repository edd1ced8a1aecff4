// Patterns of layers of Megatron-LM's hybrid models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "import/import.h"
#include "model/blocks/model_files.h"
#include "model/cluster/catalogue.h"
#include "model/errors.h"

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

TEST(MegatronHybrid, PatternsAreLayersOfBlocks) {
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

TEST(MegatronHybrid, ErrorsNameTheArgument) {
  const auto error_of = [](const std::string& arguments) -> std::string {
    try {
      import_megatron_line(arguments, "line");
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(nano_arguments("MX", 2)),
              HasSubstr("--hybrid-override-pattern: expected M, *, - and E, got 'X'"));
  EXPECT_THAT(error_of(nano_arguments("ME", 3)), HasSubstr("has 2 layers, not the 3 of --num-layers"));
  EXPECT_THAT(error_of("--hybrid-override-pattern E --hidden-size 8 --num-attention-heads 2 --vocab-size 64 --bf16"),
              HasSubstr("layers of experts (E) require --num-experts"));
}

}  // namespace
}  // namespace sluice::test
