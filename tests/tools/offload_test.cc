// Optimizer states and activations in host memory, as commands print them.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;

const std::string kOffloadPlan = "plan --model llama3-8b --cluster dgx-h100 --gbs 64 --seq-length 8192 ";

// What is printed for optimizer states on the host is read back.
TEST(Offload, IsPrintedAndReadBack) {
  const std::string base = kOffloadPlan + "--gpus 8 --top 1 --mbs 1 --recompute full --pp 2 --tp 2 ";
  const auto configuration = [&](const std::string& flags) {
    return test::json_of(words(base + flags + " --json")).at("configuration").get<std::string>();
  };
  const std::string megatron = configuration(
      "--runs-on megatron --use-distributed-optimizer yes --schedule 1f1b --optimizer-cpu-offload "
      "--optimizer-offload-fraction 0.5 "
      "--overlap-cpu-optimizer-d2h-h2d");
  EXPECT_NE(megatron.find("--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --overlap-cpu-optimizer-d2h-h2d "
                          "--use-precision-aware-optimizer"),
            std::string::npos)
      << megatron;
  const TemporaryFolder folder;
  std::ofstream(folder.path("run.toml")) << configuration(
      "--runs-on torchtitan --zero-stage 3 --optimizer-cpu-offload");
  const CommandResult read = run_sluice({"import", folder.path("run.toml")});
  EXPECT_EQ(json::parse(read.out).at("parallelism").at("optimizer_cpu_offload"), true) << read.err;
  EXPECT_NE(configuration("--runs-on deepspeed --use-distributed-optimizer yes --optimizer-cpu-offload")
                .find("\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}"),
            std::string::npos);
}

// The device holds less.
TEST(Offload, ReportsTheMemoryOfTheHost) {
  const auto memory = [&](const std::string& flags) {
    return json::parse(
               run_sluice(words("simulate --model llama3-8b --seq-length 2048 --pp 2 --microbatches 4 --cluster "
                                "dgx-h100 --json " +
                                flags))
                   .out)
        .at("memory");
  };
  EXPECT_FALSE(memory("").contains("host_bytes"));
  const std::int64_t host = memory("--optimizer-cpu-offload").at("host_bytes");
  EXPECT_EQ(host, 16 * 4'015'132'672);  // 16 layers of 218,112,000, the head's 128,256 x 4,096, and the final norm
  EXPECT_LT(memory("--optimizer-cpu-offload").at("needed_bytes"), memory("").at("needed_bytes"));
}

const std::string kOffloadRun =
    "simulate --model llama3-8b --cluster dgx-h100 --pp 4 --tp 2 --gpus 8 --gbs 16 --seq-length 8192 ";

TEST(ActivationOffload, OfNothingPrintsWhatIsPrintedWithout) {
  const CommandResult without = run_sluice(words(kOffloadRun + "--json"));
  const nlohmann::json with = test::json_of(words(kOffloadRun + "--json --offload-activations 0"));
  json expected = json::parse(without.out);
  json result = with;
  for (const char* name_of_setting : {"scenario", "assumptions"}) {
    expected.erase(name_of_setting);
    result.erase(name_of_setting);
  }
  EXPECT_TRUE(result == expected);
}

TEST(ActivationOffload, IsPartOfAllOutputs) {
  const TemporaryFolder folder;
  const std::string trace = folder.path("t.json");
  const CommandResult run =
      run_sluice(words(kOffloadRun + "--offload-activations auto --explain-memory --trace " + trace +
                       " --trace-idle --report " + folder.path("r.html") + " --ops " + folder.path("ops.csv")));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("offloaded  rank 0 "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("offloaded to the host"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("host memory "), std::string::npos) << run.out;
  const std::string text = read_file(trace);
  EXPECT_NE(text.find("\"to host\""), std::string::npos);
  EXPECT_NE(text.find("\"from host\""), std::string::npos);
  EXPECT_NE(read_file(folder.path("ops.csv")).find(",reload,"), std::string::npos);
  // A trace is read back.
  const CommandResult same = run_sluice({"compare", trace, trace, "--json"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  const json without = json::parse(run_sluice(words(kOffloadRun + "--json")).out);
  const json with = json::parse(run_sluice(words(kOffloadRun + "--json --offload-activations auto")).out);
  EXPECT_EQ(with["makespan_s"], without["makespan_s"]);
  EXPECT_LT(with["memory"]["needed_bytes"], without["memory"]["needed_bytes"]);
  EXPECT_GT(with["memory"]["host_bytes"].get<std::int64_t>(), 0);
  EXPECT_GT(with["offload"]["ranks"][0]["fraction"].get<double>(), 0);
}

TEST(ActivationOffload, IsRefusedWhereItIsNotModeled) {
  const auto error_of = [&](const std::string& command) {
    const CommandResult result = run_sluice(words(command));
    EXPECT_EQ(result.exit_code, 2) << command << result.out;
    return result.err;
  };
  const TemporaryFolder folder;
  std::ofstream(folder.path("s.json")) << R"({"schema": "sluice.scenario/1", "parallelism": {"pp": 2,
      "offload_activations": "auto"}, "batch": {"microbatches": 4}})";
  EXPECT_NE(error_of("run " + folder.path("s.json")).find("offload_activations"), std::string::npos);
  EXPECT_NE(error_of("simulate --pp 2 --microbatches 4 --offload-activations auto").find("copy=X"), std::string::npos);
  EXPECT_NE(error_of("simulate --pp 2 --microbatches 4 --uniform copy=1 --offload-activations 1.5").find("0 to 1"),
            std::string::npos);
}

// Megatron-LM's fine-grained offload copies the inputs of modules: queries, keys, values and the input of attention's
// projection have 8 of the 34 bytes per element of the hidden states that a layer stores (Korthikanti et al. 2023,
// without scores).
TEST(ActivationOffload, OfModulesIsImported) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("args.txt"))
      << "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 "
         "--global-batch-size 16 --pipeline-model-parallel-size 4 --fine-grained-activation-offloading "
         "--offload-modules core_attn attn_proj --bf16 --vocab-size 32000 --max-position-embeddings 4096";
  const json parallelism = test::json_of({"import", folder.path("args.txt"), "--gpus", "4"}).at("parallelism");
  EXPECT_EQ(parallelism.at("offload_activations"), "1");
  EXPECT_EQ(parallelism.at("offload_modules"), json::parse(R"(["core_attn", "attn_proj"])"));
  const CommandResult run =
      run_sluice({"simulate", folder.path("args.txt"), "--gpus", "4", "--cluster", "dgx-h100", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NEAR(json::parse(run.out)["offload"]["ranks"][1]["fraction"].get<double>(), 8.0 / 34, 1e-4);
}

}  // namespace
}  // namespace sluice::test
