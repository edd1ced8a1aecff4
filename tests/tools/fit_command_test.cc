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
  const CommandResult whole = run_sluice(
      words("simulate --json --schedule seq1f1b --pp 1 --slice-lengths 512,512 --microbatches 1 --seq-length 1024 "
            "--num-layers 2 --hidden-size 64 --num-attention-heads 1 --vocab-size 64 --max-position-embeddings 2048 "
            "--cost " +
            cost));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  // Plus 4 ns each for embedding and head.
  EXPECT_NEAR(json::parse(whole.out).at("makespan_s").get<double>(), 6 * (1.024e-3 + 104.8576e-6) + 8e-9, 2e-9);
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

}  // namespace
}  // namespace sluice::test
