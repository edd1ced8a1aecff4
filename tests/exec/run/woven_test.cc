// Joint blocks whose parts interleave (RunSpec::weave), against blocks whose ops run one after the other.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "exec/measure/measured_timeline.h"
#include "exec/plan/run_plan.h"
#include "exec/plan/woven_steps.h"
#include "exec/run/training_run.h"
#include "exec/transport/threads.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule_file.h"
#include "model/to_size.h"
#include "tests/support/forwarding_transport.h"
#include "tests/support/golden.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;

constexpr std::int64_t kWovenTokens = 12;

// "dispatch(F)0" for exchanges, "attention(F)0 <1" for parts after exchange 1; layers in the order of their pass.
std::vector<std::string> words_of(const std::vector<WovenStep>& steps) {
  constexpr std::array kKinds = {OpKind::F, OpKind::B, OpKind::W};
  std::vector<std::string> words;
  for (const WovenStep& step : steps) {
    const PassPart part{step.part.part, kKinds.at(static_cast<std::size_t>(step.part.pass))};
    words.push_back(to_string(part) + std::to_string(step.layer));
    if (step.after >= 0) words.back() += fmt::format(" <{}", step.after);
    EXPECT_EQ(step.exchanges, communicates(part.part));
  }
  return words;
}

StageContents experts_after_dense(int dense, int experts) {
  return {.layers = dense + experts, .expert_layers = experts};
}

// Exchanges in their order: 0 combine(B), 1 dispatch(F), 2 dispatch(B), 3 combine(F), each directly after what it
// needs.
TEST(WovenSteps, FollowTheWeaveAndWaitForTheirExchanges) {
  const Weave dualpipe = find_weave("dualpipe");
  const StageContents one = experts_after_dense(0, 1);
  EXPECT_THAT(words_of(woven_steps(dualpipe, {BlockOp{OpKind::F, one}, BlockOp{OpKind::B, one}})),
              ElementsAre("combine(B)0", "attention(F)0", "dispatch(F)0", "experts(B)0 <0", "dispatch(B)0",
                          "experts(W)0", "experts(F)0 <1", "combine(F)0", "attention(B)0 <2", "attention(W)0"));
  const auto first_half = woven_steps(dualpipe, {BlockOp{OpKind::I, one}, BlockOp{OpKind::F, one}});
  EXPECT_THAT(words_of(first_half), ElementsAre("combine(B)0", "attention(F)0", "dispatch(F)0", "experts(B)0 <0",
                                                "dispatch(B)0", "experts(F)0 <1", "combine(F)0", "attention(B)0 <2"));
  EXPECT_EQ(first_half[0].op, 0);
  EXPECT_EQ(first_half[1].op, 1);
  // Without weight gradients in the weave, those of a B are part of their input gradients.
  EXPECT_THAT(words_of(woven_steps(find_weave("whole-backward"), {BlockOp{OpKind::F, one}, BlockOp{OpKind::B, one}})),
              ElementsAre("combine(B)0", "attention(F)0", "dispatch(F)0", "experts(B)0 <0", "experts(W)0",
                          "dispatch(B)0", "experts(F)0 <1", "combine(F)0", "attention(B)0 <2", "attention(W)0"));
}

// A backward begins with the last layer of its stage: here with experts, while F begins with a dense one. The result of
// the second layer's combine(F) is needed by the third layer.
TEST(WovenSteps, PairLayersInTheOrderOfTheirPasses) {
  const StageContents forward = experts_after_dense(1, 2);
  const StageContents backward = experts_after_dense(1, 1);
  const auto steps = woven_steps(find_weave("dualpipe"), {BlockOp{OpKind::F, forward}, BlockOp{OpKind::I, backward}});
  EXPECT_THAT(words_of(steps),
              ElementsAre("combine(B)0", "attention(F)0", "experts(B)0 <0", "dispatch(B)0", "attention(B)0 <1",
                          "attention(F)1", "dispatch(F)1", "experts(F)1 <2", "combine(F)1", "attention(B)1",
                          "attention(F)2 <3", "dispatch(F)2", "experts(F)2 <4", "combine(F)2"));
  EXPECT_EQ(steps[0].part.layer, 1);
  EXPECT_EQ(steps[9].part.layer, 0);
  EXPECT_THAT(woven_steps(find_weave("dualpipe"), {BlockOp{OpKind::F, {}}, BlockOp{OpKind::B, {}}}), IsEmpty());
}

// combine(B) of a layer overwrites the gradients that experts(W) of the layer before reads; attention(W) reads others.
TEST(WovenSteps, KeepGradientsOfExpertsUntilTheyAreRead) {
  const Weave late = find_weave(
      "combine(B) experts(B) dispatch(B) attention(B) attention(W) experts(W) attention(F) dispatch(F) experts(F) "
      "combine(F)");
  const StageContents two = experts_after_dense(0, 2);
  EXPECT_THAT(
      words_of(woven_steps(late, {BlockOp{OpKind::F, {}}, BlockOp{OpKind::B, two}})),
      ElementsAre("combine(B)0", "experts(B)0 <0", "dispatch(B)0", "attention(B)0 <1", "attention(W)0", "experts(W)0",
                  "combine(B)1", "experts(B)1 <2", "dispatch(B)1", "attention(B)1 <3", "attention(W)1", "experts(W)1"));
}

Schedule joint_schedule(const std::string& family, int ranks) {
  FamilyParams params{.ranks = ranks, .microbatches = 4 * ranks};
  params.shape = {1, {kWovenTokens}};
  return make_schedule(find_family(family), params);
}

// Two ranks, with blocks of an F and an I, and delayed weight gradients.
Schedule schedule_with_split_backwards() {
  return schedule_from_json(fmt::format(R"({{"schema": "sluice.schedule/1", "family": "split", "ranks": 2, "stages": 2,
      "microbatches": 3, "batches": 1, "weight_policy": "flush", "placement": [[0, 1]],
      "shapes": [{{"sequences": 1, "slice_lengths": [{}]}}],
      "order": [["0F0", "0F1", "0F2+0I0", "0I1", "0I2", "0W0", "0W1", "0W2"],
                ["1F0", "1F1+1I0", "1F2+1I1", "1W0", "1I2", "1W1", "1W2"]]}})",
                                        kWovenTokens),
                            "split");
}

int woven_blocks_in(const RunPlan& plan) {
  int count = 0;
  for (int rank = 0; rank < plan.schedule().num_ranks(); ++rank) {
    for (const PlannedStep& step : plan.rank(rank).steps) count += step.woven ? 1 : 0;
  }
  return count;
}

RunSpec expert_spec(const Schedule& schedule, bool gated) {
  const int layers = 2 * schedule.num_stages();
  RunSpec spec{.model = gated ? test::small_mixtral(layers) : test::small_expert_gpt(layers)};
  spec.data_parallel = 2;
  spec.expert_parallel = 2;
  spec.optimizer.weight_decay = 0.1;
  spec.clip_gradients = 1;
  return spec;
}

// Two steps in float32: bitwise equal weights, losses and gradient norms.
void expect_serial_results(RunSpec spec, const Schedule& schedule) {
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), kWovenTokens, 5);
  const TrainingOptions options{.runs = 2};
  const RunPlan woven(spec, schedule);
  EXPECT_GT(woven_blocks_in(woven), 0);
  spec.weave = {};
  const RunPlan serial(spec, schedule);
  EXPECT_EQ(woven_blocks_in(serial), 0);
  const test::Trained expected = test::train(serial, tokens, options);
  const test::Trained trained = test::train(woven, tokens, options);
  EXPECT_EQ(trained.weights, expected.weights);
  for (std::size_t run = 0; run < 2; ++run) {
    EXPECT_EQ(trained.report.runs.at(run).losses, expected.report.runs.at(run).losses);
    EXPECT_EQ(trained.report.runs.at(run).gradient_norm, expected.report.runs.at(run).gradient_norm);
  }
}

TEST(Woven, ResultsEqualThoseOfSerialBlocks) {
  int tried = 0;
  for (const char* family : {"combined-1f1b", "dualpipe", "dualpipe-v"}) {
    const Schedule schedule = joint_schedule(family, 2);
    for (const bool gated : {false, true}) {
      for (const auto& [ep, data, tensor] : {std::tuple(2, 2, 1), {4, 4, 1}, {2, 1, 2}, {4, 2, 2}}) {
        if (small_scope() && ++tried % 5 != 0) continue;
        SCOPED_TRACE(fmt::format("{} ep={} d={} t={} gated={}", family, ep, data, tensor, gated));
        RunSpec spec = expert_spec(schedule, gated);
        spec.expert_parallel = ep;
        spec.data_parallel = data;
        spec.tensor_parallel = tensor;
        expect_serial_results(spec, schedule);
      }
    }
  }
}

TEST(Woven, ResultsDoNotDependOnTheWeave) {
  const Schedule schedule = joint_schedule("dualpipe", 2);
  RunSpec spec = expert_spec(schedule, false);
  std::vector<Weave> weaves = {find_weave("whole-backward")};
  for (std::size_t i = 0; i < all_weaves().size(); i += small_scope() ? 40 : 10) weaves.push_back(all_weaves()[i]);
  for (const Weave& weave : weaves) {
    SCOPED_TRACE(weave.name);
    spec.weave = weave;
    expect_serial_results(spec, schedule);
  }
}

TEST(Woven, WeightGradientsMayBeDelayed) {
  const Schedule schedule = schedule_with_split_backwards();
  for (const bool gated : {false, true}) expect_serial_results(expert_spec(schedule, gated), schedule);
}

// Nothing is exchanged without expert parallelism, and a recomputing backward runs as a whole.
TEST(Woven, BlocksAreSerialWithoutExchangesAndWithRecomputation) {
  const Schedule schedule = joint_schedule("dualpipe", 2);
  RunSpec spec = expert_spec(schedule, true);
  spec.recompute = true;
  EXPECT_EQ(woven_blocks_in(RunPlan(spec, schedule)), 0);
  spec.recompute = false;
  EXPECT_GT(woven_blocks_in(RunPlan(spec, schedule)), 0);
  spec.expert_parallel = 1;
  EXPECT_EQ(woven_blocks_in(RunPlan(spec, schedule)), 0);
}

// A block with combine(B) from 0 to 10 ns, beside attention(F) from 0 to 4 and experts(F) from 9 to 12 ns: 5 ns are
// hidden. In the weave, experts(F) follows experts(B), which waits for combine(B): 4 ns. Outside blocks nothing is
// hidden.
TEST(ExchangeOverlap, ComparesTheTimesOfPartsWithTheWeave) {
  const Schedule schedule = joint_schedule("dualpipe", 2);
  const RunPlan plan(expert_spec(schedule, true), schedule);
  std::vector<WorkerClock> clocks(2);
  const auto& steps = plan.rank(1).steps;
  const auto block = std::find_if(steps.begin(), steps.end(), [](const PlannedStep& step) { return step.woven; });
  ASSERT_NE(block, steps.end());
  const PartTime exchange{.part = LayerPart::combine, .pass = PartPass::input_gradient, .start_ns = 0, .end_ns = 10};
  const PartTime attention{.part = LayerPart::attention, .pass = PartPass::forward, .start_ns = 0, .end_ns = 4};
  const PartTime experts{.part = LayerPart::experts, .pass = PartPass::forward, .start_ns = 9, .end_ns = 12};
  for (const VertexId vertex : {steps.front().vertex, block->vertex}) {
    for (const PartTime& part : {exchange, attention, experts}) clocks[1].parts.push_back({vertex, part});
  }
  const std::vector<ExchangeOverlap> ranks = exchange_overlap(plan, clocks);
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0].seconds, 0);
  EXPECT_DOUBLE_EQ(ranks[1].seconds, 20e-9);
  EXPECT_DOUBLE_EQ(ranks[1].hidden_s, 5e-9);
  EXPECT_DOUBLE_EQ(ranks[1].predicted_hidden_s, 4e-9);
}

// Counts the messages of the tensor group, which the compute thread sends and receives, before the first exchange of
// the communication lane. With a limit, holds this exchange back until there have been more: one that is not overlapped
// is never done. Gives up after a minute.
class HoldingTransport final : public ForwardingTransport {
 public:
  HoldingTransport(Transport& inner, std::optional<int> limit) : ForwardingTransport(inner), limit_(limit) {}
  void post_send(Message& message) override {
    note(message);
    ForwardingTransport::post_send(message);
  }
  void post_receive(Message& message) override {
    note(message);
    ForwardingTransport::post_receive(message);
  }
  bool poll(Message& message) override {
    if (message.channel == Channel::expert && holds()) return false;
    return ForwardingTransport::poll(message);
  }
  void sleep(Channel channel, std::uint32_t seen) override {
    if (channel != Channel::expert || !holds()) return ForwardingTransport::sleep(channel, seen);
    std::this_thread::yield();
  }

  bool gave_up() const { return gave_up_; }
  // Number of messages before the first exchange; 0 if there was no exchange.
  int before_first() const { return before_first_; }

 private:
  bool holds() {
    if (!limit_ || gave_up_ || posts_.load() > *limit_) return false;
    gave_up_ = std::chrono::steady_clock::now() > end_;
    return !gave_up_;
  }
  void note(const Message& message) {
    if (message.channel == Channel::tensor) ++posts_;
    if (message.channel == Channel::expert && before_first_ == 0) before_first_ = posts_.load();
  }

  std::optional<int> limit_;
  std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::atomic<int> posts_{0};
  std::atomic<int> before_first_{0};
  std::atomic<bool> gave_up_{false};
};

// Runs a plan with limits by world rank, or none. Returns the messages before the first exchange, and fails if an
// exchange was given up.
std::vector<int> run_held(const RunPlan& plan, const std::vector<int>& limits, TrainingReport& report) {
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kWovenTokens, 5);
  const TrainingOptions options{.keep_times = KeepTimes::last};
  std::vector<int> before(to_size(plan.layout().size()), 0);
  on_threads(plan.layout().size(), [&](Transport& transport) {
    const std::size_t rank = to_size(transport.rank());
    HoldingTransport holding(transport, limits.empty() ? std::nullopt : std::optional(limits[rank]));
    TrainingReport of_others;
    train_as_process(plan, holding, tokens, options, rank == 0 ? report : of_others);
    EXPECT_FALSE(holding.gave_up()) << "rank " << rank;
    before[rank] = holding.before_first();
  });
  return before;
}

// The order of events, not their durations: combine(B), the first exchange of a block, cannot end before attention(F)
// has begun its all-reduce, and attention(F) does not wait for it.
TEST(Woven, ComputesWhileTokensAreExchanged) {
  const Schedule schedule = joint_schedule("dualpipe", 2);
  RunSpec spec = expert_spec(schedule, true);
  spec.data_parallel = 1;
  spec.tensor_parallel = 2;
  // In this weave, the compute thread waits for the first exchange of a block.
  spec.weave =
      find_weave("combine(B) experts(B) dispatch(B) attention(B) attention(F) dispatch(F) experts(F) combine(F)");
  TrainingReport unheld;
  const std::vector<int> before = run_held(RunPlan(spec, schedule), {}, unheld);
  EXPECT_THAT(before, Each(Gt(0)));
  spec.weave = find_weave("dualpipe");
  const RunPlan plan(spec, schedule);
  TrainingReport report;
  run_held(plan, before, report);

  const std::vector<VertexPart> parts = measured_parts(plan.graph(), report.runs.at(0).clocks);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto& steps = plan.rank(rank).steps;
    const auto block = std::find_if(steps.begin(), steps.end(), [](const PlannedStep& step) { return step.woven; });
    ASSERT_NE(block, steps.end());
    const auto time_of = [&](LayerPart part, PartPass pass) {
      for (const VertexPart& each : parts) {
        if (each.vertex == block->vertex && each.time.part == part && each.time.pass == pass && each.time.layer == 0) {
          return each.time;
        }
      }
      ADD_FAILURE() << "no " << to_string(part);
      return PartTime{};
    };
    const PartTime exchange = time_of(LayerPart::combine, PartPass::input_gradient);
    const PartTime compute = time_of(LayerPart::attention, PartPass::forward);
    EXPECT_LT(compute.start_ns, exchange.end_ns);
    EXPECT_LE(exchange.end_ns, time_of(LayerPart::experts, PartPass::input_gradient).start_ns);
  }
}

}  // namespace
}  // namespace sluice::test
