// `sluice fit` on the command line, and its cost file in `simulate`.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/cost/profile.h"
#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Fit : public testing::Test {
 protected:
  Fit() {
    // 1 us per token, at least 0.2 ms, and 0.4 ns per pair; the backward takes twice as long.
    for (const auto& [kind, scale] : {std::pair(OpKind::F, 1.0), {OpKind::B, 2.0}}) {
      for (const int tokens : {64, 128, 200, 256, 512, 1024}) {
        for (const int context : {0, 256, 512, 1024, 2048}) {
          const double seconds = std::max(2e-4, 1e-6 * tokens) + 4e-10 * tokens * context;
          profile_.samples.push_back({.kind = kind, .tokens = tokens, .context = context, .seconds = scale * seconds});
        }
      }
    }
    for (const int bytes : {1 << 10, 1 << 20, 1 << 24})
      profile_.transfers.push_back({"ib", bytes, 1e-5 + bytes / 2e10});
  }

  std::string file() const {
    write_file_whole(folder_.path("profile.json"), to_json_text(profile_));
    return folder_.path("profile.json");
  }

  Profile profile_{.machine = "made", .dtype = "bf16", .model = "m"};
  TemporaryFolder folder_;
};

TEST_F(Fit, WaitsForCoresAreKeptAndWarnedOf) {
  for (const PartKind part : {PartKind::embedding, PartKind::head}) {
    for (const OpKind kind : {OpKind::F, OpKind::B}) {
      profile_.samples.push_back({.part = part, .kind = kind, .tokens = 64, .seconds = 1e-4});
    }
  }
  const std::string cost = folder_.path("cost.json");
  for (const bool waited : {false, true}) {
    profile_.waited_for_cores = waited;
    const CommandResult fit = run_sluice({"fit", file(), "-o", cost});
    EXPECT_EQ(fit.err.find("include waits for cores") != std::string::npos, waited) << fit.err;
    EXPECT_EQ(json::parse(read_file(cost)).contains("waited_for_cores"), waited);
    const CommandResult simulated = run_sluice(words(
        "simulate --json --schedule gpipe --pp 1 --microbatches 1 --seq-length 64 --num-layers 2 --hidden-size 64 "
        "--num-attention-heads 1 --vocab-size 64 --max-position-embeddings 2048 --cost " +
        cost));
    EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
    EXPECT_EQ(simulated.err.find("include waits for cores") != std::string::npos, waited) << simulated.err;
  }
}

TEST_F(Fit, FailsWhereItsErrorIsUseless) {
  int number = 0;
  for (ProfileSample& sample : profile_.samples) {
    if (sample.context > 0 && ++number % 2 == 0) sample.seconds *= 50;
  }
  const CommandResult fit = run_sluice({"fit", file(), "-o", folder_.path("cost.json")});
  EXPECT_EQ(fit.exit_code, 2) << fit.out;
  EXPECT_THAT(fit.err, HasSubstr("the fit is useless: its mean error on held-out samples is"));
  EXPECT_EQ(folder_.num_files(), 1);  // the profile
}

TEST_F(Fit, CostFilesWorkInSimulate) {
  const std::string cost = folder_.path("cost.json");
  const CommandResult fit = run_sluice({"fit", file(), "-o", cost});
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  EXPECT_EQ(fit.err, "");
  EXPECT_THAT(fit.out, HasSubstr("layer     F       6     24"));
  EXPECT_THAT(fit.out, HasSubstr("link ib: 3 sizes, latency 10 us, 20 GB/s"));
  EXPECT_THAT(fit.out, HasSubstr("TeraPipe reports less than 2 %: within"));
  // Two layers on one rank, one microbatch of 512 + 512 tokens: F 2 (512 + 512 us) + 2 x 0.4e-9 x 512^2 s, B twice
  // that: 6 x (1.024 ms + 104.8576 us).
  const CommandResult simulated = run_sluice(
      words("simulate --json --schedule seq1f1b --pp 1 --slice-lengths 512,512 --microbatches 1 --seq-length 1024 "
            "--num-layers 2 --hidden-size 64 --num-attention-heads 1 --vocab-size 64 --max-position-embeddings 2048 "
            "--cost " +
            cost));
  // The table has no embedding and no head.
  EXPECT_EQ(simulated.exit_code, 2);
  EXPECT_THAT(simulated.err, HasSubstr("/parts/embedding: required key is missing"));
  for (const char* part : {"embedding", "head"}) {
    for (const OpKind kind : {OpKind::F, OpKind::B}) {
      profile_.samples.push_back({.part = std::string(part) == "head" ? PartKind::head : PartKind::embedding,
                                  .kind = kind,
                                  .tokens = 1,
                                  .seconds = 1e-9});
    }
  }
  ASSERT_EQ(run_sluice({"fit", file(), "-o", cost}).exit_code, 0);
  const nlohmann::json whole = test::json_of(
      words("simulate --json --schedule seq1f1b --pp 1 --slice-lengths 512,512 --microbatches 1 --seq-length 1024 "
            "--num-layers 2 --hidden-size 64 --num-attention-heads 1 --vocab-size 64 --max-position-embeddings 2048 "
            "--cost " +
            cost));
  // Plus 4 ns each for embedding and head.
  EXPECT_NEAR(whole.at("makespan_s").get<double>(), 6 * (1.024e-3 + 104.8576e-6) + 8e-9, 2e-9);
}

TEST_F(Fit, PrintsOneJsonDocument) {
  const CommandResult fit = run_sluice({"fit", file(), "--json"});
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  const json document = json::parse(fit.out);
  EXPECT_EQ(document.at("schema"), "sluice.fit/1");
  EXPECT_EQ(document.at("curves").size(), 2U);
  EXPECT_EQ(document.at("curves").at(0).at("pairs"), 24);
  EXPECT_NEAR(document.at("curves").at(0).at("ctx").at(3).get<double>(), 4e-10, 1e-16);
  EXPECT_GT(document.at("curves").at(0).at("held_out").at("samples"), 0);
  EXPECT_EQ(document.at("links").at(0).at("link"), "ib");
}

TEST_F(Fit, WarnsAboutOmittedTerms) {
  std::erase_if(profile_.samples, [](const ProfileSample& sample) { return sample.context > 0; });
  const CommandResult fit = run_sluice({"fit", file()});
  EXPECT_EQ(fit.exit_code, 0);
  EXPECT_EQ(fit.err,
            "sluice: layer F: expected samples with context: t_ctx is 0\n"
            "sluice: layer B: expected samples with context: t_ctx is 0\n");
}

TEST_F(Fit, ErrorsAreOneLineAndWriteNothing) {
  const auto error_of = [&](const std::vector<std::string>& arguments) {
    const CommandResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  const int before = folder_.num_files();
  EXPECT_THAT(error_of({"fit", folder_.path("none.json"), "-o", folder_.path("cost.json")}), HasSubstr("none.json"));
  EXPECT_EQ(folder_.num_files(), before);
  profile_.samples.front().tensor_parallel = 8;
  const std::string path = file();
  EXPECT_EQ(error_of({"fit", path}), "sluice: " + path +
                                         ": /samples: a cost file is for one value of tensor_parallel: choose one of "
                                         "1, 8 with --tensor-parallel\n");
  EXPECT_EQ(error_of({"fit", path, "--tensor-parallel", "2"}),
            "sluice: " + path + ": /samples: --tensor-parallel: expected one of 1, 8, got 2\n");
  EXPECT_THAT(error_of({"fit", path, "--tensor-paralel", "1"}), HasSubstr("did you mean '--tensor-parallel'?"));
  EXPECT_THAT(error_of({"fit"}), HasSubstr("profile is required"));
}

// Cost files in `sluice simulate`: what they cannot tell is refused.

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
    const nlohmann::json simulated = test::json_of(words("simulate --json --cost " + cost_ + " " + flags + model));
    const nlohmann::json run = test::json_of(words("run --json --steps 2 " + flags + model));
    const nlohmann::json ranks = simulated.at("ranks");
    const nlohmann::json workers = run.at("workers");
    ASSERT_EQ(ranks.size(), workers.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const double held = workers[rank].at("held_bytes");
      EXPECT_NEAR(ranks[rank].at("peak_memory_bytes").get<double>(), held, 0.03 * held) << flags << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace sluice::test
