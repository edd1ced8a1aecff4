// Optimizer states in host memory, as commands print them.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;

const std::string kOffloadPlan = "plan --model llama3-8b --cluster dgx-h100 --gbs 64 --seq-length 8192 ";

// What is printed for optimizer states on the host is read back.
TEST(Offload, IsPrintedAndReadBack) {
  const std::string base = kOffloadPlan + "--gpus 8 --top 1 --mbs 1 --recompute full --pp 2 --tp 2 ";
  const auto configuration = [&](const std::string& flags) {
    const CommandResult result = run_sluice(words(base + flags + " --json"));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out).at("configuration").get<std::string>();
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

}  // namespace
}  // namespace sluice::test
