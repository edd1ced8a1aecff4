// Flags and keys of models with experts: errors name them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using testing::HasSubstr;

const std::string kMixtral =
    "simulate --model mixtral-8x7b --mbs 1 --seq-length 4096 --microbatches 8 --cluster dgx-h100 ";

// Returns the error of a command that is rejected.
std::string error_of_command(const std::string& arguments) {
  const CommandResult result = run_sluice(words(arguments));
  EXPECT_EQ(result.exit_code, 2) << arguments;
  EXPECT_EQ(result.out, "");
  return result.err;
}

TEST(ExpertFlags, ErrorsNameTheFlag) {
  const std::string shape =
      "simulate --pp 1 --microbatches 1 --seq-length 64 --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
      "--vocab-size 128 --position-embedding-type rope ";
  const std::pair<std::string, const char*> cases[] = {
      {shape + "--num-experts 8 --moe-router-topk 9", "--moe-router-topk: expected a whole number from 1 to 8, got 9"},
      {shape + "--num-experts 1", "--num-experts: expected at least 2, the default of moe_router_topk, got 1"},
      {shape + "--num-experts 8 --moe-layer-freq 0,0",
       "--moe-layer-freq: expected a layer with experts (1), got [0,0]"},
      {shape + "--num-experts 8 --moe-shared-expert-intermediate-size 64",
       "--moe-shared-expert-intermediate-size: requires disable_bias_linear, got 64"},
      {shape + "--multi-latent-attention --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 8 --v-head-dim 8",
       "--multi-latent-attention: requires disable_bias_linear, got true"},
      {kMixtral + "--pp 2 --dp 4 --ep 3",
       "--ep: mixtral-8x7b: experts (8) must be a multiple of the expert-parallel size (3)"},
      {kMixtral + "--pp 2 --dp 2 --ep 4", "--ep: expert-parallel size 4 must divide tp 1 x cp 1 x dp 2"},
      {kMixtral + "--pp 2 --dp 2 --ep 2 --etp 2",
       "--etp: expert-parallel size 2 x expert-tensor-parallel size 2 must divide tp 1 x cp 1 x dp 2"},
      {kMixtral + "--pp 2 --dp 3 --etp 3",
       "--etp: mixtral-8x7b: the feed-forward size of an expert (14336) must be a multiple of the "
       "expert-tensor-parallel "
       "size (3)"},
      {kMixtral + "--pp 2 --tp 2",
       "command line: /parallelism/sequence_parallel: mixtral-8x7b: experts with tensor parallelism need it "
       "(--sequence-parallel)"},
      {kMixtral + "--pp 2 --dp 2 --ep 2 --moe-communication-sms 132",
       "--moe-communication-sms: expected less than the 132 multiprocessors of H100-80GB, got 132"},
      {"simulate --model llama3-8b --pp 2 --dp 2 --ep 2 --mbs 1 --seq-length 4096 --microbatches 8",
       "--ep: llama3-8b: expert-parallel size 2, but there are no experts"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(error_of_command(arguments), std::string("sluice: ") + message + "\n") << arguments;
  }
}

TEST(ExpertFlags, RecomputedModulesAreThoseOfTheModel) {
  const std::string selective = " --pp 2 --mbs 1 --seq-length 4096 --microbatches 8 --recompute selective ";
  const std::string dense = "simulate --model llama3-8b" + selective + "--recompute-modules ";
  for (const char* module : {"moe", "moe_act"}) {
    EXPECT_EQ(error_of_command(dense + module),
              std::string("sluice: --recompute-modules: requires a model with experts, got \"") + module + "\"\n");
  }
  EXPECT_EQ(error_of_command(dense + "layernorm,shared_experts"),
            "sluice: --recompute-modules: requires a model with shared experts, got \"shared_experts\"\n");
  EXPECT_EQ(error_of_command(dense + "mla_up_proj"),
            "sluice: --recompute-modules: requires a model with latent attention, got \"mla_up_proj\"\n");
  const std::string mixtral = "simulate --model mixtral-8x7b" + selective + "--recompute-modules ";
  EXPECT_EQ(error_of_command(mixtral + "shared_experts"),
            "sluice: --recompute-modules: requires a model with shared experts, got \"shared_experts\"\n");
  EXPECT_EQ(error_of_command(mixtral + "mlp"),
            "sluice: --recompute-modules: requires a model with dense layers, got \"mlp\"\n");
  EXPECT_THAT(error_of_command("plan --model llama3-8b --cluster dgx-h100 --gpus 16 --gbs 64 --seq-length 8192 "
                               "--recompute selective --recompute-modules moe"),
              HasSubstr("--recompute-modules: requires a model with experts"));
}

// 8 experts, 2 per token: at most all tokens on one of 4 or more ranks. On fewer ranks, those on one are as many as
// there are ranks times the mean.
TEST(ExpertFlags, ImbalanceIsAtMostAllTokensOnOneRank) {
  EXPECT_EQ(error_of_command(kMixtral + "--pp 2 --dp 8 --ep 8 --expert-imbalance 4.5"),
            "sluice: --expert-imbalance: expected at most 4, with 2 of 8 experts per token, got 4.5\n");
  EXPECT_EQ(error_of_command("simulate --model llama3-8b --pp 2 --mbs 1 --seq-length 4096 --microbatches 8 "
                             "--expert-imbalance 1.5"),
            "sluice: --expert-imbalance: requires a model with experts, got 1.5\n");
  const auto iteration = [](const std::string& more) {
    const CommandResult result = run_sluice(words(
        "simulate --num-layers 4 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu "
        "--vocab-size 32000 --position-embedding-type rope --disable-bias-linear --num-experts 8 --mbs 1 --seq-length "
        "4096 --microbatches 8 --cluster dgx-h100 --pp 2 --dp 8 --json " +
        more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("makespan_s").get<double>();
  };
  EXPECT_LT(iteration("--ep 2"), iteration("--ep 2 --expert-imbalance 2"));
  EXPECT_EQ(iteration("--ep 2 --expert-imbalance 2"), iteration("--ep 2 --expert-imbalance 3"));
  EXPECT_LT(iteration("--ep 4 --expert-imbalance 3"), iteration("--ep 4 --expert-imbalance 4"));
  EXPECT_EQ(iteration("--ep 1"), iteration("--ep 1 --expert-imbalance 4"));
}

TEST(ExpertFlags, ErrorsNameTheFlagThatWasTyped) {
  EXPECT_EQ(error_of_command(kMixtral + "--pp 2 --dp 4 --expert-model-parallel-size 3"),
            "sluice: --expert-model-parallel-size: mixtral-8x7b: experts (8) must be a multiple of the expert-parallel "
            "size (3)\n");
  EXPECT_EQ(error_of_command("simulate --pipeline-model-parallel-size=x --microbatches 4"),
            "sluice: simulate: --pipeline-model-parallel-size: expected a whole number, got 'x'\n");
  EXPECT_THAT(error_of_command("simulate --pp 2 --microbatches 4 --micro-batch-size 0"),
              HasSubstr("sluice: --micro-batch-size: expected a whole number from 1"));
}

TEST(ExpertFlags, ErrorsNameTheKey) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  write_file_whole(file, R"({"model": "mixtral-8x7b", "parallelism": {"pp": 2, "dp": 4, "ep": 3},
                             "batch": {"microbatches": 8, "sequence_length": 4096}})");
  EXPECT_EQ(error_of_command("simulate " + file), "sluice: " + file +
                                                      ": /parallelism/ep: mixtral-8x7b: experts (8) must be a multiple "
                                                      "of the expert-parallel size (3)\n");
}

}  // namespace
}  // namespace sluice::test
