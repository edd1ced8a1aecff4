// What Megatron-LM's arguments say of memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "import/import.h"
#include "model/errors.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kSmallModel =
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--vocab-size 51200 --micro-batch-size 1 --bf16 ";

Json parallelism_of(const std::string& line) {
  return import_megatron_line(kSmallModel + line, "line").scenario.at("parallelism");
}

TEST(ImportMegatron, ReadsOptimizerStatesAndTheirShards) {
  EXPECT_EQ(parallelism_of("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype torch.bfloat16")
                .at("optimizer_bytes"),
            8);
  EXPECT_EQ(parallelism_of("--use-precision-aware-optimizer --main-params-dtype fp16 --exp-avg-dtype fp8")
                .at("optimizer_bytes"),
            7);
  EXPECT_EQ(parallelism_of("--use-precision-aware-optimizer").count("optimizer_bytes"), 0U);
  EXPECT_EQ(parallelism_of("--exp-avg-dtype bf16").count("optimizer_bytes"), 0U);
  EXPECT_EQ(parallelism_of("--use-distributed-optimizer --num-distributed-optimizer-instances 2 --world-size 16 "
                           "--tensor-model-parallel-size 2")
                .at("dp_shard"),
            4);
  EXPECT_EQ(parallelism_of("--use-distributed-optimizer --num-distributed-optimizer-instances 2").at("dp_replicate"),
            2);
  EXPECT_EQ(parallelism_of("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward").at("reshard_after_forward"),
            false);
  EXPECT_FALSE(parallelism_of("--torch-fsdp2-no-reshard-after-forward").contains("reshard_after_forward"));
  EXPECT_THROW(parallelism_of("--cross-entropy-loss-fusion --cross-entropy-fusion-impl plain"), InputError);
  EXPECT_TRUE(parallelism_of("--activation-func-fp8-input-store").at("activation_func_fp8_input_store").get<bool>());
  EXPECT_FALSE(parallelism_of("--no-bias-swiglu-fusion").at("fused_activation").get<bool>());
  const Json offload = parallelism_of(
      "--use-distributed-optimizer --use-precision-aware-optimizer --optimizer-cpu-offload "
      "--optimizer-offload-fraction 0.25 --overlap-cpu-optimizer-d2h-h2d");
  EXPECT_EQ(offload.at("optimizer_cpu_offload"), true);
  EXPECT_EQ(offload.at("optimizer_offload_fraction"), 0.25);
  EXPECT_EQ(offload.at("overlap_cpu_optimizer_d2h_h2d"), true);
  EXPECT_THROW(import_megatron_line(kSmallModel + "--use-precision-aware-optimizer --exp-avg-dtype int4", "line"),
               InputError);
  EXPECT_THROW(import_megatron_line(kSmallModel + "--use-distributed-optimizer --num-distributed-optimizer-instances 3 "
                                                  "--world-size 16",
                                    "line"),
               InputError);
}

TEST(ImportMegatron, ReadsWhatTheHeadAndTheExpertsKeep) {
  const Json plain = parallelism_of("--cross-entropy-loss-fusion");
  EXPECT_EQ(plain.at("cross_entropy_fusion_impl"), "native");
  EXPECT_EQ(
      parallelism_of("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te").at("cross_entropy_fusion_impl"),
      "te");
  EXPECT_FALSE(plain.contains("wgrad_deferral_limit"));
  EXPECT_EQ(parallelism_of("--defer-embedding-wgrad-compute --wgrad-deferral-limit 22").at("wgrad_deferral_limit"), 22);
  EXPECT_THAT(import_megatron_line(kSmallModel + "--defer-embedding-wgrad-compute", "line").notes,
              ElementsAre(HasSubstr("--defer-embedding-wgrad-compute of all microbatches")));
  EXPECT_EQ(parallelism_of("--num-experts 8 --moe-grouped-gemm").count("moe_grouped_gemm"), 0U);
  EXPECT_EQ(parallelism_of("--num-experts 8").at("moe_grouped_gemm"), false);
}

TEST(ImportMegatron, ReadsTheOverlapOfExperts) {
  const std::string experts =
      "--num-experts 64 --expert-model-parallel-size 8 --moe-token-dispatcher-type flex --pipeline-model-parallel-size "
      "4 "
      "--num-virtual-stages-per-pipeline-rank 2 --world-size 32 ";
  const auto imported = [&](const std::string& more) {
    return import_megatron_line(kSmallModel + experts + more, "line").scenario;
  };
  const Json plain = imported("");
  EXPECT_EQ(plain.at("parallelism").at("moe_token_dispatcher"), "deepep");
  EXPECT_EQ(plain.at("schedule").at("name"), "interleaved-1f1b");
  const Json combined = imported(
      "--overlap-moe-expert-parallel-comm --moe-flex-dispatcher-backend hybridep "
      "--moe-hybridep-num-sms 32 --moe-router-num-groups 8 --moe-router-group-topk 4");
  EXPECT_EQ(combined.at("schedule").at("name"), "combined-1f1b");
  EXPECT_EQ(combined.at("parallelism").at("weave"), "whole-backward");
  EXPECT_EQ(combined.at("parallelism").at("moe_token_dispatcher"), "hybridep");
  EXPECT_EQ(combined.at("parallelism").at("moe_communication_sms"), 32);
  EXPECT_EQ(combined.at("model").at("moe_router_num_groups"), 8);
  EXPECT_FALSE(
      imported("--overlap-moe-expert-parallel-comm --delay-wgrad-compute").at("parallelism").contains("weave"));
  const Json capacity = import_megatron_line(kSmallModel +
                                                 "--num-experts 8 --moe-expert-capacity-factor 1.25 "
                                                 "--moe-pad-expert-input-to-capacity",
                                             "line")
                            .scenario.at("parallelism");
  EXPECT_EQ(capacity.at("moe_expert_capacity_factor"), 1.25);
  EXPECT_EQ(capacity.at("moe_pad_expert_input_to_capacity"), true);
  const Json clamped = import_megatron_line(
                           "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 1000 "
                           "--bf16 --micro-batch-size 1 --global-batch-size 8 --num-experts 8 --moe-ffn-hidden-size 96 "
                           "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0",
                           "line")
                           .scenario.at("model");
  EXPECT_EQ(clamped.at("swiglu"), true);
  EXPECT_EQ(clamped.at("activation_func_clamp_value"), 7.0);
  const Json dropless = import_megatron_line(kSmallModel + "--num-experts 8 --moe-expert-capacity-factor -1", "line")
                            .scenario.at("parallelism");
  EXPECT_FALSE(dropless.contains("moe_expert_capacity_factor"));
  EXPECT_THROW(imported("--moe-flex-dispatcher-backend nccl"), InputError);
  EXPECT_THROW(import_megatron_line(kSmallModel + "--num-experts 8 --overlap-moe-expert-parallel-comm "
                                                  "--pipeline-model-parallel-size 2",
                                    "line"),
               InputError);
}

TEST(ImportMegatron, RejectsWhatTheOverlapOfExpertsExcludes) {
  const auto error = [](const std::string& more, const std::string& dispatcher, const std::string& ep = "8") {
    return test::error_of([&] {
      import_megatron_line(kSmallModel +
                               "--num-experts 64 --pipeline-model-parallel-size 4 --world-size 32 "
                               "--num-virtual-stages-per-pipeline-rank 2 --overlap-moe-expert-parallel-comm " +
                               (ep.empty() ? "" : "--expert-model-parallel-size " + ep + " ") +
                               (dispatcher.empty() ? "" : "--moe-token-dispatcher-type " + dispatcher + " ") + more,
                           "line");
    });
  };
  const std::string overlap = "line: --overlap-moe-expert-parallel-comm: ";
  EXPECT_EQ(error("", "alltoall"), "no error");
  EXPECT_EQ(error("--recompute-granularity selective --recompute-modules layernorm moe_act --mtp-num-layers 1", "flex"),
            "no error");
  EXPECT_EQ(error("", "allgather"), overlap + "requires --moe-token-dispatcher-type alltoall or flex, got allgather");
  EXPECT_EQ(error("", ""),
            overlap + "requires --moe-token-dispatcher-type alltoall or flex, got allgather, the default");
  EXPECT_EQ(error("", "alltoall", ""), overlap + "requires --expert-model-parallel-size of at least 2");
  EXPECT_EQ(error("--recompute-granularity full --recompute-method uniform", "alltoall"),
            overlap + "excludes --recompute-granularity full");
  EXPECT_EQ(error("--recompute-granularity selective --recompute-modules moe", "alltoall"),
            overlap + "excludes --recompute-modules moe");
  EXPECT_EQ(error("--mtp-num-layers 2", "alltoall"), overlap + "requires --mtp-num-layers of at most 1, got 2");
  EXPECT_EQ(error("--moe-shared-expert-overlap", "alltoall"), overlap + "excludes --moe-shared-expert-overlap");
}

TEST(ImportMegatron, ReadsCudaGraphs) {
  const auto graphs_of = [&](const std::string& line) {
    const Imported imported = import_megatron_line(kSmallModel + "--num-experts 8 " + line, "line");
    const Json& parallelism = imported.scenario.at("parallelism");
    return parallelism.value("cuda_graph_impl", "none") + " " +
           parallelism.value("cuda_graph_modules", Json::array()).dump();
  };
  EXPECT_EQ(graphs_of(""), "none []");
  EXPECT_EQ(graphs_of("--cuda-graph-impl none --cuda-graph-modules attn"), "none []");
  EXPECT_EQ(graphs_of("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router moe_preprocess"),
            R"(transformer_engine ["attn","moe_router","moe_preprocess"])");
  EXPECT_EQ(graphs_of("--cuda-graph-impl full_iteration"), "full_iteration []");
  // Older names.
  EXPECT_EQ(graphs_of("--enable-cuda-graph"), "local []");
  EXPECT_EQ(graphs_of("--external-cuda-graph --cuda-graph-scope full"), "transformer_engine []");
  EXPECT_EQ(graphs_of("--cuda-graph-impl local --cuda-graph-scope full_iteration"), "full_iteration []");
  EXPECT_EQ(graphs_of("--external-cuda-graph --cuda-graph-scope attn"), R"(transformer_engine ["attn"])");
  EXPECT_THAT(
      import_megatron_line(kSmallModel + "--cuda-graph-impl local --cuda-graph-modules mamba attn", "line").notes,
      ElementsAre(HasSubstr("--cuda-graph-modules mamba")));
  // As logs print them.
  EXPECT_EQ(graphs_of("--cuda-graph-impl local --cuda-graph-modules \"['attn', 'moe_router']\""),
            R"(local ["attn","moe_router"])");
  EXPECT_EQ(
      graphs_of("--cuda-graph-impl local --cuda-graph-scope \"[<CudaGraphScope.attn: 2>, <CudaGraphScope.mlp: 3>]\""),
      R"(local ["attn","mlp"])");
  EXPECT_EQ(graphs_of("--cuda-graph-impl local --cuda-graph-modules []"), "local []");
  EXPECT_EQ(graphs_of("--cuda-graph-impl None"), "none []");
  // Nothing of what is listed is captured in training.
  EXPECT_EQ(graphs_of("--cuda-graph-impl local --cuda-graph-modules mamba"), "none []");
  EXPECT_EQ(graphs_of("--cuda-graph-impl local --cuda-graph-scope full_iteration_inference"), "none []");
}

TEST(ImportMegatron, ReadsFusedExperts) {
  EXPECT_EQ(
      parallelism_of("--num-experts 8 --moe-grouped-gemm --use-transformer-engine-op-fuser").at("fused_grouped_mlp"),
      true);
  for (const char* const line :
       {"--use-transformer-engine-op-fuser", "--num-experts 8 --use-transformer-engine-op-fuser"}) {
    const Imported imported = import_megatron_line(kSmallModel + line, "line");
    EXPECT_FALSE(imported.scenario.at("parallelism").contains("fused_grouped_mlp"));
    EXPECT_THAT(imported.notes, Contains(HasSubstr("--use-transformer-engine-op-fuser")));
  }
}

}  // namespace
}  // namespace sluice::test
