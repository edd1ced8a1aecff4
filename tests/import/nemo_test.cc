#include "import/nemo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "import/import.h"
#include "import/yaml.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/scenario/scenario.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string nemo_text(const std::string& name) {
  return read_file(std::string(SLUICE_SOURCE_DIR "/tests/fuzz/corpus/import/") + name);
}

// Returns the text with one part replaced, which it must have.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string nemo_error(const std::string& text) {
  try {
    const Imported imported = import_text(text, "run.yaml");
    scenario_from_json(imported.scenario, "run.yaml", "");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ImportNemo, ReadsConfigurationsOfNemo) {
  const std::string text = nemo_text("nemo.yaml");
  ASSERT_TRUE(is_foreign(text));
  const Imported imported = import_text(text, "run.yaml");
  EXPECT_THAT(imported.notes, IsEmpty());
  // The same run with Megatron-LM's arguments.
  Imported line = import_megatron_line(
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 "
      "--context-parallel-size 1 --seq-length 8192 --max-position-embeddings 8192 --num-layers 32 --hidden-size 4096 "
      "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --hidden-dropout "
      "0 "
      "--attention-dropout 0 --normalization RMSNorm --disable-bias-linear --swiglu --position-embedding-type rope "
      "--untie-embeddings-and-output-weights --vocab-size 128256 --bf16 --recompute-granularity full "
      "--recompute-method block --recompute-num-layers 2 --sequence-parallel --transformer-impl transformer_engine "
      "--use-flash-attn --use-distributed-optimizer --overlap-grad-reduce --grad-reduce-in-bf16 --micro-batch-size 1 "
      "--global-batch-size 128 --world-size 16",
      "line");
  EXPECT_EQ(imported.scenario, line.scenario);
  EXPECT_EQ(scenario_from_json(imported.scenario, "run.yaml", "").microbatches, 32);
}

TEST(ImportNemo, ReadsConfigurationsOfMegatronBridge) {
  const std::string text = nemo_text("bridge.yaml");
  ASSERT_TRUE(is_foreign(text));
  const Imported imported = import_text(text, "run.yaml");
  EXPECT_THAT(imported.notes, ElementsAre("run.yaml: unknown keys: model.surprising"));
  // comm_overlap without values overlaps gradients, transfers and, with the distributed optimizer, parameters.
  EXPECT_EQ(imported.scenario.at("parallelism"), Json::parse(R"({
    "tp": 2, "pp": 4, "cp": 1, "ep": 8, "vpp": 2, "sequence_parallel": true, "tp_comm_overlap": true, "distributed_optimizer": true,
    "overlap_grad_reduce": true, "overlap_param_gather": true, "overlap_transfers": true, "recompute": "selective",
    "recompute_modules": ["core_attn", "moe"], "flash_attention": true,
    "fused_cross_entropy": true, "cross_entropy_fusion_impl": "native", "transformer_engine": true, "gradient_bytes": 2})"));
  EXPECT_EQ(imported.scenario.at("batch"),
            Json::parse(R"({"micro_batch": 1, "global_batch": 512, "sequence_length": 4096})"));
  EXPECT_EQ(imported.scenario.at("model").at("num_experts"), 128);
  EXPECT_EQ(imported.scenario.at("model").at("num_query_groups"), 4);
  EXPECT_TRUE(imported.scenario.at("model").at("disable_bias_linear"));
  const auto parallelism = [&](const std::string& from, const std::string& to) {
    return import_text(with(text, from, to), "run.yaml").scenario.at("parallelism");
  };
  EXPECT_FALSE(parallelism("overlap_grad_reduce: null", "overlap_grad_reduce: false").contains("overlap_grad_reduce"));
  EXPECT_FALSE(
      parallelism("overlap_grad_reduce: null", "overlap_param_gather: false").contains("overlap_param_gather"));
  EXPECT_EQ(parallelism("overlap_p2p_comm: null", "overlap_p2p_comm: false").at("overlap_transfers"), false);
  EXPECT_FALSE(parallelism("grad_reduce_in_fp32: false", "grad_reduce_in_fp32: null").contains("gradient_bytes"));
  EXPECT_EQ(parallelism("attention_backend: null", "attention_backend: {_target_: x.AttnBackend, _args_: [3]}")
                .at("flash_attention"),
            false);
}

TEST(ImportNemo, ReadsHowExpertsRun) {
  const std::string text = nemo_text("bridge.yaml");
  const auto imported = [&](const std::string& model, const std::string& overlap) {
    const std::string dispatcher = "moe_token_dispatcher_type: alltoall";
    const std::string backend = "tp_comm_bootstrap_backend: nccl";
    // Combined 1F1B excludes recomputation of moe.
    const std::string less = with(text, "recompute_modules: [core_attn, moe]", "recompute_modules: [core_attn]");
    return import_text(with(with(less, dispatcher, model), backend, backend + overlap), "run.yaml").scenario;
  };
  const Json plain = imported(
      "moe_token_dispatcher_type: alltoall\n  cuda_graph_impl: none\n  cuda_graph_scope: []\n"
      "  moe_flex_dispatcher_backend: deepep\n  use_transformer_engine_op_fuser: false",
      "\n  overlap_moe_expert_parallel_comm: false\n  delay_wgrad_compute: null");
  EXPECT_EQ(plain.at("schedule").at("name"), "interleaved-1f1b");
  for (const char* key : {"moe_token_dispatcher", "cuda_graph_impl", "fused_grouped_mlp", "weave"}) {
    EXPECT_FALSE(plain.at("parallelism").contains(key)) << key;
  }
  const Json hidden = imported(
      "moe_token_dispatcher_type: flex\n  moe_flex_dispatcher_backend: hybridep\n"
      "  cuda_graph_impl: transformer_engine\n  cuda_graph_scope: [attn, moe_router]\n"
      "  use_transformer_engine_op_fuser: true",
      "\n  overlap_moe_expert_parallel_comm: true\n  delay_wgrad_compute: true");
  EXPECT_EQ(hidden.at("schedule").at("name"), "combined-1f1b");
  const Json& parallelism = hidden.at("parallelism");
  EXPECT_EQ(parallelism.at("moe_token_dispatcher"), "hybridep");
  EXPECT_EQ(parallelism.at("cuda_graph_impl"), "transformer_engine");
  EXPECT_EQ(parallelism.at("cuda_graph_modules"), Json({"attn", "moe_router"}));
  EXPECT_EQ(parallelism.at("fused_grouped_mlp"), true);
  EXPECT_FALSE(parallelism.contains("weave"));
  const std::string overlap = "tp_comm_bootstrap_backend: nccl\n  overlap_moe_expert_parallel_comm: true";
  EXPECT_THAT(nemo_error(with(text, "tp_comm_bootstrap_backend: nccl", overlap)),
              HasSubstr("comm_overlap.overlap_moe_expert_parallel_comm: excludes --recompute-modules moe"));
}

TEST(ImportNemo, ReadsNarrowFormats) {
  const auto precision = [](const std::string& text) {
    const Json parallelism = import_text(text, "run.yaml").scenario.at("parallelism");
    return parallelism.value("precision", "none") + (parallelism.value("fp8_param_gather", false) ? ", gathered" : "");
  };
  const std::string nemo = nemo_text("nemo.yaml");
  EXPECT_EQ(precision(nemo), "none");
  EXPECT_EQ(precision(with(nemo, "fp8: False", "fp8: True")), "fp8");
  EXPECT_EQ(precision(with(nemo, "fp8: False", "fp8: True\n  fp8_params: True")), "fp8, gathered");
  EXPECT_TRUE(import_text(with(nemo, "ub_tp_comm_overlap: False", "ub_tp_comm_overlap: True"), "run.yaml")
                  .scenario.at("parallelism")
                  .at("tp_comm_overlap"));
  const std::string bridge = nemo_text("bridge.yaml");
  EXPECT_EQ(precision(bridge), "none");
  EXPECT_EQ(precision(with(bridge, "fp8: null", "fp8: hybrid\n  fp8_recipe: tensorwise")), "fp8-current");
  EXPECT_EQ(precision(with(bridge, "fp8: null", "fp8: hybrid\n  fp8_recipe: blockwise")), "fp8-block");
  EXPECT_EQ(precision(with(bridge, "fp8: null", "fp8: e4m3\n  fp8_recipe: mxfp8\n  fp8_param_gather: true")),
            "mxfp8, gathered");
  EXPECT_EQ(import_text(with(bridge, "fp8: null", "fp8: e4m3\n  fp8_recipe: mxfp8\n  fp8_dot_product_attention: true"),
                        "run.yaml")
                .scenario.at("parallelism")
                .at("fp8_dot_product_attention"),
            true);
  EXPECT_EQ(precision(with(bridge, "fp8: null", "fp4: e2m1\n  fp4_recipe: nvfp4")), "nvfp4");
}

TEST(ImportNemo, NamesWhatIsNotModeled) {
  const std::string nemo = nemo_text("nemo.yaml");
  const auto notes = [](const std::string& text) { return import_text(text, "run.yaml").notes; };
  const std::string begin = "run.yaml: not modeled, although they change time or memory: ";
  EXPECT_THAT(notes(with(nemo, "overlap_param_sync: False", "overlap_param_sync: True")), ElementsAre());
  EXPECT_THAT(notes(with(nemo, "rampup_batch_size: null", "rampup_batch_size: [16, 16, 100]")),
              ElementsAre(begin + "model.rampup_batch_size [16, 16, 100]"));
  EXPECT_THAT(notes(with(nemo, "megatron_amp_O2: True", "megatron_amp_O2: False")),
              ElementsAre(HasSubstr("model.megatron_amp_O2 False")));
  EXPECT_THAT(notes(with(nemo, "precision: bf16", "precision: 32")), ::testing::Contains(HasSubstr("32-bit training")));
  const std::string bridge = with(nemo_text("bridge.yaml"), "surprising: 3", "seed: 1");
  const std::string sharded = with(bridge, "data_parallel_sharding_strategy: no_shard",
                                   "data_parallel_sharding_strategy: optim_grads_params\n  use_megatron_fsdp: true");
  EXPECT_EQ(import_text(sharded, "run.yaml").scenario.at("parallelism").value("zero", 0), 3);
  EXPECT_THAT(notes(with(bridge, "optimizer: adam", "optimizer: sgd")),
              ::testing::Contains(HasSubstr("optimizer.optimizer sgd")));
  EXPECT_THAT(notes(with(bridge, "fp8: null", "fp8: hybrid\n  fp8_recipe: custom")),
              ::testing::Contains(HasSubstr("--fp8-recipe custom")));
  EXPECT_THAT(notes(with(bridge, "ft: null", "peft: {dim: 8}")), ::testing::Contains(HasSubstr("peft.dim 8")));
}

TEST(ImportNemo, ErrorsNameTheLineAndTheKey) {
  const std::string nemo = nemo_text("nemo.yaml");
  const std::string bridge = nemo_text("bridge.yaml");
  EXPECT_EQ(nemo_error(with(nemo, "num_layers: 32", "num_layers: many")),
            "run.yaml: line 26: model.num_layers: expected a whole number, got 'many'");
  EXPECT_EQ(nemo_error(with(nemo, "num_layers: 32", "num_layers: ${oc.env:LAYERS}")),
            "run.yaml: line 26: model.num_layers: the value of ${oc.env:LAYERS} is not known");
  EXPECT_EQ(nemo_error(with(nemo, "seq_length: ${model.encoder_seq_length}", "seq_length: 4096")),
            "run.yaml: line 24: model.encoder_seq_length: 8192 contradicts model.data.seq_length: 4096");
  EXPECT_EQ(nemo_error(with(bridge, "sequence_length: 4096", "sequence_length: 2048")),
            "run.yaml: line 73: model.seq_length: 4096 contradicts dataset.sequence_length: 2048");
  EXPECT_EQ(nemo_error(with(nemo, "sequence_parallel: True", "sequence_parallel: 2")),
            "run.yaml: line 52: model.sequence_parallel: expected true or false, got 2");
  EXPECT_EQ(nemo_error(with(nemo, "num_layers: 32", "num_layers: 32\n  num_layers: 24")),
            "run.yaml: line 27: model.num_layers occurs twice");
  EXPECT_EQ(nemo_error(with(nemo, "num_layers: 32", "num_layers: [32")),
            "run.yaml: line 27: end of sequence flow not found");
  EXPECT_EQ(nemo_error(with(nemo, "  bias: False", "  <<: *x\n  bias: &x False").append("---\nmodel: 1\n")),
            "run.yaml: line 36: the referenced anchor is not defined");
  EXPECT_EQ(nemo_error(nemo + "---\nmodel: 1\n"), "run.yaml: expected one YAML document, got 2");
  EXPECT_EQ(nemo_error("trainer:\n  strategy:\n    _target_: nemo.lightning.MegatronStrategy\nmodel: {}\n"),
            "run.yaml: line 2: trainer.strategy: recipes of NeMo 2 are not supported: expected NeMo 1 or "
            "Megatron-Bridge");
  const Imported imported = import_text(with(nemo, "num_attention_heads: 32", "num_attention_heads: 31"), "run.yaml");
  EXPECT_EQ(naming_arguments("run.yaml: /model/num_attention_heads: expected 1", "run.yaml", imported),
            "run.yaml: line 29: model.num_attention_heads: expected 1");
  EXPECT_THAT(nemo_error("model: 1\n"), HasSubstr("got YAML without them"));
}

TEST(Yaml, LimitsAliasesAndDepth) {
  std::string aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    aliases += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
    for (int j = 0; j < 9; ++j) aliases += ", " + before;
    aliases += "]\n";
  }
  EXPECT_THROW(read_yaml(aliases, "a.yaml"), InputError);
  EXPECT_THROW(read_yaml("a: " + std::string(10000, '['), "a.yaml"), InputError);
  EXPECT_THROW(read_yaml("a: " + std::string(60, '[') + std::string(60, ']'), "a.yaml"), InputError);
  const YamlFile file = read_yaml("a: {b: ~, c: 'null', d: yes, e: [1, x], f: '${.c}', g: 1}\nh: ${g}\ng: ${h}\n", "f");
  EXPECT_EQ(file.at("a.b").text, "None");
  EXPECT_EQ(file.at("a.c").text, "null");
  EXPECT_EQ(file.at("a.d").text, "True");
  EXPECT_EQ(file.at("a.e").text, "[1, x]");
  EXPECT_EQ(file.at("a.f").text, "null");
  EXPECT_THAT(file.at("h").text, HasSubstr("${"));  // refers to itself
  EXPECT_EQ(file.at("g").line, 3);
}

// Damaged input is rejected or read, and never anything else.
TEST(ImportNemo, RejectsDamagedInput) {
  constexpr std::string_view kBytes = "\"'`${}[]:\n -&*!|>%@#x\t";
  std::mt19937 random(1);
  int accepted = 0;
  for (const char* name : {"nemo.yaml", "bridge.yaml"}) {
    const std::string text = nemo_text(name);
    for (int i = 0; i < 1000; ++i) {
      std::string damaged = text;
      const std::size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0: damaged.erase(at, random() % 30); break;
        case 1: damaged[at] = kBytes[random() % kBytes.size()]; break;
        default: damaged.insert(at, "99999999999"); break;
      }
      try {
        scenario_from_json(import_text(damaged, "text").scenario, "text", "");
        ++accepted;
      } catch (const InputError& error) {
        EXPECT_STRNE(error.what(), "");
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace sluice::test
