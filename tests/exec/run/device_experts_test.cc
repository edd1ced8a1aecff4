// Layers with experts on emulated devices: gradients against one device, the CPU, and woven against serial blocks.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "exec/device/provider.h"
#include "exec/measure/measured_timeline.h"
#include "exec/run/run_devices.h"
#include "exec/watch/failure.h"
#include "kernels/device_kernels.h"
#include "kernels/emulation/device.h"
#include "model/schedule/family.h"
#include "tests/support/all_schedules.h"
#include "tests/support/command.h"
#include "tests/support/exchange_check.h"
#include "tests/support/golden.h"
#include "tests/support/one_device.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kExpertTokens = 12;

test::Trained train_experts(const RunPlan& plan, TrainingOptions options = {}) {
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kExpertTokens, 7);
  RunDevices devices{.kernels = device_kernels()};
  std::vector<std::unique_ptr<Device>> held;
  if (plan.on_devices()) {
    held = device_provider()->open({.kind = DeviceRequest::green, .count = plan.layout().size()});
    for (const auto& device : held) devices.devices.push_back(device.get());
    options.devices = &devices;
  }
  return test::train(plan, tokens, options);
}

// With expert parallelism of 2 over two replicas, unless changed.
RunSpec expert_descent(const Transformer& model) {
  RunSpec spec{.model = model, .precision = Precision::bfloat16, .kernels = device_kernels()};
  spec.optimizer.kind = OptimizerStep::Kind::sgd;
  spec.optimizer.learning_rate = 1;
  spec.data_parallel = 2;
  spec.expert_parallel = 2;
  return spec;
}

// Models whose choices of experts do not depend on rounding: all experts are chosen for every token, with different
// probabilities.
Transformer with_all_experts(Transformer model) {
  model.experts.per_token = static_cast<int>(model.experts.count);
  return model;
}

std::vector<double> all_numbers(const Weights& weights) {
  std::vector<double> all;
  for (const auto& [name, values] : weights) all.insert(all.end(), values.begin(), values.end());
  return all;
}

// As of dense models in device_worker_test.cc: three times the error of one kernel.
void expect_expert_gradients(const RunSpec& spec, const Schedule& schedule) {
  const Element element = spec.precision == Precision::float16 ? Element::float16 : Element::bfloat16;
  const RunPlan plan(spec, schedule);
  const test::Trained trained = train_experts(plan);
  const OneDevice one(spec.model);
  const Weights initial = one.initial(spec.seed);
  Weights rounded = initial;
  for (auto& [name, values] : rounded) values = test::rounded(element, values);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), kExpertTokens, 7);
  const OneDevice::Result reference =
      one.gradient(rounded, tokens, 0, 0, plan.sequences_per_batch(), 1 / plan.tokens_per_batch());
  EXPECT_NEAR(trained.report.runs.at(0).losses.at(0), reference.loss / plan.tokens_per_batch(), 2e-3);
  Weights gradients = initial;
  for (auto& [name, values] : gradients) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= trained.weights.at(name)[i];
  }
  EXPECT_LT(test::relative_error(all_numbers(gradients), all_numbers(reference.gradients)),
            3 * test::allowed_error(element));
}

Schedule expert_schedule(const std::string& name, int ranks, int microbatches) {
  const Family& family = find_family(name);
  FamilyParams params{.ranks = ranks, .microbatches = microbatches};
  if (family.name == "hanayo") params.chunks = 2;
  params.shape = family.sliced ? MicrobatchShape{1, {5, 4, 3}} : MicrobatchShape{1, {12}};
  return make_schedule(family, params);
}

TEST(DeviceExperts, GradientsMatchOneDeviceInEveryFamily) {
  int tried = 0;
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.vocabulary_barriers > 0) continue;
    ++tried;
    if (test::small_scope() && tried % 6 != 0) continue;
    SCOPED_TRACE(family.name);
    const Schedule schedule = expert_schedule(std::string(family.name), 2, family.name == "hanayo" ? 2 : 4);
    const int stages = schedule.num_stages();
    const Transformer model = tried % 2 == 0 ? test::small_expert_gpt(stages) : test::small_mixtral(stages);
    expect_expert_gradients(expert_descent(with_all_experts(model)), schedule);
  }
  EXPECT_GE(tried, 20);
}

TEST(DeviceExperts, GradientsMatchOneDeviceInEveryLayout) {
  int tried = 0;
  for (const auto& [ep, data, tensor] :
       {std::tuple(1, 1, 1), {1, 2, 1}, {1, 1, 2}, {2, 1, 2}, {2, 2, 2}, {4, 4, 1}, {4, 2, 2}}) {
    for (const bool gated : {false, true}) {
      if (test::small_scope() && ++tried % 3 != 0) continue;
      SCOPED_TRACE(fmt::format("ep={} d={} t={} gated={}", ep, data, tensor, gated));
      const Schedule schedule = expert_schedule(gated ? "1f1b" : "zb-h1", 2, 4);
      RunSpec spec = expert_descent(with_all_experts(gated ? test::small_mixtral(2) : test::small_expert_gpt(2)));
      spec.expert_parallel = ep;
      spec.data_parallel = data;
      spec.tensor_parallel = tensor;
      spec.overlap_grad_reduce = gated;
      spec.recompute = gated && data == 2;
      if (!gated && tensor == 1) spec.precision = Precision::float16;
      expect_expert_gradients(spec, schedule);
    }
  }
}

// Two of four experts per token, on one rank and on four: the same choices, and hence nearly the same weights.
TEST(DeviceExperts, ResultsDoNotDependOnExpertParallelism) {
  const Schedule schedule = expert_schedule("1f1b", 2, 4);
  RunSpec spec = expert_descent(test::small_expert_gpt(2));
  spec.data_parallel = 4;
  spec.clip_gradients = 1;
  spec.expert_parallel = 1;
  const test::Trained together = train_experts(RunPlan(spec, schedule));
  for (const int ep : in_scope(std::vector{4, 2})) {
    SCOPED_TRACE(ep);
    spec.expert_parallel = ep;
    const test::Trained apart = train_experts(RunPlan(spec, schedule));
    EXPECT_NEAR(apart.report.runs.at(0).losses.at(0), together.report.runs.at(0).losses.at(0), 1e-5);
    EXPECT_NEAR(apart.report.runs.at(0).gradient_norm, together.report.runs.at(0).gradient_norm, 1e-4);
    EXPECT_LT(test::relative_difference(apart.weights, together.weights), 1e-4);
  }
}

TEST(DeviceExperts, LossesAndNormsFollowThoseOfTheCpu) {
  const Schedule schedule = expert_schedule("dualpipe", 2, 4);
  RunSpec spec{.model = test::small_expert_gpt(schedule.num_stages()), .data_parallel = 2, .expert_parallel = 2};
  spec.optimizer.learning_rate = 3e-3;
  spec.clip_gradients = 1;
  TrainingOptions options;
  options.runs = 4;
  const test::Trained cpu = train_experts(RunPlan(spec, schedule), options);
  for (const Precision precision : in_scope(std::vector{Precision::bfloat16, Precision::float16})) {
    spec.precision = precision;
    spec.kernels = device_kernels();
    const test::Trained device = train_experts(RunPlan(spec, schedule), options);
    for (std::size_t run = 0; run < 4; ++run) {
      EXPECT_NEAR(device.report.runs[run].losses.at(0), cpu.report.runs[run].losses.at(0), 0.02);
      EXPECT_NEAR(device.report.runs[run].gradient_norm / cpu.report.runs[run].gradient_norm, 1, 0.05);
    }
  }
}

// Bitwise: gradients are added in the same order.
TEST(DeviceExperts, WovenBlocksEqualSerialBlocks) {
  for (const char* const family : {"combined-1f1b", "dualpipe", "dualpipe-v"}) {
    for (const auto& [ep, data, tensor] : {std::tuple(2, 2, 1), {2, 1, 2}, {4, 2, 2}}) {
      const bool v_shaped = std::string_view(family) == "dualpipe-v";
      if (v_shaped != (data * tensor == 4)) continue;
      if (test::small_scope() && !v_shaped && (tensor == 1) != (std::string_view(family) == "dualpipe")) continue;
      SCOPED_TRACE(fmt::format("{} ep={} d={} t={}", family, ep, data, tensor));
      const Schedule schedule = expert_schedule(family, 2, 4);
      const int layers = 2 * schedule.num_stages();
      RunSpec spec = expert_descent(tensor == 1 ? test::small_mixtral(layers) : test::small_expert_gpt(layers));
      spec.expert_parallel = ep;
      spec.data_parallel = data;
      spec.tensor_parallel = tensor;
      spec.clip_gradients = 1;
      TrainingOptions options;
      options.runs = 2;
      const RunPlan woven(spec, schedule);
      EXPECT_TRUE(woven.has_woven_blocks());
      spec.weave = {};
      const RunPlan serial(spec, schedule);
      EXPECT_FALSE(serial.has_woven_blocks());
      const test::Trained expected = train_experts(serial, options);
      const test::Trained trained = train_experts(woven, options);
      EXPECT_EQ(trained.weights, expected.weights);
      EXPECT_EQ(trained.report.runs.at(1).losses, expected.report.runs.at(1).losses);
      EXPECT_EQ(trained.report.runs.at(1).gradient_norm, expected.report.runs.at(1).gradient_norm);
    }
  }
}

TEST(DeviceExperts, ResultsDoNotDependOnTheWeave) {
  const Schedule schedule = expert_schedule("dualpipe", 2, 8);
  RunSpec spec = expert_descent(test::small_expert_gpt(2 * schedule.num_stages()));
  const test::Trained expected = train_experts(RunPlan(spec, schedule));
  std::vector<Weave> weaves = {find_weave("whole-backward")};
  for (std::size_t i = 0; i < all_weaves().size(); i += test::small_scope() ? 100 : 25) {
    weaves.push_back(all_weaves()[i]);
  }
  for (const Weave& weave : weaves) {
    SCOPED_TRACE(weave.name);
    spec.weave = weave;
    EXPECT_EQ(train_experts(RunPlan(spec, schedule)).weights, expected.weights);
  }
}

// Parts lie within their ops, and the exchanges of woven blocks, which take longer, beside computing parts.
TEST(DeviceExperts, PartsAreTimedOnBothStreams) {
  const Schedule schedule = expert_schedule("dualpipe", 2, 8);
  RunSpec spec = expert_descent(test::small_mixtral(2 * schedule.num_stages()));
  TrainingOptions options;
  options.runs = 2;
  options.keep_times = KeepTimes::last;
  options.faults = {parse_fault("latency:seconds=0.001")};
  for (const bool woven : {true, false}) {
    if (!woven) spec.weave = {};
    const RunPlan plan(spec, schedule);
    const test::Trained trained = train_experts(plan, options);
    const auto& clocks = trained.report.runs.back().clocks;
    ASSERT_EQ(clocks.size(), 2U);
    for (const WorkerClock& clock : clocks) {
      EXPECT_GT(clock.parts.size(), 8U * 2 * 8);
      for (const auto& [vertex, time] : clock.parts) {
        EXPECT_LE(clock.starts[vertex], time.start_ns);
        EXPECT_LE(time.start_ns, time.end_ns);
        EXPECT_LE(time.end_ns, clock.ends[vertex]);
      }
    }
    for (const ExchangeOverlap& rank : exchange_overlap(plan, clocks)) {
      EXPECT_GT(rank.seconds, 0);
      EXPECT_EQ(rank.hidden_s > 0, woven);
    }
  }
}

// Members of a group of three send different numbers of blocks to each other, also none.
TEST(DeviceExperts, DevicesOfAProcessExchangeBlocks) {
  std::vector<emulation::EmulatedDeviceSpec> specs(3);
  std::vector<std::unique_ptr<Device>> held;
  RunDevices devices{.kernels = device_kernels()};
  for (int rank = 0; rank < 3; ++rank) {
    specs[static_cast<std::size_t>(rank)].ordinal = rank;
    held.push_back(emulation::make_device(specs[static_cast<std::size_t>(rank)]));
    devices.devices.push_back(held.back().get());
  }
  on_device_threads(3, devices, [](Transport& transport, const WorkerDevice& mine) {
    const auto connection =
        mine.transport->connect({.edges = {}, .groups = {{0, 1, 2}}, .exchanges = {0}}, *mine.device);
    for (int round = 0; round < 3; ++round) test::expect_exchange(*connection->group(0), *mine.device, round);
    transport.barrier();
  });
}

TEST(DeviceExperts, RankThatHangsIsAtFault) {
  const Schedule schedule = expert_schedule("dualpipe", 2, 8);
  const RunPlan plan(expert_descent(test::small_expert_gpt(schedule.num_stages())), schedule);
  std::string what;
  for (const std::int64_t seconds : {1, 8, 64}) {
    const test::TemporaryFolder folder;
    TrainingOptions options;
    options.runs = 3;
    options.faults = {parse_fault("stop:rank=1,op=F,mb=1,step=2")};
    options.supervision.folder = folder.path();
    options.supervision.limits.floor_ns = seconds * 1'000'000'000;
    try {
      train_experts(plan, options);
    } catch (const RunFailure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::stuck);
      what = failure.what();
    }
    if (what.find("rank 1 (pipeline 0, data 1, tensor 0)") != std::string::npos) break;
  }
  EXPECT_THAT(what, HasSubstr("rank 1 (pipeline 0, data 1, tensor 0)"));
}

}  // namespace
}  // namespace sluice::test
