// `sluice doctor` on the command line, with and without a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Doctor, PrintsOneJsonDocument) {
  const auto began = std::chrono::steady_clock::now();
  const CommandResult result = run_sluice({"doctor", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schema"), "sluice.doctor/1");
  EXPECT_GE(document.at("cpu").at("cores").get<int>(), 1);
  EXPECT_GT(document.at("cpu").at("memory_bytes").get<std::int64_t>(), 0);
  EXPECT_THAT(document.at("cpu").at("blas").get<std::string>(), ContainsRegex("OpenBLAS|Eigen"));
  // Either GPUs, or one line with the reason why there is none.
  const json& why = document.at("cuda").at("why_not");
  EXPECT_EQ(document.at("devices").empty(), why.is_string()) << why;
  if (why.is_string()) {
    EXPECT_THAT(why.get<std::string>(), Not(IsEmpty()));
    EXPECT_THAT(why.get<std::string>(), Not(HasSubstr("\n")));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(2));
  }
  const json& link = document.at("links").back();
  EXPECT_EQ(link.at("from"), "thread");
  EXPECT_GT(link.at("bytes_per_s").get<double>(), 1e6);
}

TEST(Doctor, ReportsWhyThereIsNoGpuInOneLine) {
  const CommandResult result = run_sluice({"doctor"}, {"CUDA_VISIBLE_DEVICES="});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("GPUs +none: [a-zA-Z].*\n"));
  EXPECT_THAT(result.out, ContainsRegex("launcher +none: one process\n"));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(Doctor, ReportsTheLauncherVariables) {
  const CommandResult result = run_sluice({"doctor"}, {"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=here"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("torchrun: rank 3 of 8, local rank 1\n"));
  EXPECT_THAT(result.out, HasSubstr("MASTER_ADDR=here\n"));
  const CommandResult wrong = run_sluice({"doctor", "--json"}, {"RANK=8", "WORLD_SIZE=8", "LOCAL_RANK=1"});
  EXPECT_EQ(wrong.exit_code, 0) << wrong.err;
  EXPECT_EQ(json::parse(wrong.out).at("launcher").at("error"), "RANK: expected a number below 8 (WORLD_SIZE), got 8");
}

}  // namespace
}  // namespace sluice::test
