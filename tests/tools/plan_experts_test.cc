// `sluice plan` for models with experts, and the best configurations that it names for frameworks.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>

#include "tests/support/command.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Of models with experts and latent attention, selective recomputation may repeat what is cheap as well, unless modules
// are listed.
TEST(PlanCommand, RecomputesCheapModulesOfExperts) {
  const auto flags = [](const std::string& more) {
    const CommandResult result = run_sluice(
        words("plan --model deepseek-v3 --mtp-num-layers 0 --cluster dgx-h100 --gpus 512 --gbs 2048 --seq-length 4096 "
              "--tp 4 --pp 16 --ep 32 --mbs 1 --schedule 1f1b --even-stages --top 4 --show 1,2,3,4 --memory-margin 0 "
              "--recompute selective " +
              more));
    return result.out + result.err;
  };
  EXPECT_THAT(flags(""), testing::HasSubstr(" selective layernorm,mla_up_proj,moe_act\n"));
  EXPECT_THAT(flags("--recompute-modules mlp"), testing::HasSubstr(" --recompute-modules mlp"));
}

// Selective recomputation without modules is that of core attention to `simulate`; a plan tries it and the cheap
// modules.
TEST(PlanCommand, SelectiveRecomputationIncludesThatOfSimulate) {
  const auto document_of = [](const std::string& line) { return test::json_of(words(line + " --json")); };
  const std::string qwen = "--model qwen3-30b-a3b --cluster dgx-h200 --gbs 64 --seq-length 4096 ";
  const std::string mixtral = "--model mixtral-8x7b --cluster dgx-h200 --gbs 64 --seq-length 4096 ";
  const TemporaryFolder folder;
  const std::string scores = folder.path("scores.json") + " ";
  std::ofstream(folder.path("scores.json")) << R"({"parallelism": {"flash_attention": false}})";
  const std::vector<std::pair<std::string, std::string>> spaces = {
      {qwen, "--gpus 16 --schedule zb-v --recompute selective"},
      {qwen + scores, "--gpus 16 --schedule 1f1b --recompute selective"},
      {qwen + scores, "--gpus 16 --schedule 1f1b"},
      {mixtral, "--gpus 32 --schedule 1f1b --recompute none,selective"}};
  for (const auto& [base, space] : spaces) {
    const auto plan_of = [&, &of = base, &within = space](const std::string& modules) {
      return document_of("plan " + of + within + " --tp 1,2 --pp 2,4 --even-stages" + modules);
    };
    const json open = plan_of("");
    const json attention = plan_of(" --recompute-modules core_attn");
    const json cheap =
        plan_of(base.find(scores) != std::string::npos ? " --recompute-modules core_attn,layernorm,moe_act"
                                                       : " --recompute-modules layernorm,moe_act");
    const auto best = [](const json& plan) { return plan.at("ranking").at(0).at("iteration_s").get<double>(); };
    EXPECT_EQ(best(open), std::min(best(attention), best(cheap))) << base << space;
    for (const json* plan : {&open, &attention, &cheap}) {
      const json& row = plan->at("ranking").at(0);
      EXPECT_EQ(row.at("recompute") == "selective", !row.at("recompute_modules").empty()) << row;
      const json again = document_of("simulate " + base + row.at("flags").get<std::string>());
      EXPECT_EQ(again.at("makespan_s"), row.at("makespan_s")) << row;
    }
  }
}

// Megatron-LM's flags of what only changes the host's time.
TEST(PlanCommand, PrintsCudaGraphsAndFusedExperts) {
  const auto flags = [](const std::string& more) {
    const CommandResult result = run_sluice(words(
        "plan --model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --gbs 256 --seq-length 4096 --tp 1 --pp 2 --ep 8 "
        "--mbs 1 --schedule 1f1b --even-stages --top 1 --show 1 " +
        more));
    return result.out + result.err;
  };
  using testing::HasSubstr;
  EXPECT_THAT(flags(""), testing::Not(testing::AnyOf(HasSubstr("cuda-graph"), HasSubstr("op-fuser"))));
  EXPECT_THAT(flags("--fused-grouped-mlp"), HasSubstr("--use-transformer-engine-op-fuser"));
  EXPECT_THAT(flags("--cuda-graph-impl full_iteration"), HasSubstr("--cuda-graph-impl full_iteration"));
  EXPECT_THAT(flags("--cuda-graph-impl local"), testing::Not(HasSubstr("--cuda-graph-modules")));  // whole layers
  EXPECT_THAT(flags("--runs-on megatron --cuda-graph-impl local --recompute full"),
              HasSubstr("with full recomputation its CUDA graphs are those of whole iterations"));
  EXPECT_THAT(flags("--cuda-graph-impl transformer_engine --cuda-graph-modules attn,moe_router"),
              HasSubstr("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router"));
}

// GPT-OSS 120B with full attention in all layers and without sinks.
const std::string kBiasedExperts =
    "plan --num-layers 36 --hidden-size 2880 --num-attention-heads 64 --num-query-groups 8 "
    "--kv-channels 64 --swiglu --ffn-hidden-size 2880 --vocab-size 201088 --position-embedding-type rope "
    "--normalization RMSNorm --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 "
    "--num-experts 128 --moe-router-topk 4 --activation-func-clamp-value 7 "
    "--cluster dgx-h100 --gpus 64 --gbs 256 --seq-length 4096 --ep 16 --pp 4 --tp 1 --mbs 1";

TEST(PlanCommand, PrintsTheClampOfExperts) {
  const std::string result = test::output_of(words(kBiasedExperts + " --runs-on megatron --schedule 1f1b --top 1"));
  EXPECT_THAT(result, testing::HasSubstr("--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7"));
  EXPECT_THAT(result, testing::Not(testing::HasSubstr("--swiglu")));
}

TEST(PlanCommand, PrintsTheCapacityOfExperts) {
  const auto flags = [](const std::string& more) {
    const CommandResult result = run_sluice(words(
        "plan --model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --gbs 256 --seq-length 4096 --tp 1 --pp 2 --ep 8 "
        "--mbs 1 --schedule 1f1b --even-stages --show 1 --moe-expert-capacity-factor 1.25 " +
        more));
    return result.out + result.err;
  };
  using testing::HasSubstr;
  EXPECT_THAT(flags(""), HasSubstr("--moe-expert-capacity-factor 1.25"));
  EXPECT_THAT(flags(""), testing::Not(HasSubstr("--moe-pad-expert-input-to-capacity")));
  EXPECT_THAT(flags("--moe-pad-expert-input-to-capacity"), HasSubstr("--moe-pad-expert-input-to-capacity"));
  EXPECT_THAT(flags("--runs-on sluice"), HasSubstr("its router drops no tokens"));
  EXPECT_THAT(flags("--runs-on torchtitan"), HasSubstr("it drops no tokens"));
}

TEST(SimulateCommand, RefusesCapacitiesWithoutEffect) {
  const auto error_of = [](const std::string& flags) {
    const CommandResult result = run_sluice(
        words("simulate --cluster dgx-h100 --pp 2 --dp 8 --mbs 1 --microbatches 4 --seq-length 4096 " + flags));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  using testing::HasSubstr;
  EXPECT_THAT(error_of("--model qwen3-30b-a3b --ep 8 --moe-pad-expert-input-to-capacity"),
              HasSubstr("--moe-pad-expert-input-to-capacity: requires moe_expert_capacity_factor"));
  EXPECT_THAT(error_of("--model qwen3-30b-a3b --ep 8 --moe-expert-capacity-factor 1 --moe-token-dispatcher deepep"),
              HasSubstr("--moe-expert-capacity-factor: requires moe_token_dispatcher alltoall"));
  EXPECT_THAT(error_of("--model llama3-8b --moe-expert-capacity-factor 1"),
              HasSubstr("--moe-expert-capacity-factor: requires a model with experts"));
  EXPECT_THAT(error_of("--model qwen3-30b-a3b --moe-expert-capacity-factor 0"),
              HasSubstr("--moe-expert-capacity-factor: expected a number from 0.001 to 1000"));
}

TEST(PlanCommand, CsvHasTheRecomputedModules) {
  const std::string result = test::output_of(
      words("plan --model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --gbs 256 --seq-length 4096 --tp 1 --pp 2 --ep 8 "
            "--mbs 1 --schedule 1f1b --even-stages --recompute none,selective --recompute-modules layernorm,moe_act "
            "--csv /dev/stdout"));
  EXPECT_THAT(result, testing::HasSubstr(",pipeline_layout,recompute_modules,reason\n"));
  std::istringstream lines(result);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(",1f1b,1,") == std::string::npos) continue;
    ++rows;
    EXPECT_EQ(line.find(",selective,") != std::string::npos, line.ends_with(",\"layernorm,moe_act\",")) << line;
  }
  EXPECT_GT(rows, 2);
}

TEST(PlanCommand, RunsNoBiasesOfExperts) {
  const CommandResult result = run_sluice(words(kBiasedExperts + " --runs-on sluice --schedule 1f1b"));
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.out + result.err, testing::HasSubstr("its kernels do not support biases of experts"));
}

TEST(SimulateCommand, SequencesOfOneTokenAreALength) {
  const std::string flags = "simulate --model llama3-8b --cluster dgx-h100 --pp 2 --dp 4 --mbs 1 --microbatches 4";
  EXPECT_EQ(run_sluice(words(flags + " --seq-length 1")).exit_code, 0);
  EXPECT_THAT(run_sluice(words(flags)).err, testing::HasSubstr("required with a model (--seq-length)"));
}

// With even stages, pp 8 is behind ten configurations with pp 4 that differ in chunks and outer stages; with layers per
// stage it is as fast as the first of them.
TEST(PlanCommand, RefinesFurtherSizesInPlaceOfNearEquals) {
  const json ranking = test::json_of(words("plan --model deepseek-v3 --mtp-num-layers 0 --cluster gb200-nvl72 --gpus "
                                           "256 --gbs 4096 --seq-length 4096 "
                                           "--precision mxfp8 --fp8-param-gather --runs-on megatron --schedule "
                                           "interleaved-1f1b --tp 1 --mbs 1 --pp 4,8 "
                                           "--ep 32,64 --json"))
                           .at("ranking");
  for (const int pp : {4, 8}) {
    const auto best = std::find_if(ranking.begin(), ranking.end(), [&](const json& row) { return row.at("pp") == pp; });
    ASSERT_NE(best, ranking.end()) << pp;
    EXPECT_LT(best->at("iteration_s"), 1.02 * ranking.at(0).at("iteration_s").get<double>()) << pp;
  }
}

TEST(PlanCommand, PrintsFlagsThatRunExperts) {
  const auto check = [](const std::string& sizes, const std::string& printed) {
    const nlohmann::json plan = test::json_of(
        words("plan --num-layers 4 --hidden-size 64 --num-attention-heads 4 --num-query-groups 2 --ffn-hidden-size 96 "
              "--vocab-size 128 --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear "
              "--num-experts 4 --moe-ffn-hidden-size 32 --moe-shared-expert-intermediate-size 32 --moe-layer-freq "
              "0,1,1,1 --untie-embeddings-and-output-weights --seq-length 32 --gbs 8 --cluster dgx-h100 --gpus 4 "
              "--pp 2 --runs-on sluice --json " +
              sizes));
    const std::string flags = plan.at("configuration");
    EXPECT_THAT(flags, testing::HasSubstr(printed));
    const CommandResult run = run_sluice(words(flags + " --steps 1 --json"));
    EXPECT_EQ(run.exit_code, 0) << flags << run.err;
  };
  check("--tp 1 --ep 2 --schedule combined-1f1b --joint-overlap none",
        "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 32 --moe-shared-expert-intermediate-size 32 "
        "--moe-layer-freq 0,1,1,1 --ep 2 --joint-overlap none");
  check("--tp 2 --ep 2 --schedule 1f1b", "--ep 2");
}

// The best for Megatron-LM is that of a search that allows nothing else, which finds it first.
TEST(PlanCommand, BestForMegatronIsTheBestOfAll) {
  const std::string base =
      "plan --model llama3-8b --cluster dgx-h100 --gpus 8 --gbs 64 --seq-length 32768 "
      "--tp 2 --top 1 --json " +
      std::string(test::small_scope() ? "--mbs 1 " : "");
  const json any = json::parse(run_sluice(words(base)).out);
  const json megatron = json::parse(run_sluice(words(base + "--schedule megatron --all")).out);
  const auto time_of = [](const json& document) {
    return document.at("ranking").at(document.at("megatron").at("place").get<std::size_t>()).at("iteration_s");
  };
  EXPECT_EQ(time_of(any), time_of(megatron));
  EXPECT_GT(any.at("megatron").at("place"), 0);
}

// Also after the refinement of partitions, layouts and recomputed layers, on random small spaces.
TEST(PlanCommand, BestForMegatronIsRefined) {
  std::mt19937 random(3);
  const auto one_of = [&](std::initializer_list<const char*> words_of) {
    return *(words_of.begin() + random() % words_of.size());
  };
  const int spaces = test::small_scope() ? 2 : 20;
  int compared = 0;
  for (int i = 0; i < spaces; ++i) {
    const std::string layers = std::to_string(8 + random() % 25);
    const std::string base = fmt::format(
        "plan --position-embedding-type rope --num-layers {} --hidden-size 4096 --num-attention-heads 32 --vocab-size "
        "{} --cluster {} --gpus 8 --gbs "
        "{} --seq-length {} --tp {} --pp {} --mbs {} "
        "--memory-margin 0 --json ",
        layers, one_of({"32000", "128256"}), one_of({"dgx-h100", "dgx-a100-40gb", "p3dn.24xlarge"}),
        one_of({"16", "32", "64"}), one_of({"4096", "8192", "16384", "32768"}), one_of({"1,2", "2,4", "1"}),
        one_of({"2,4", "4,8", "4"}), one_of({"1", "2"}));
    const CommandResult open = run_sluice(words(base + "--schedule megatron,zb-v,seq1f1b"));
    const CommandResult restricted = run_sluice(words(base + "--schedule megatron"));
    if (restricted.exit_code == 3) continue;  // nothing fits
    ASSERT_EQ(restricted.exit_code, 0) << restricted.err;
    ++compared;
    const auto best = [](const CommandResult& result) {
      const json document = json::parse(result.out);
      return document.at("ranking")
          .at(document.at("megatron").at("place").get<std::size_t>())
          .at("iteration_s")
          .get<double>();
    };
    EXPECT_LE(best(open), best(restricted)) << base;
  }
  EXPECT_GE(2 * compared, spaces);
}

// The searched dispatcher is as fast as each of them, the flags of a row give it, and one that is given stays.
TEST(PlanCommand, SearchesTheDispatcher) {
  const std::string model = "--model qwen3-30b-a3b --seq-length 4096 --gbs 256 ";
  const std::string base = "plan --json " + model + "--gpus 16 --tp 1 --pp 1 --mbs 1 --schedule 1f1b,combined-1f1b ";
  const auto plan = [&](const std::string& more) { return json::parse(run_sluice(words(base + more)).out); };
  const json found = plan("--cluster dgx-h100");
  const json& first = found.at("ranking").at(0);
  EXPECT_THAT(found.at("searched"), testing::Contains("dispatcher"));
  for (const char* dispatcher : {"alltoall", "deepep", "hybridep"}) {
    const json fixed = plan(std::string("--cluster dgx-h100 --moe-token-dispatcher ") + dispatcher);
    EXPECT_THAT(fixed.at("searched"), testing::Not(testing::Contains("dispatcher")));
    EXPECT_LE(first.at("iteration_s"), fixed.at("ranking").at(0).at("iteration_s"));
    for (const json& row : fixed.at("ranking")) {
      EXPECT_EQ(row.at("dispatcher"), row.at("ep") > 1 ? json(dispatcher) : json());
    }
  }
  const CommandResult simulated =
      run_sluice(shell_words("simulate --json --cluster dgx-h100 " + model + first.at("flags").get<std::string>()));
  EXPECT_EQ(json::parse(simulated.out).at("makespan_s"), first.at("makespan_s")) << simulated.err;
  // DeepEP and HybridEP are for Hopper and later, and of Megatron-LM's code.
  EXPECT_THAT(plan("--cluster dgx-a100-80gb").at("searched"), testing::Not(testing::Contains("dispatcher")));
  EXPECT_THAT(plan("--cluster dgx-h100 --software torchtitan").at("searched"),
              testing::Not(testing::Contains("dispatcher")));
}

// Optimizer states move to the host only if nothing fits without, and if the scenario leaves it open.
TEST(PlanCommand, OffloadsWhereMemoryBinds) {
  const std::string base =
      "plan --model llama3-70b --cluster dgx-h100 --seq-length 4096 --gbs 64 --schedule 1f1b --json ";
  const json bound = json::parse(run_sluice(words(base + "--gpus 8 --show 1")).out);
  EXPECT_EQ(bound.at("ranking").at(0).at("optimizer_offload"), 1);
  EXPECT_THAT(bound.at("ranking").at(0).at("flags").get<std::string>(), testing::HasSubstr(" --optimizer-cpu-offload"));
  EXPECT_THAT(bound.at("shown").at(0).at("configurations").at("megatron").get<std::string>(),
              testing::HasSubstr(" --optimizer-cpu-offload"));
  EXPECT_EQ(run_sluice(words(base + "--gpus 8 --optimizer-cpu-offload=false")).exit_code, 3);
  const json free = json::parse(run_sluice(words(base + "--gpus 64")).out);
  for (const json& row : free.at("ranking")) EXPECT_EQ(row.at("optimizer_offload"), 0);
}

// All lines of the table have at most 120 columns, whatever columns it needs.
TEST(PlanCommand, TablesFit) {
  for (const char* more :
       {"--model qwen3-30b-a3b --gpus 32 --cp 1,2 --etp 1,2 --ep 4,8 --tp 1,2 --pp 2 --mbs 1 --recompute selective",
        "--model qwen3-30b-a3b --gpus 32 --ep 4 --tp 1,2 --pp 2,4 --mbs 1 --schedule seq1f1b-interleaved --slices 2,4",
        "--model llama3-70b --gpus 8 --schedule seq1f1b-interleaved --tp 4"}) {
    const CommandResult result =
        run_sluice(words(std::string("plan --cluster dgx-h100 --seq-length 8192 --gbs 64 --even-stages ") + more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
      EXPECT_LE(columns, 120) << line;
    }
  }
  EXPECT_THAT(run_sluice(words("plan --model llama3-8b --cluster dgx-h100 --gpus 8 --gbs 8 --seq-length 8192 "
                               "--schedule 1f1b --mbs 1 --even-stages --show 99999"))
                  .err,
              testing::HasSubstr("plan: --show: expected a row of the ranking, 1 to "));
}

// `sluice plan` of documents of different length, and of work without a backward.

const std::string kDocumentBase = "--model llama3-8b --cluster dgx-h100 --seq-length 8192 ";
const std::string kDocumentSearch =
    "--gpus 16 --tp 2,4 --pp 2,4 --schedule 1f1b,interleaved-1f1b,zb-v --vpp 2 --even-stages ";
const std::string kDocumentLengths = "--lengths lognormal:1500,1,8192,64 ";

json documents_ranking(const std::string& arguments) {
  return test::json_of(words("plan --json " + arguments)).at("ranking");
}

void expect_simulated(const json& row, const std::string& base) {
  const CommandResult result = run_sluice(words("simulate --json " + base + row.at("flags").get<std::string>()));
  ASSERT_EQ(result.exit_code, 0) << result.err << row;
  const json simulated = json::parse(result.out);
  EXPECT_EQ(simulated.at("makespan_s"), row.at("makespan_s"));
  EXPECT_EQ(simulated.at("memory").at("needed_bytes"), row.at("needed_memory_bytes"));
  EXPECT_EQ(simulated.at("throughput").at("mfu"), row.at("mfu"));
}

TEST(PlanDocuments, MatchSimulateWithThePrintedFlags) {
  for (const std::string pack : {"--pack karmarkar-karp ", "--pack balanced --microbatch-order ascending "}) {
    const json ranking = documents_ranking(kDocumentBase + kDocumentSearch + kDocumentLengths + pack);
    ASSERT_GE(ranking.size(), 4U);
    for (const std::size_t place : {std::size_t{0}, ranking.size() / 2, ranking.size() - 1}) {
      expect_simulated(ranking.at(place), kDocumentBase + kDocumentLengths + pack);
    }
  }
}

// What bounds rule out is not among the first.
TEST(PlanDocuments, LeadersAreThoseOfAWholeSearch) {
  const std::string plan = kDocumentBase + kDocumentSearch + kDocumentLengths + "--pack greedy --top 8 ";
  const json some = documents_ranking(plan);
  const json all = documents_ranking(plan + "--all");
  ASSERT_LT(some.size(), all.size());
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(some[i].at("iteration_s"), all[i].at("iteration_s"));
}

TEST(PlanDocuments, TheNumberOfMicrobatchesIsThatOfTheFlag) {
  for (const json& row :
       documents_ranking(kDocumentBase + kDocumentSearch + kDocumentLengths + "--pack greedy --microbatches 8")) {
    EXPECT_EQ(row.at("microbatches"), 8);
  }
}

TEST(PlanForwardOnly, MatchesSimulateWithThePrintedFlags) {
  for (const std::string work : {"--forward-only evaluation ", "--forward-only prefill "}) {
    const json ranking = documents_ranking(kDocumentBase + kDocumentSearch + "--gbs 64 " + work);
    ASSERT_GE(ranking.size(), 4U);
    for (const std::size_t place : {std::size_t{0}, ranking.size() / 2, ranking.size() - 1}) {
      expect_simulated(ranking.at(place), kDocumentBase + "--gbs 64 " + work);
    }
  }
}

TEST(PlanDocuments, RefuseWhatDoesNotFit) {
  const auto error_of = [](const std::string& arguments) {
    const CommandResult result = run_sluice(words("plan " + kDocumentBase + "--gpus 16 " + arguments));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(error_of(kDocumentLengths + "--gbs 64"), HasSubstr("--gbs: expected none with lengths"));
  EXPECT_THAT(error_of(kDocumentLengths + "--mbs 2"),
              HasSubstr("--lengths: requires one sequence per microbatch (--mbs 1)"));
  EXPECT_THAT(error_of(kDocumentLengths + "--partition --pp 4 --tp 4 --schedule 1f1b"),
              HasSubstr("--partition is for training"));
  EXPECT_THAT(error_of(kDocumentLengths + "--runs-on megatron"),
              HasSubstr("documents of different length are not printed"));
  EXPECT_THAT(error_of("--gbs 16 --forward-only evaluation --runs-on megatron"), HasSubstr("without a backward"));
  EXPECT_THAT(error_of("--gbs 16 --forward-only evaluation --recompute full"),
              HasSubstr("--forward-only: recomputation and sharded optimizer states have no effect"));
  EXPECT_THAT(error_of("--lengths lognormal:1500,1,8192,3 --tp 1 --pp 4"), HasSubstr("data-parallel size"));
}

}  // namespace
}  // namespace sluice::test
