#include "model/weave/weave.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "model/errors.h"
#include "model/weave/part_kernels.h"
#include "tests/support/errors.h"

namespace sluice::model {
namespace {

LayerTimes uniform_layer(double compute, double communication) {
  LayerTimes times;
  for (const OpKind pass : {OpKind::F, OpKind::B, OpKind::W}) {
    for (const LayerPart part : {LayerPart::attention, LayerPart::experts}) times.of(pass, part) = compute;
  }
  for (const OpKind pass : {OpKind::F, OpKind::B}) {
    for (const LayerPart part : {LayerPart::dispatch, LayerPart::combine}) times.of(pass, part) = communication;
  }
  return times;
}

LayerTimes random_layer(std::mt19937& random) {
  std::uniform_int_distribution<int> milliseconds(0, 20);
  LayerTimes times = uniform_layer(0, 0);
  for (auto& pass : times.seconds) {
    for (double& part : pass) part = milliseconds(random) * 1e-3;
  }
  times.of(OpKind::W, LayerPart::dispatch) = times.of(OpKind::W, LayerPart::combine) = 0;
  return times;
}

std::string error_of_weave(const std::string& text) {
  return test::error_from([&] { find_weave(text); }, "");
}

double lane_s(const WovenBlock& block, bool communication) {
  double sum = 0;
  for (const WovenPart& part : block.parts) {
    if (communicates(part.part.part) == communication) sum += part.end_s - part.start_s;
  }
  return sum;
}

// One layer of each pass; compute parts take 10 s, communication 4 s: the compute lane never waits but for attention(F)
// beside combine(B).
TEST(Weave, HidesCommunicationBehindTheOtherPass) {
  const std::vector<LayerTimes> layer = {uniform_layer(10, 4)};
  const WovenBlock block = weave_block(find_weave("dualpipe"), layer, layer);
  EXPECT_DOUBLE_EQ(block.seconds, 60);  // six compute parts
  EXPECT_DOUBLE_EQ(block.communication_s, 16);
  EXPECT_DOUBLE_EQ(block.exposed_s, 0);
  ASSERT_EQ(block.parts.size(), 10);
  std::vector<std::string> starts;
  for (const WovenPart& part : block.parts) {
    starts.push_back(to_string(part.part) + " " + std::to_string(std::lround(part.start_s)) + " after " +
                     (part.after < 0 ? "-" : to_string(block.parts[part.after].part)));
  }
  EXPECT_THAT(starts, testing::ElementsAre("combine(B) 0 after -", "attention(F) 0 after -",
                                           "experts(B) 10 after attention(F)", "dispatch(F) 10 after attention(F)",
                                           "dispatch(B) 20 after experts(B)", "experts(W) 20 after experts(B)",
                                           "experts(F) 30 after experts(W)", "attention(B) 40 after experts(F)",
                                           "attention(W) 50 after attention(B)", "combine(F) 40 after experts(F)"));
}

// combine(B) of 10 s delays experts(B), and dispatch(F) beside it waits for nothing else.
TEST(Weave, ExposesWhatTheOtherPassCannotHide) {
  const std::vector<LayerTimes> layer = {uniform_layer(4, 10)};
  const WovenBlock block = weave_block(find_weave("dualpipe"), layer, layer);
  // combine(B) 0-10, attention(F) 0-4, dispatch(F) 10-20, experts(B) 10-14, dispatch(B) 20-30, experts(W) 14-18,
  // experts(F) 20-24, combine(F) 30-40, attention(B) 30-34, attention(W) 34-38.
  EXPECT_DOUBLE_EQ(block.seconds, 40);
  EXPECT_DOUBLE_EQ(block.communication_s, 40);
  EXPECT_DOUBLE_EQ(block.exposed_s, 40 - 6 * 4);
}

TEST(Weave, NextLayerStartsWithTheResultOfThePreviousOne) {
  const std::vector<LayerTimes> layers = {uniform_layer(4, 10), uniform_layer(4, 10)};
  const WovenBlock block = weave_block(find_weave("dualpipe"), layers, layers);
  // combine(B) of the second layer needs attention(B) of the first, 34, and the lane after combine(F), 40.
  const auto second = std::find_if(block.parts.begin(), block.parts.end(), [](const WovenPart& part) {
    return part.layer == 1 && part.part == PassPart{LayerPart::combine, OpKind::B};
  });
  ASSERT_NE(second, block.parts.end());
  EXPECT_DOUBLE_EQ(second->start_s, 40);
  EXPECT_DOUBLE_EQ(block.seconds, 80);
}

// A lane alone runs at full speed, two at those of their parts: 10 s of communication beside compute that takes twice
// as long delay it by 5 s.
TEST(Weave, ContentionSlowsBothLanesWhileBothRun) {
  LayerTimes forward = uniform_layer(0, 0);
  LayerTimes backward = uniform_layer(0, 0);
  backward.of(OpKind::B, LayerPart::combine) = 10;
  forward.of(OpKind::F, LayerPart::attention) = 20;
  const auto block = [&] {
    return weave_block(find_weave("dualpipe"), std::vector<LayerTimes>{forward}, std::vector<LayerTimes>{backward});
  };
  EXPECT_DOUBLE_EQ(block().seconds, 20);
  forward.delay(OpKind::F, LayerPart::attention) = 20;
  EXPECT_DOUBLE_EQ(block().seconds, 25);
  backward.delay(OpKind::B, LayerPart::combine) = 2.5;
  EXPECT_DOUBLE_EQ(block().communication_s, 12.5);
  EXPECT_DOUBLE_EQ(block().seconds, 12.5 + 20 - 6.25);
}

// Beside 10 s of dispatch(F), of 6 + 6 s of experts(B) and experts(W): the first is not delayed, the second takes 12 s.
TEST(Weave, PartsHaveTheirOwnDelays) {
  LayerTimes forward = uniform_layer(0, 0);
  LayerTimes backward = uniform_layer(0, 0);
  forward.of(OpKind::F, LayerPart::dispatch) = 10;
  backward.of(OpKind::B, LayerPart::experts) = backward.of(OpKind::W, LayerPart::experts) = 6;
  backward.delay(OpKind::W, LayerPart::experts) = 6;
  const auto seconds = [&](const char* weave) {
    return weave_block(find_weave(weave), std::vector<LayerTimes>{forward}, std::vector<LayerTimes>{backward}).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds("dualpipe"), 6 + 4 + 4);
  // As one part of 12 s, which takes 18 beside dispatch: 10 s of these at 2/3 of the speed, then 12 - 20/3 s.
  EXPECT_DOUBLE_EQ(seconds("whole-backward"), 10 + 12 - 20.0 / 3);
}

// Experts of 2 s after a dispatch of 10 s, launched in 3 s: during dispatch if the host read the counts before it, and
// else from its end on.
TEST(Weave, WaitsForTheLaunchesAfterTheCounts) {
  LayerTimes forward = uniform_layer(0, 0);
  forward.of(OpKind::F, LayerPart::attention) = 1;
  forward.of(OpKind::F, LayerPart::dispatch) = 10;
  forward.of(OpKind::F, LayerPart::experts) = 2;
  forward.issue(OpKind::F, LayerPart::experts) = 3;
  const std::vector<LayerTimes> none;
  using enum LayerTimes::Counts;
  for (const auto& [counts, seconds] : {std::pair{not_read, 1.0 + 10 + 2}, std::pair{before_dispatch, 1.0 + 10 + 2},
                                        std::pair{after_dispatch, 1.0 + 10 + 3}}) {
    forward.counts = counts;
    EXPECT_DOUBLE_EQ(weave_block(find_weave("dualpipe"), std::vector<LayerTimes>{forward}, none).seconds, seconds);
  }
}

TEST(Weave, WholeBackwardIncludesWeightGradients) {
  const std::vector<LayerTimes> layer = {uniform_layer(10, 4)};
  const WovenBlock block = weave_block(find_weave("whole-backward"), layer, layer);
  EXPECT_EQ(block.parts.size(), 8);
  EXPECT_DOUBLE_EQ(lane_s(block, false), 60);
}

TEST(Weave, LayersWithoutPartnerRunAfterTheOthers) {
  const std::vector<LayerTimes> two = {uniform_layer(10, 4), uniform_layer(10, 4)};
  const std::vector<LayerTimes> none;
  const WovenBlock alone = weave_block(find_weave("dualpipe"), two, none);
  EXPECT_DOUBLE_EQ(alone.seconds, 2 * (10 + 4 + 10 + 4));
  EXPECT_DOUBLE_EQ(alone.exposed_s, alone.communication_s);
  EXPECT_DOUBLE_EQ(weave_block(find_weave("dualpipe"), none, none).seconds, 0);
}

// Of random blocks: work is conserved, lanes run one part at a time, in order, and no sooner than what they need; the
// block takes at least the busier lane and at most everything end to end.
TEST(Weave, RandomBlocksKeepEveryRule) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const Weave weave = find_weave(weave_names()[trial % 2]);
    std::vector<LayerTimes> forward(trial % 5);
    std::vector<LayerTimes> backward(trial % 4);
    for (auto* layers : {&forward, &backward}) {
      for (LayerTimes& layer : *layers) layer = random_layer(random);
    }
    const WovenBlock block = weave_block(weave, forward, backward);
    double compute = 0;
    double communication = 0;
    const auto add = [&](const std::vector<LayerTimes>& layers, std::initializer_list<OpKind> passes) {
      for (const LayerTimes& layer : layers) {
        for (const OpKind pass : passes) {
          for (const LayerPart part :
               {LayerPart::attention, LayerPart::dispatch, LayerPart::experts, LayerPart::combine}) {
            (communicates(part) ? communication : compute) += layer.of(pass, part);
          }
        }
      }
    };
    add(forward, {OpKind::F});
    add(backward, {OpKind::B, OpKind::W});
    EXPECT_NEAR(lane_s(block, false), compute, 1e-9);
    EXPECT_NEAR(lane_s(block, true), communication, 1e-9);
    EXPECT_NEAR(block.communication_s, communication, 1e-9);
    EXPECT_GE(block.seconds, std::max(compute, communication) - 1e-9);
    EXPECT_LE(block.seconds, compute + communication + 1e-9);
    for (const bool lane : {false, true}) {
      double free = 0;
      for (const WovenPart& part : block.parts) {
        if (communicates(part.part.part) != lane) continue;
        EXPECT_GE(part.start_s, free - 1e-9);
        free = part.end_s;
      }
    }
    for (const WovenPart& part : block.parts) {
      EXPECT_EQ(part.after < 0, part.start_s == 0);
      if (part.after < 0) continue;
      EXPECT_DOUBLE_EQ(block.parts[part.after].end_s, part.start_s);
    }
  }
}

// Ten parts that the host launches in 20 s each: the last one starts when its launches start and ends with them.
TEST(Weave, PartsWaitForTheirLaunches) {
  LayerTimes layer = uniform_layer(10, 4);
  for (const OpKind pass : {OpKind::F, OpKind::B}) {
    for (std::size_t part = 0; part < kNumLayerParts; ++part) layer.issue(pass, static_cast<LayerPart>(part)) = 20;
  }
  for (const LayerPart part : {LayerPart::attention, LayerPart::experts}) layer.issue(OpKind::W, part) = 20;
  const std::vector<LayerTimes> layers = {layer};
  EXPECT_DOUBLE_EQ(weave_block(find_weave("dualpipe"), layers, layers).seconds, 200);
}

// Attention 10, dispatch 4, experts 10 and combine 4 s one after another, launched in 1, 1, 15 and 1 s: launches of the
// experts end at 17 s, before the experts. If the host reads what attention's router has chosen, it launches dispatch
// at 10 s and the experts from 11 to 26 s.
TEST(Weave, TheHostCountsRowsBeforeItLaunchesExperts) {
  LayerTimes layer = uniform_layer(10, 4);
  for (std::size_t part = 0; part < kNumLayerParts; ++part) layer.issue(OpKind::F, static_cast<LayerPart>(part)) = 1;
  layer.issue(OpKind::F, LayerPart::experts) = 15;
  EXPECT_DOUBLE_EQ(weave_block(serial_weave(), std::vector<LayerTimes>{layer}, {}).seconds, 28);
  layer.counts = LayerTimes::Counts::before_dispatch;
  EXPECT_DOUBLE_EQ(weave_block(serial_weave(), std::vector<LayerTimes>{layer}, {}).seconds, 30);
}

TEST(Weave, ReadsAnOrderFromText) {
  const Weave weave = find_weave(
      "attention(F) dispatch(F) experts(F) combine(F) combine(B) experts(B) experts(W) dispatch(B) attention(B) "
      "attention(W)");
  const std::vector<LayerTimes> layer = {uniform_layer(10, 4)};
  // F, then B: only the weight gradients hide communication.
  EXPECT_DOUBLE_EQ(weave_block(weave, layer, layer).seconds, 60 + 4 * 4 - 4);
}

// Of random layers, no order of the parts is faster, and the fastest one keeps to the lower bound; where nothing
// communicates all are equal.
TEST(Weave, SearchFindsTheFastestOrder) {
  EXPECT_EQ(all_weaves().size(), 109);  // of 45 orders of compute and 6 of communication, those without a deadlock
  std::mt19937 random(11);
  int better = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const std::vector<LayerTimes> forward = {random_layer(random), random_layer(random)};
    const std::vector<LayerTimes> backward = {random_layer(random), random_layer(random)};
    const WovenBlock best = weave_block(fastest_weave(forward, backward), forward, backward);
    const double known = weave_block(find_weave("dualpipe"), forward, backward).seconds;
    EXPECT_LE(best.seconds, known);
    EXPECT_GE(best.seconds, std::max(lane_s(best, false), lane_s(best, true)) - 1e-9);
    better += best.seconds < known - 1e-9 ? 1 : 0;
  }
  EXPECT_GT(better, 5);
}

TEST(Weave, ErrorsNameThePart) {
  EXPECT_THAT(error_of_weave("dualpip"), testing::HasSubstr("expected dualpipe, whole-backward, search"));
  EXPECT_THAT(error_of_weave("dualpip"), testing::HasSubstr("did you mean 'dualpipe'"));
  EXPECT_THAT(error_of_weave(""), testing::HasSubstr("got \"\""));
  EXPECT_THAT(error_of_weave("attention(F) mlp(F)"), testing::HasSubstr("got \"mlp(F)\""));
  EXPECT_THAT(error_of_weave("attention(F)"), testing::HasSubstr("attention(B) is missing"));
  const std::string valid =
      "attention(F) dispatch(F) experts(F) combine(F) combine(B) experts(B) dispatch(B) attention(B)";
  EXPECT_EQ(error_of_weave(valid), "");
  EXPECT_THAT(error_of_weave(valid + " attention(F)"), testing::HasSubstr("attention(F) occurs twice"));
  EXPECT_THAT(error_of_weave(valid + " combine(W)"), testing::HasSubstr("combine(W): only attention and experts"));
  EXPECT_THAT(error_of_weave(valid + " attention(W)"), testing::HasSubstr("or of neither"));
  EXPECT_THAT(error_of_weave("experts(W) " + valid + " attention(W)"),
              testing::HasSubstr("experts(W) needs experts(B), which must precede it"));
  EXPECT_THAT(
      error_of_weave("dispatch(F) attention(F) experts(F) combine(F) combine(B) experts(B) dispatch(B) attention(B)"),
      testing::HasSubstr("dispatch(F) needs attention(F), which must precede it"));
}

TEST(PartKernels, ExtentIsBusyTimeAndGaps) {
  const PartKernels part{.busy_s = 5, .second_busy_s = 2, .kernels = 4};
  EXPECT_DOUBLE_EQ(extent_s(part, {}), 5);
  EXPECT_DOUBLE_EQ(extent_s(part, {.kernel_s = 0.25, .second_exposed = 0.5}), 5 + 1 + 1);
}

// Gaps per kernel of 0.1, 0.2 and 0.9 s: the median is 0.2. With these, of a second stream's 4 s are 10 - 7 - 2 = 1
// exposed, and of its 2 s 8 - 6 - 1 = 1: fractions of 0.25 and 0.5.
TEST(PartKernels, GapsAreMedians) {
  const std::vector<TracedExtent> parts = {
      {{.busy_s = 1, .kernels = 10}, 2},
      {{.busy_s = 1, .kernels = 10}, 3},
      {{.busy_s = 1, .kernels = 10}, 10},
      {{.busy_s = 7, .second_busy_s = 4, .kernels = 10}, 10},
      {{.busy_s = 6, .second_busy_s = 2, .kernels = 5}, 8},
  };
  const StreamGaps gaps = fit_gaps(parts);
  EXPECT_DOUBLE_EQ(gaps.kernel_s, 0.2);
  EXPECT_DOUBLE_EQ(gaps.second_exposed, 0.375);
  EXPECT_EQ(fit_gaps({}).kernel_s, 0);
  EXPECT_EQ(fit_gaps({}).second_exposed, 0);
}

}  // namespace
}  // namespace sluice::model
