// Cost files in `sluice simulate`: what they cannot tell is refused.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using testing::HasSubstr;

class CostFiles : public testing::Test {
 protected:
  CostFiles() {
    const std::string time = R"({"tokens": [128], "seconds": [1e-3]})";
    const std::string whole = fmt::format(R"({{"F": {0}, "I": {0}, "W": {0}}})", time);
    const std::string exchange = fmt::format(R"({{"F": {0}, "I": {0}}})", time);
    write_file_whole(cost_, fmt::format(R"({{"schema": "sluice.cost/1", "expert_parallel": 2, "parts": {{
        "embedding": {0}, "attention": {0}, "dispatch": {1}, "experts": {0}, "combine": {1}, "head": {0}}}}})",
                                        whole, exchange));
  }

  // Of a model with experts on two expert-parallel ranks.
  CommandResult simulate(const std::string& more) const {
    return run_sluice(words(
        "simulate --schedule 1f1b --pp 2 --dp 2 --ep 2 --microbatches 2 --seq-length 128 --num-layers 4 --hidden-size "
        "64 --num-attention-heads 4 --vocab-size 128 --num-experts 4 --moe-ffn-hidden-size 32 "
        "--position-embedding-type "
        "rope --disable-bias-linear --cost " +
        cost_ + " " + more));
  }

  TemporaryFolder folder_;
  std::string cost_ = folder_.path("cost.json");
};

TEST_F(CostFiles, SettingsWithoutEffectOnTheirTimesAreErrors) {
  ASSERT_EQ(simulate("").exit_code, 0) << simulate("").err;
  const std::pair<const char*, const char*> cases[] = {
      {"--expert-imbalance 1.5", "expected 1, got 1.5"},
      {"--moe-token-dispatcher deepep", "expected \"alltoall\", got \"deepep\""},
      {"--moe-communication-sms 20", "expected none, got 20"},
      {"--fp8-dispatch", "expected false, got true"},
      {"--fused-grouped-mlp", "expected false, got true"},
      {"--cuda-graph-impl full_iteration", "expected \"none\", got \"full_iteration\""},
      {"--tp-comm-overlap", "expected false, got true"},
      {"--precision fp8 --fp8-dot-product-attention", "expected false, got true"},
      {"--cp 2", "expected 1, got 2"},
      {"--etp 2", "expected 1, got 2"},
  };
  for (const auto& [flags, expected] : cases) {
    const std::vector<std::string> given = words(flags);
    const bool has_value = !given.back().starts_with("--");
    const std::string& flag = given[given.size() - (has_value ? 2 : 1)];
    const CommandResult result = simulate(flags);
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_EQ(result.err,
              fmt::format("sluice: {}: only valid with the analytic cost, since the times of a cost file do "
                          "not depend on it: {}\n",
                          flag, expected));
  }
  const CommandResult all = simulate("--joint-overlap all");
  EXPECT_EQ(all.err, "sluice: --joint-overlap: expected none or experts with a cost file, got \"all\"\n");
  EXPECT_EQ(simulate("--expert-imbalance 1 --moe-token-dispatcher alltoall --joint-overlap none").exit_code, 0);
}

// The shape of a profile's model goes with its times.
TEST_F(CostFiles, ModelsOfAnotherShapeAreErrors) {
  ASSERT_EQ(
      run_sluice(
          words(
              "profile --time-budget 0.2 --num-layers 2 --hidden-size 32 --ffn-hidden-size 128 --num-attention-heads 2 "
              "--vocab-size 64 --max-position-embeddings 64 --seq-length 32 --mbs 1 -o " +
              folder_.path("p.json")))
          .exit_code,
      0);
  ASSERT_EQ(run_sluice({"fit", folder_.path("p.json"), "--max-error", "100000%", "-o", cost_}).exit_code, 0);
  const auto with = [&](const std::string& command, const std::string& hidden, const std::string& layers) {
    return run_sluice(
        words(command +
              " --pp 2 --microbatches 2 --seq-length 32 --ffn-hidden-size 128 --num-attention-heads 2 --vocab-size 64 "
              "--max-position-embeddings 64 --num-layers " +
              layers + " --hidden-size " + hidden));
  };
  const std::string simulate = "simulate --cost " + cost_;
  EXPECT_EQ(with(simulate, "32", "2").exit_code, 0);
  EXPECT_EQ(with(simulate, "32", "4").exit_code, 0);
  const std::string wrong = ": /shape/hidden_size: times are of a model with 32, but ";
  EXPECT_THAT(with(simulate, "64", "2").err, HasSubstr(cost_ + wrong));
  EXPECT_THAT(with("validate --steps 1 --mbs 1 --cost " + cost_, "64", "2").err, HasSubstr(cost_ + wrong));
  const std::string profile = folder_.path("p.json");
  EXPECT_THAT(with("validate --steps 1 --mbs 1 --profile " + profile, "64", "2").err, HasSubstr(profile + wrong));
}

TEST_F(CostFiles, KeysWithoutEffectAreNamed) {
  const std::string scenario = folder_.path("s.json");
  write_file_whole(scenario, R"({"parallelism": {"expert_imbalance": 2}})");
  EXPECT_THAT(simulate(scenario).err,
              HasSubstr(scenario + ": /parallelism/expert_imbalance: only valid with the analytic cost"));
  EXPECT_EQ(simulate(scenario + " --expert-imbalance 1").exit_code, 0);
}

// A fit keeps what the executor lays out per part. Its peaks differ from those of a run only in when messages arrive.
TEST_F(CostFiles, PeaksAreThoseOfRuns) {
  const std::string model =
      " --num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 --max-position-embeddings 64 "
      "--seq-length 64 --mbs 2";
  const std::string profile = folder_.path("p.json");
  ASSERT_EQ(run_sluice(words("profile --time-budget 0.2 -o " + profile + model)).exit_code, 0);
  ASSERT_EQ(run_sluice({"fit", profile, "--max-error", "100000%", "-o", cost_}).exit_code, 0);
  for (const std::string flags : {"--schedule 1f1b --pp 4 --microbatches 8", "--schedule zb-h1 --pp 2 --microbatches 6",
                                  "--schedule seq1f1b --slices 4 --pp 2 --microbatches 4",
                                  "--schedule interleaved-1f1b --vpp 2 --pp 2 --microbatches 4",
                                  "--schedule gpipe --pp 2 --microbatches 4 --recompute full"}) {
    const CommandResult simulated = run_sluice(words("simulate --json --cost " + cost_ + " " + flags + model));
    ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
    const CommandResult run = run_sluice(words("run --json --steps 2 " + flags + model));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const nlohmann::json ranks = nlohmann::json::parse(simulated.out).at("ranks");
    const nlohmann::json workers = nlohmann::json::parse(run.out).at("workers");
    ASSERT_EQ(ranks.size(), workers.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const double held = workers[rank].at("held_bytes");
      EXPECT_NEAR(ranks[rank].at("peak_memory_bytes").get<double>(), held, 0.03 * held) << flags << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace sluice::test
