#include "model/cost/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/cost/profile_fit.h"
#include "model/errors.h"

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The function behind the samples: t(i, 0) from a table, and four terms.
struct Truth {
  double floor_s = 2e-4;
  double token_s = 1e-6;
  std::array<double, 4> context = {3e-5, 2e-8, 1e-8, 4e-10};

  double at(std::int64_t tokens, std::int64_t behind) const {
    const auto i = static_cast<double>(tokens);
    const auto j = static_cast<double>(behind);
    const double alone = std::max(floor_s, token_s * i);
    return behind == 0 ? alone : alone + context[0] + context[1] * i + context[2] * j + context[3] * i * j;
  }
};

// Deterministic noise of mean 0 in -1 .. 1.
double noise(int n) { return std::sin(1.7 * n * n + n); }

Profile layer_profile(const Truth& truth, double noise_share,
                      const std::vector<std::int64_t>& lengths = {64, 128, 256, 384, 512, 768, 1024, 2048},
                      const std::vector<std::int64_t>& contexts = {0, 128, 512, 1024, 2048, 4096}) {
  Profile profile{.source = "p.json", .machine = "made", .dtype = "bf16", .model = "m"};
  int n = 0;
  for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) {
    for (const std::int64_t tokens : lengths) {
      for (const std::int64_t context : contexts) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          profile.samples.push_back({.kind = kind,
                                     .tokens = tokens,
                                     .context = context,
                                     .seconds = truth.at(tokens, context) * (1 + noise_share * noise(n++)),
                                     .spread_s = 1e-6});
        }
      }
    }
  }
  return profile;
}

std::string error_of(const Profile& profile, const ProfileChoice& choice = {}) {
  try {
    fit_profile(profile, choice);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FitProfile, RecoversTheParametersWithoutNoise) {
  const Truth truth;
  const ProfileFit fit = fit_profile(layer_profile(truth, 0), {});
  const TimeCurve& curve = *fit.table.curve(PartKind::layer, OpKind::F);
  EXPECT_THAT(curve.tokens, ElementsAre(64, 128, 256, 384, 512, 768, 1024, 2048));
  EXPECT_DOUBLE_EQ(curve.seconds.front(), 2e-4);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(curve.context[i] / truth.context[i], 1, 1e-6) << i;
  EXPECT_LT(curve.residual, 1e-9);
  ASSERT_EQ(fit.curves.size(), 3U);
  EXPECT_EQ(fit.curves[0].alone, 8);
  EXPECT_EQ(fit.curves[0].with_context, 40);
  ASSERT_TRUE(fit.curves[0].held_out);
  EXPECT_EQ(fit.curves[0].held_out->samples, 40);
  EXPECT_LT(fit.curves[0].held_out->max, 1e-9);
  // With a length held out, the error of t(i, 0) is not zero only around the end of the floor at 200 tokens: at 256,
  // between 128 and 384, the prediction is the mean of 2e-4 and 3.84e-4, 2.92e-4 instead of 2.56e-4; at 128, a third of
  // the way from 64 to 256, it is 2e-4 + 0.56e-4 / 3 instead of 2e-4. Six lengths have neighbors.
  ASSERT_TRUE(fit.curves[0].between);
  EXPECT_NEAR(fit.curves[0].between->max, 2.92 / 2.56 - 1, 1e-12);
  EXPECT_NEAR(fit.curves[0].between->mean, (2.92 / 2.56 - 1 + 0.56 / 3 / 2) / 6, 1e-12);
  EXPECT_TRUE(fit.warnings.empty());
}

TEST(FitProfile, HasAnErrorAboutAsLargeAsTheNoise) {
  const Truth truth;
  const ProfileFit fit = fit_profile(layer_profile(truth, 0.01), {});
  const TimeCurve& curve = *fit.table.curve(PartKind::layer, OpKind::F);
  for (const std::int64_t tokens : {64, 300, 700, 1500}) {
    for (const std::int64_t context : {0, 300, 3000}) {
      EXPECT_NEAR(curve.at(tokens, context) / Truth{}.at(tokens, context), 1, tokens == 300 ? 0.05 : 0.02);
    }
  }
  EXPECT_GT(fit.curves[0].in_sample.mean, 0.001);
  EXPECT_LT(fit.curves[0].held_out->mean, kPublishedFitError);
  // Fitted and held-out samples differ.
  EXPECT_GT(fit.curves[0].held_out->max, fit.curves[0].in_sample.max);
}

TEST(FitProfile, TakesMediansOfRepeatedSamples) {
  Profile profile{.source = "p.json"};
  for (const double seconds : {1.0, 9.0, 2.0}) {
    for (const OpKind kind : {OpKind::F, OpKind::B})
      profile.samples.push_back({.kind = kind, .tokens = 8, .seconds = seconds});
  }
  const ProfileFit fit = fit_profile(profile, {});
  EXPECT_THAT(fit.table.curve(PartKind::layer, OpKind::B)->seconds, ElementsAre(2.0));
  EXPECT_FALSE(fit.curves[0].held_out);
  EXPECT_FALSE(fit.curves[0].between);
  EXPECT_THAT(fit.warnings, ElementsAre("layer F: expected samples with context: t_ctx is 0",
                                        "layer B: expected samples with context: t_ctx is 0"));
}

TEST(FitProfile, DropsTermsThatSamplesDoNotDetermine) {
  Truth truth;
  truth.context = {0, 0, 0, 4e-10};
  // One context: i j and i, j and 1 are the same. Two tokens' worth of one context: a0 + a3 i j.
  const ProfileFit one = fit_profile(layer_profile(truth, 0, {64, 128}, {0, 512}), {});
  const TimeCurve& curve = *one.table.curve(PartKind::layer, OpKind::F);
  EXPECT_NEAR(curve.context[3], 4e-10, 1e-14);
  EXPECT_NEAR(curve.context[0], 0, 1e-12);
  EXPECT_EQ(curve.context[1], 0);
  EXPECT_EQ(curve.context[2], 0);
  EXPECT_EQ(one.warnings.front(), "layer F: too few tokens and contexts for four terms: a1 and a2 are 0");
  const ProfileFit single = fit_profile(layer_profile(truth, 0, {64}, {0, 512}), {});
  EXPECT_NEAR(single.table.curve(PartKind::layer, OpKind::F)->context[3], 4e-10, 1e-14);
  EXPECT_EQ(single.warnings.front(),
            "layer F: too few tokens and contexts for four terms: only a3 is fitted, the others are 0");
}

TEST(FitProfile, FitsLinks) {
  Profile profile = layer_profile({}, 0);
  for (const std::int64_t bytes : {1000, 100'000, 1'000'000, 10'000'000, 100'000'000}) {
    profile.transfers.push_back({"ib", bytes, 2e-5 + static_cast<double>(bytes) / 2e10});
    // Times in proportion to the bytes, and less for small ones: a line would have a latency below 0.
    profile.transfers.push_back({"nvlink", bytes, std::max(1e-9, static_cast<double>(bytes) / 1e11 - 1e-9)});
  }
  profile.transfers.push_back({"one", 1'000'000, 1e-4});
  const ProfileFit fit = fit_profile(profile, {});
  ASSERT_EQ(fit.table.links.size(), 3U);
  EXPECT_EQ(fit.table.links[0].name, "ib");
  EXPECT_NEAR(fit.table.links[0].latency_s, 2e-5, 1e-10);
  EXPECT_NEAR(fit.table.links[0].bandwidth_bytes_per_s, 2e10, 1e5);
  EXPECT_EQ(fit.table.links[1].latency_s, 0);
  EXPECT_NEAR(fit.table.links[1].bandwidth_bytes_per_s, 1e11, 3e9);  // one size of five is a tenth off
  EXPECT_EQ(fit.table.links[2].latency_s, 0);
  EXPECT_NEAR(fit.table.links[2].bandwidth_bytes_per_s, 1e10, 1);
  EXPECT_LT(fit.links[0].held_out->max, 1e-6);
  EXPECT_THAT(fit.warnings, ElementsAre("link 'one': one size of message: the latency is 0"));
  // 0 bytes alone do not determine a bandwidth.
  profile.transfers = {{"x", 0, 1.0}};
  EXPECT_EQ(error_of(profile),
            "p.json: /transfers: link 'x': expected larger messages to take longer, got times of 1 size that do not");
}

// On a busy machine some sizes are delayed more than others: they are pooled, with a warning that names them.
TEST(FitProfile, DisturbedSizesArePooledWithAWarning) {
  Profile profile = layer_profile({}, 0);
  profile.transfers = {{"x", 1000, 3e-6}, {"x", 2000, 1e-6}, {"x", 100'000, 12e-6}, {"x", 1'000'000, 102e-6}};
  const ProfileFit fit = fit_profile(profile, {});
  EXPECT_NEAR(fit.table.links[0].latency_s, 2e-6, 0.3e-6);
  EXPECT_NEAR(fit.table.links[0].bandwidth_bytes_per_s, 1e10, 0.1e10);
  EXPECT_THAT(fit.warnings, ElementsAre(HasSubstr("link 'x': larger messages do not always take longer (sizes 1000, "
                                                  "2000): was the machine busy?")));
  // Times that do not grow at all: a latency.
  profile.transfers = {{"x", 1000, 4e-6}, {"x", 2000, 3e-6}, {"x", 4000, 2e-6}};
  const ProfileFit flat = fit_profile(profile, {});
  EXPECT_NEAR(flat.table.links[0].latency_s, 3e-6, 1e-12);
  EXPECT_THAT(flat.warnings, ElementsAre(HasSubstr("only a latency was fitted")));
  // No cost table holds such a latency.
  profile.transfers = {{"x", 1, 1e6}, {"x", 2, 1e6}};
  EXPECT_EQ(error_of(profile),
            "p.json: /transfers: link 'x': the fit gives a latency of 1e+06 s: expected at most 10 s; "
            "are the times in seconds?");
}

// A busy machine may make samples without context slower than those with context: no measured slice gets a price of 0.
TEST(FitProfile, DisturbedSamplesKeepPricesAboveZero) {
  Profile profile = layer_profile({}, 0, {64, 128, 256}, {0, 128, 512});
  for (ProfileSample& sample : profile.samples) {
    if (sample.context == 0 && sample.tokens == 128) sample.seconds *= 30;
  }
  const ProfileFit fit = fit_profile(profile, {});
  for (const ProfileSample& sample : profile.samples) {
    EXPECT_GT(fit.table.curve(PartKind::layer, sample.kind)->at(sample.tokens, sample.context), 0)
        << sample.tokens << " after " << sample.context;
  }
  EXPECT_THAT(fit.warnings, testing::Each(HasSubstr("was the machine busy?")));
  EXPECT_EQ(fit.warnings.size(), 3U);
}

// Passes over parameters: 1 us and 2 billion per second. All-reduces: 5 us and 4 GB/s over two ranks, twice the time
// over four.
TEST(FitProfile, FitsPassesAndAllReduces) {
  Profile profile = layer_profile({}, 0);
  for (const std::int64_t size : {1000, 100'000, 10'000'000}) {
    const auto elements = static_cast<double>(size);
    profile.passes.push_back({PassKind::norm, size, 1e-6 + elements / 2e9});
    profile.sums.push_back({4, size, 2 * (5e-6 + elements / 4e9)});
    profile.sums.push_back({2, size, 5e-6 + elements / 4e9});
  }
  const ProfileFit fit = fit_profile(profile, {});
  EXPECT_FALSE(fit.table.pass(PassKind::optimizer));
  ASSERT_TRUE(fit.table.pass(PassKind::norm));
  EXPECT_NEAR(fit.table.pass(PassKind::norm)->at(5e6), 1e-6 + 2.5e-3, 1e-10);
  ASSERT_EQ(fit.table.sums.size(), 2U);
  EXPECT_EQ(fit.table.sums[0].ranks, 2);
  EXPECT_NEAR(fit.table.sums[0].latency_s, 5e-6, 1e-11);
  EXPECT_NEAR(fit.table.sums[1].bandwidth_bytes_per_s, 2e9, 1e3);
  EXPECT_EQ(fit.sums[1].name, "all-reduce over 4 ranks");
  EXPECT_EQ(to_json_text(parse_cost_table(to_json_text(fit.table), "again")), to_json_text(fit.table));
  profile.passes = {{PassKind::optimizer, 100, 2.0}, {PassKind::optimizer, 1'000'000'000, 1e-9}};
  profile.sums.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("p.json: /passes: optimizer: expected larger stages to take longer"));
}

// Only attention depends on the tokens before a slice: other parts give no warning if they have no context.
TEST(FitProfile, WarnsOfMissingContextOnlyForLayers) {
  Profile profile = layer_profile({}, 0);
  for (const PartKind part : {PartKind::head, PartKind::stage}) {
    for (const OpKind kind : {OpKind::F, OpKind::B}) {
      profile.samples.push_back({.part = part, .kind = kind, .tokens = 8, .seconds = 1});
    }
  }
  EXPECT_THAT(fit_profile(profile, {}).warnings, ElementsAre());
}

TEST(FitProfile, ChoosesSequencesAndTensorParallelSize) {
  Profile profile = layer_profile({}, 0);
  Profile twice = layer_profile({.floor_s = 1e-4, .token_s = 5e-7}, 0);
  for (ProfileSample& sample : twice.samples) {
    sample.tensor_parallel = 2;
    profile.samples.push_back(sample);
  }
  EXPECT_EQ(error_of(profile),
            "p.json: /samples: a cost file is for one value of tensor_parallel: choose one of 1, 2 "
            "with --tensor-parallel");
  EXPECT_EQ(error_of(profile, {.tensor_parallel = 4}),
            "p.json: /samples: --tensor-parallel: expected one of 1, 2, got 4");
  const ProfileFit fit = fit_profile(profile, {.tensor_parallel = 2});
  EXPECT_EQ(fit.table.tensor_parallel, 2);
  EXPECT_DOUBLE_EQ(fit.table.curve(PartKind::layer, OpKind::F)->seconds.front(), 1e-4);
  profile.samples[0].sequences = 3;
  EXPECT_EQ(error_of(profile, {.sequences = 3, .tensor_parallel = 2}),
            "p.json: /samples: no sample has sequences 3 and tensor_parallel 2");
}

TEST(FitProfile, ReportsMissingSamples) {
  EXPECT_EQ(error_of({.source = "p.json"}), "p.json: /samples: expected at least one sample");
  const ProfileSample forward{.kind = OpKind::F, .tokens = 8, .seconds = 1};
  const ProfileSample weight{.kind = OpKind::W, .tokens = 8, .seconds = 1};
  const ProfileSample behind{.kind = OpKind::B, .tokens = 8, .context = 8, .seconds = 1};
  EXPECT_EQ(error_of({.source = "p.json", .samples = {weight}}), "p.json: /samples: part layer has no forward, F");
  EXPECT_EQ(error_of({.source = "p.json", .samples = {forward, weight}}),
            "p.json: /samples: part layer has no backward, B or I and W");
  EXPECT_EQ(error_of({.source = "p.json", .samples = {forward, behind}}),
            "p.json: /samples: expected samples of layer B without context, got none");
}

TEST(Profile, RoundTripsThroughItsText) {
  Profile profile = layer_profile({}, 0.1);
  profile.transfers.push_back({"ib", 1000, 1e-5});
  profile.passes.push_back({PassKind::optimizer, 1000, 2e-5});
  profile.sums.push_back({4, 1000, 3e-5});
  profile.samples.push_back({.part = PartKind::stage, .kind = OpKind::W, .tokens = 3, .seconds = 4e-5});
  const Profile again = parse_profile(to_json_text(profile), "p.json");
  EXPECT_EQ(to_json_text(again), to_json_text(profile));
  EXPECT_EQ(again.samples.size(), profile.samples.size());
  EXPECT_EQ(again.machine, "made");
}

// A cost file of the fit gives the same times.
TEST(Profile, FitRoundTripsThroughACostFile) {
  const ProfileFit fit = fit_profile(layer_profile({}, 0.01), {});
  const CostTable table = parse_cost_table(to_json_text(fit.table), "cost.json");
  for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) {
    EXPECT_EQ(table.curve(PartKind::layer, kind)->at(300, 700), fit.table.curve(PartKind::layer, kind)->at(300, 700));
  }
}

std::string parse_error(const std::string& text) {
  try {
    parse_profile(text, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

Profile expert_profile(int expert_parallel) {
  Profile profile{.source = "p.json"};
  for (const PartKind part : kExpertLayerParts) {
    for (const OpKind kind : kinds_of(part)) {
      profile.samples.push_back(
          {.part = part, .kind = kind, .tokens = 8, .expert_parallel = expert_parallel, .seconds = 0.5});
    }
  }
  return profile;
}

TEST(FitProfile, FitsThePartsOfLayersWithExperts) {
  const Profile profile = expert_profile(4);
  const ProfileFit fit = fit_profile(profile, {});
  EXPECT_EQ(fit.table.expert_parallel, 4);
  EXPECT_EQ(fit.curves.size(), 3U + 2U + 3U + 2U);
  EXPECT_EQ(fit.table.curve(PartKind::dispatch, OpKind::I)->at(8, 0), 0.5);
  EXPECT_FALSE(fit.table.curve(PartKind::dispatch, OpKind::W));
  // Only attention depends on the tokens before a slice.
  EXPECT_THAT(fit.warnings, ElementsAre(HasSubstr("attention F"), HasSubstr("attention I"), HasSubstr("attention W")));
  const std::string text = to_json_text(profile);
  EXPECT_EQ(to_json_text(parse_profile(text, "p.json")), text);
}

TEST(FitProfile, RejectsIncompleteOrMixedPartsOfLayersWithExperts) {
  Profile mixed = expert_profile(4);
  mixed.samples.back().expert_parallel = 2;
  EXPECT_EQ(error_of(mixed), "p.json: /samples: a cost file is for one value of expert_parallel, got 2, 4");
  Profile incomplete = expert_profile(1);
  incomplete.samples.pop_back();
  EXPECT_EQ(error_of(incomplete), "p.json: /samples: part combine has no samples of I");
}

TEST(Profile, ErrorsNameThePlace) {
  EXPECT_THAT(
      parse_error(R"({"schema": "sluice.profile/1", "samples": [{"part": "combine", "kind": "W", "tokens": 1}]})"),
      HasSubstr("p.json: /samples/0/kind: expected F or I of this part, got \"W\""));
  EXPECT_THAT(
      parse_error(R"({"schema": "sluice.profile/1", "samples": [{"part": "experts", "kind": "B", "tokens": 1}]})"),
      HasSubstr("p.json: /samples/0/kind: expected F, I or W of this part, got \"B\""));
  EXPECT_THAT(parse_error(R"({"schema": "sluice.profile/1", "samples": [{"part": "layer", "kind": "F", "tokens": 1,
                              "seconds": 1, "expert_parallel": 2}]})"),
              HasSubstr("expert_parallel"));
  EXPECT_EQ(parse_error(R"({"schema": "sluice.profile/2", "samples": []})"),
            "p.json: /schema: expected \"sluice.profile/1\", got \"sluice.profile/2\"");
  EXPECT_EQ(parse_error(R"({"schema": "sluice.profile/1"})"), "p.json: /samples: required key is missing");
  const auto sample = [](const std::string& body) {
    return parse_error(R"({"schema": "sluice.profile/1", "samples": [{)" + body + "}]}");
  };
  EXPECT_THAT(sample(R"("part": "neck", "kind": "F", "tokens": 1, "seconds": 1)"),
              HasSubstr("p.json: /samples/0/part: "));
  EXPECT_THAT(sample(R"("part": "layer", "kind": "X", "tokens": 1, "seconds": 1)"),
              HasSubstr("p.json: /samples/0/kind: "));
  EXPECT_THAT(sample(R"("part": "layer", "kind": "F", "tokens": 0, "seconds": 1)"),
              HasSubstr("p.json: /samples/0/tokens: expected"));
  EXPECT_THAT(sample(R"("part": "layer", "kind": "F", "tokens": 1, "seconds": 0)"),
              HasSubstr("p.json: /samples/0/seconds: expected"));
  EXPECT_THAT(sample(R"("part": "layer", "kind": "F", "tokens": 1, "seconds": 1, "contxt": 3)"),
              HasSubstr("did you mean 'context'?"));
}

}  // namespace
}  // namespace sluice::test
