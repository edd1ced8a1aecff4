// `sluice plan` of documents of different length, and of work without a backward.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kDocumentBase = "--model llama3-8b --cluster dgx-h100 --seq-length 8192 ";
const std::string kDocumentSearch =
    "--gpus 16 --tp 2,4 --pp 2,4 --schedule 1f1b,interleaved-1f1b,zb-v --vpp 2 --even-stages ";
const std::string kDocumentLengths = "--lengths lognormal:1500,1,8192,64 ";

json documents_ranking(const std::string& arguments) {
  const CommandResult result = run_sluice(words("plan --json " + arguments));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out).at("ranking");
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
