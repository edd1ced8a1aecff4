// Runs on emulated devices: the same graphs, gradients, losses and faults as on the CPU.

#include "exec/run/device_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/device/provider.h"
#include "exec/measure/measured_timeline.h"
#include "exec/run/run_devices.h"
#include "exec/watch/failure.h"
#include "kernels/device_kernels.h"
#include "kernels/emulation/device.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "tests/support/all_schedules.h"
#include "tests/support/command.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/one_device.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::int64_t kDeviceTokens = 15;

// `count` emulated devices.
struct Devices {
  explicit Devices(int count)
      : held(device_provider()->open({.kind = DeviceRequest::green, .count = count})),
        all{.kernels = device_kernels()} {
    for (const auto& device : held) all.devices.push_back(device.get());
  }
  explicit Devices(const std::vector<emulation::EmulatedDeviceSpec>& specs) : all{.kernels = device_kernels()} {
    for (const auto& spec : specs) {
      held.push_back(emulation::make_device(spec));
      all.devices.push_back(held.back().get());
    }
  }
  std::vector<std::unique_ptr<Device>> held;
  RunDevices all;
};

RunSpec device_descent(const Transformer& model, Precision precision = Precision::bfloat16) {
  RunSpec spec{.model = model, .precision = precision, .kernels = device_kernels()};
  spec.optimizer.kind = OptimizerStep::Kind::sgd;
  spec.optimizer.learning_rate = 1;
  return spec;
}

test::Trained train(const RunPlan& plan, const TokenSource& tokens, TrainingOptions options = {}) {
  const Devices devices(plan.layout().size());
  options.devices = &devices.all;
  return test::train(plan, tokens, options);
}

MicrobatchShape uneven_slices(int k) {
  switch (k) {
    case 1: return {1, {15}};
    case 2: return {1, {9, 6}};
    case 3: return {1, {7, 5, 3}};
    default: return {1, {6, 4, 3, 2}};
  }
}

std::vector<double> flat(const Weights& weights) {
  std::vector<double> all;
  for (const auto& [name, values] : weights) all.insert(all.end(), values.begin(), values.end());
  return all;
}

Weights difference_of(const Weights& a, const Weights& b) {
  Weights out = a;
  for (auto& [name, values] : out) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= b.at(name)[i];
  }
  return out;
}

// The gradients of one device in double precision, from weights rounded to 16 bits.
OneDevice::Result reference_of(const RunPlan& plan, const TokenSource& tokens, Element element) {
  const OneDevice device(plan.spec().model);
  Weights weights = device.initial(plan.spec().seed);
  for (auto& [name, values] : weights) values = test::rounded(element, values);
  return device.gradient(weights, tokens, 0, 0, plan.sequences_per_batch(), 1 / plan.tokens_per_batch());
}

// A pass through some layers in 16 bits has an error of a few kernels: allow three times that of one kernel. An op that
// is missing, duplicated or reads a wrong buffer causes an error above 0.1.
void expect_device_gradients(const RunSpec& spec, const Schedule& schedule) {
  const Element element = spec.precision == Precision::float16 ? Element::float16 : Element::bfloat16;
  const RunPlan plan(spec, schedule);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), kDeviceTokens, 7);
  const test::Trained trained = train(plan, tokens);
  const OneDevice::Result reference = reference_of(plan, tokens, element);
  EXPECT_NEAR(trained.report.runs.at(0).losses.at(0), reference.loss / plan.tokens_per_batch(), 2e-3);
  const Weights gradients = difference_of(OneDevice(spec.model).initial(spec.seed), trained.weights);
  EXPECT_LT(test::relative_error(flat(gradients), flat(reference.gradients)), 3 * test::allowed_error(element));
}

Schedule schedule_of(const std::string& name, int k, int ranks = 4, int m = 4) {
  const Family& family = find_family(name);
  FamilyParams params{.ranks = ranks, .microbatches = m};
  if (family.name == "hanayo") params.chunks = 2;
  params.shape = uneven_slices(family.sliced ? k : 1);
  return make_schedule(family, params);
}

TEST(DeviceWorker, GradientsMatchOneDeviceInEveryFamily) {
  int seen = 0;
  int tried = 0;
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.vocabulary_barriers > 0) continue;
    ++seen;
    if (small_scope() && seen % 4 != 0) continue;
    SCOPED_TRACE(family.name);
    const bool hanayo = family.name == "hanayo";
    const Schedule schedule = schedule_of(std::string(family.name), 3, 4, hanayo ? 4 : 8);
    const int layers = schedule.num_stages();
    expect_device_gradients(device_descent(tried % 2 == 0 ? test::small_gpt(layers) : test::small_llama(layers)),
                            schedule);
    ++tried;
  }
  EXPECT_GE(seen, 20);
  EXPECT_GE(tried, 5);
}

TEST(DeviceWorker, GradientsMatchOneDeviceWithDataAndTensorParallelism) {
  for (const char* const name : {"1f1b", "interleaved-1f1b", "seq1f1b-zb2p", "zb-v", "dualpipe"}) {
    for (const auto& [data, tensor] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
      if (small_scope() && data * tensor != 4) continue;
      SCOPED_TRACE(std::string(name) + " d=" + std::to_string(data) + " t=" + std::to_string(tensor));
      const Schedule schedule = schedule_of(name, 3, 2);
      RunSpec spec = device_descent(tensor == 1 ? test::small_gpt(schedule.num_stages())
                                                : test::small_llama(schedule.num_stages()));
      spec.data_parallel = data;
      spec.overlap_grad_reduce = tensor == 1;
      spec.tensor_parallel = tensor;
      expect_device_gradients(spec, schedule);
    }
  }
}

// Slices of 8 tokens x 16 x 2 bytes can be halved; a rank that gets a wrong half has other results.
TEST(DeviceWorker, ScatterGatherDoesNotChangeResults) {
  FamilyParams params{.ranks = 2, .microbatches = 4};
  params.shape = {1, {8, 8}};
  const Schedule schedule = make_schedule(find_family("seq1f1b"), params);
  RunSpec spec = device_descent(test::small_llama(2));
  spec.tensor_parallel = 2;
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), 16, 7);
  const RunPlan shared(spec, schedule);
  spec.scatter_gather = false;
  const RunPlan whole(spec, schedule);
  EXPECT_EQ(train(shared, tokens).weights, train(whole, tokens).weights);
}

TEST(DeviceWorker, GradientsMatchOneDeviceInFloat16AndWithRecomputation) {
  for (const char* const name : {"gpipe", "seq1f1b", "zb-v"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = schedule_of(name, 4, 2);
    expect_device_gradients(device_descent(test::small_llama(schedule.num_stages()), Precision::float16), schedule);
    RunSpec spec = device_descent(test::small_gpt(schedule.num_stages()));
    spec.recompute = true;
    expect_device_gradients(spec, schedule);
  }
}

RunSpec adam(const DeviceKernels* kernels, Precision precision, bool clip) {
  RunSpec spec{.model = test::small_gpt(2), .precision = precision, .kernels = kernels};
  spec.optimizer.learning_rate = 3e-3;
  spec.clip_gradients = clip ? 1 : 0;
  return spec;
}

// Adam divides by the root of what is nearly zero at first, so that rounding changes single weights; losses stay close.
TEST(DeviceWorker, LossesFollowThoseOfTheCpu) {
  for (const std::string name : {"1f1b", "seq1f1b", "zb-h1", "pipedream-2bw"}) {
    SCOPED_TRACE(name);
    const bool flush = name != "pipedream-2bw";
    Schedule schedule = schedule_of(name, 3, 2);
    const TokenSource tokens = TokenSource::synthetic(static_cast<int>(test::small_gpt(2).vocab), kDeviceTokens, 7);
    TrainingOptions options;
    options.runs = std::max(1, (small_scope() ? 3 : 8) / schedule.num_batches());
    const RunPlan on_cpu(adam(nullptr, Precision::float32, flush), schedule);
    const test::Trained cpu = test::train(on_cpu, tokens, options);
    for (const Precision precision : {Precision::bfloat16, Precision::float16}) {
      if (!flush && precision == Precision::float16) {
        EXPECT_THROW(RunPlan(adam(device_kernels(), precision, flush), schedule), InputError);
        continue;
      }
      const RunPlan plan(adam(device_kernels(), precision, flush), schedule);
      const test::Trained trained = train(plan, tokens, options);
      ASSERT_EQ(trained.report.runs.size(), cpu.report.runs.size());
      for (std::size_t run = 0; run < cpu.report.runs.size(); ++run) {
        for (std::size_t batch = 0; batch < cpu.report.runs[run].losses.size(); ++batch) {
          EXPECT_NEAR(trained.report.runs[run].losses[batch], cpu.report.runs[run].losses[batch], 0.02);
        }
        if (!flush) continue;
        EXPECT_NEAR(trained.report.runs[run].gradient_norm / cpu.report.runs[run].gradient_norm, 1, 0.05);
      }
    }
  }
}

TEST(DeviceWorker, ReportsTimesAndMemory) {
  const RunPlan plan(device_descent(test::small_gpt(4)), schedule_of("seq1f1b-zb1p", 3));
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kDeviceTokens, 7);
  TrainingOptions options;
  options.keep_times = KeepTimes::all;
  options.runs = 16;
  const test::Trained trained = train(plan, tokens, options);
  const OpGraph& graph = plan.graph();
  // The largest time by which an op starts before its input is complete. The clocks of two devices are related by
  // reading that of the host, which takes some microseconds, but may take longer in some of the runs if the host is
  // busy.
  Duration least_early = Duration::max();
  for (const RunReport& run : trained.report.runs) {
    ASSERT_EQ(run.clocks.size(), 4U);
    const Timeline timeline = measured_timeline(graph, run.clocks);
    Duration early{0};
    for (VertexId v = 0; v < graph.size(); ++v) {
      SCOPED_TRACE(graph.name(v));
      EXPECT_GT(timeline.end[v], Duration{0});
      EXPECT_GE(timeline.end[v], timeline.start[v]);
      if (graph[v].kind != VertexKind::compute) continue;
      for (const VertexId before : graph.needs(v)) early = std::max(early, timeline.end[before] - timeline.start[v]);
    }
    least_early = std::min(least_early, early);
  }
  EXPECT_LE(least_early, std::chrono::milliseconds(1));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GT(trained.report.workers[rank].held_bytes, plan.arena(static_cast<int>(rank)).standing_bytes);
    EXPECT_LE(trained.report.workers[rank].held_bytes, plan.arena(static_cast<int>(rank)).total_bytes);
  }
}

// Number of launches on the device of rank 0 when each run is reported, with a checkpoint after every `every` steps.
std::vector<std::int64_t> launches_at_reports(std::int64_t every, TrainingReport& report) {
  const RunPlan plan(device_descent(test::small_gpt(2)), schedule_of("1f1b", 1, 2));
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kDeviceTokens, 7);
  emulation::Counters counters;
  const Devices devices(std::vector<emulation::EmulatedDeviceSpec>{{.counters = &counters}, {}});
  TrainingOptions options;
  options.runs = 8;
  options.devices = &devices.all;
  std::vector<std::int64_t> launches;
  const WorkerHooks hooks{.after_run =
                              [&](Worker& worker, Transport&, std::int64_t steps_done) {
                                EXPECT_EQ(steps_done % every, 0);
                                if (worker.world_rank() > 0) return;
                                EXPECT_EQ(std::ssize(launches), steps_done);  // reported before the checkpoint
                              },
                          .is_due = [&](std::int64_t steps_done) { return steps_done % every == 0; }};
  train_with_threads(plan, tokens, options, report, hooks,
                     [&](const RunReport&) { launches.push_back(counters.launches); });
  return launches;
}

// A run is reported while the device works on the next one, unless a checkpoint is due.
TEST(DeviceWorker, ReportsOverlapWithTheNextRun) {
  TrainingReport between;
  const std::vector<std::int64_t> after_each = launches_at_reports(1, between);
  TrainingReport meanwhile;
  const auto began = std::chrono::steady_clock::now();
  const std::vector<std::int64_t> after_fourth = launches_at_reports(4, meanwhile);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  ASSERT_EQ(after_each.size(), 8U);
  ASSERT_EQ(after_fourth.size(), 8U);
  double seconds = 0;
  double wall = 0;
  for (std::size_t run = 0; run < 8; ++run) {
    if ((run + 1) % 4 == 0) {
      EXPECT_EQ(after_fourth[run], after_each[run]) << run;
    } else {
      EXPECT_GT(after_fourth[run], after_each[run]) << run;
    }
    EXPECT_EQ(meanwhile.runs[run].losses, between.runs[run].losses);
    EXPECT_EQ(meanwhile.runs[run].first_step, static_cast<std::int64_t>(run));
    EXPECT_GT(meanwhile.runs[run].seconds, 0);
    seconds += meanwhile.runs[run].seconds;
    wall += meanwhile.runs[run].wall_seconds;
  }
  EXPECT_GE(wall, seconds / 2);  // the ranks do not end at the same time
  EXPECT_LE(wall, took.count());
}

TEST(DeviceWorker, SkipsStepsThatOverflow) {
  LossScale scale(true);
  EXPECT_EQ(scale.value(), 65536);
  EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.value(), 32768);
  for (int i = 0; i < 999; ++i) EXPECT_TRUE(scale.update(false));
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_TRUE(scale.update(false));
  EXPECT_EQ(scale.value(), 65536);
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.update(true));
  EXPECT_FALSE(LossScale(false).update(true));
}

// After an error of a device every call fails, also in destructors: the run must end with the first error.
TEST(DeviceWorker, ErrorOfADeviceIsReported) {
  RunSpec spec = device_descent(test::small_gpt(2));
  spec.clip_gradients = 1;
  const RunPlan plan(spec, schedule_of("1f1b", 1, 2));
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kDeviceTokens, 7);
  for (const std::int64_t task : {1, 40, 150, 400}) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      SCOPED_TRACE(std::to_string(task) + " on rank " + std::to_string(rank));
      std::vector<emulation::EmulatedDeviceSpec> specs(2);
      specs[rank].name = "GPU of rank " + std::to_string(rank);
      specs[rank].fails_at = task;
      const Devices devices(specs);
      TrainingOptions options;
      options.runs = 4;
      options.devices = &devices.all;
      EXPECT_THAT(test::error_from<DeviceError>([&] { test::train(plan, tokens, options); }),
                  HasSubstr("on " + specs[rank].name + ": task " + std::to_string(task) + " fails"));
    }
  }
}

// Modules are loaded, and plans of libraries are built, before the first step: a step launches no kernel, and
// multiplies no shapes, that a rehearsal has not. It runs each kind of op once, a step as often as there are
// microbatches.
TEST(DeviceWorker, RehearsesEveryKernelWhenItIsCreated) {
  constexpr int kMicrobatches = 8;
  const auto expect_rehearsed = [](const RunSpec& spec, const Schedule& schedule, int workers) {
    const RunPlan plan(spec, schedule);
    const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), kDeviceTokens, 7);
    std::vector<emulation::Counters> counters(to_size(workers));
    std::vector<emulation::EmulatedDeviceSpec> specs;
    for (emulation::Counters& of : counters) specs.push_back({.counters = &of});
    const Devices devices(std::move(specs));
    on_device_threads(workers, devices.all, [&](Transport& transport, const WorkerDevice& device) {
      emulation::Counters& mine = counters[to_size(transport.rank())];
      const auto worker = make_worker(plan, transport.rank(), transport,
                                      {.tokens = &tokens,
                                       .device = device.device,
                                       .device_transport = device.transport,
                                       .queries = device.queries});
      const std::int64_t created = mine.launches;
      worker->initialise();
      const std::set<std::string> rehearsed = mine.kernels;
      const std::int64_t before = mine.launches;
      const double rate = 1e-3;
      worker->run(0, {&rate, 1}, {});
      worker->read_times();
      transport.barrier();
      std::vector<std::string> fresh;
      std::set_difference(mine.kernels.begin(), mine.kernels.end(), rehearsed.begin(), rehearsed.end(),
                          std::back_inserter(fresh));
      // The sums of workers in one process, none of which waits on the device.
      std::erase_if(fresh, [](const std::string& name) { return name.find("3AddI") != std::string::npos; });
      EXPECT_THAT(fresh, IsEmpty());
      EXPECT_GT(mine.launches - before, 0);
      EXPECT_GE(created * kMicrobatches, mine.launches - before);
      worker->settle();
      transport.barrier();
    });
  };
  for (const Precision precision : {Precision::bfloat16, Precision::float16}) {
    for (const double clip : {0.0, 1.0}) {
      RunSpec spec = device_descent(test::small_gpt(4), precision);
      spec.clip_gradients = clip;
      expect_rehearsed(spec, schedule_of("seq1f1b-zb1p", 2, 2, kMicrobatches), 2);
      spec.data_parallel = 2;
      expect_rehearsed(spec, schedule_of("1f1b", 1, 2, kMicrobatches), 4);
      spec = device_descent(test::small_llama(4), precision);
      spec.clip_gradients = clip;
      spec.tensor_parallel = 2;
      expect_rehearsed(spec, schedule_of("1f1b", 1, 2, kMicrobatches), 4);
    }
  }
}

// Threads that query events of one context concurrently contend in the driver of a GPU.
TEST(DeviceWorker, OneThreadAtATimeQueriesAGpu) {
  const RunPlan plan(device_descent(test::small_gpt(8)), schedule_of("1f1b", 1, 8, 16));
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kDeviceTokens, 7);
  emulation::Counters counters;
  const Devices devices(std::vector<emulation::EmulatedDeviceSpec>(8, {.counters = &counters}));
  TrainingOptions options;
  options.runs = 2;
  options.devices = &devices.all;
  const auto began = std::chrono::steady_clock::now();
  test::train(plan, tokens, options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(counters.most_querying, 1);
  // Each worker may look every 10 us, at 4 events that are not done: its first op and collective, the input of the op,
  // and what it awaits. Events that are done, four per op at most, are seen once.
  const double looks = 8 * took.count() / 10e-6;
  EXPECT_LE(static_cast<double>(counters.queries), 4 * looks + 4.0 * 2 * static_cast<double>(plan.graph().size()));
}

// The fault is in the second step. A busy machine may hold up another op for longer than a limit: then a longer one
// decides.
void expect_device_failure(const RunPlan& plan, const std::string& fault, FailureKind kind,
                           const ::testing::Matcher<const std::string&>& expected) {
  SCOPED_TRACE(fault);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kDeviceTokens, 7);
  std::optional<FailureKind> found;
  std::string what;
  for (const std::int64_t seconds : {1, 8, 64}) {
    const test::TemporaryFolder folder;
    TrainingOptions options;
    options.runs = 3;
    options.faults = {parse_fault(fault)};
    options.supervision.folder = folder.path();
    options.supervision.limits.floor_ns = seconds * 1'000'000'000;
    try {
      train(plan, tokens, options);
    } catch (const RunFailure& failure) {
      found = failure.kind();
      what = failure.what();
    }
    if (expected.Matches(what)) break;
  }
  EXPECT_EQ(found, kind);
  EXPECT_THAT(what, expected);
}

TEST(DeviceWorker, StopsAtANonFiniteResultAndReportsTheWaitForChain) {
  RunSpec spec = device_descent(test::small_gpt(2));
  spec.clip_gradients = 1;
  const RunPlan plan(spec, schedule_of("1f1b", 1, 2));
  expect_device_failure(plan, "nan:rank=0,op=F,mb=2,step=2", FailureKind::non_finite,
                        HasSubstr("F(stage 0, mb 2) of step 2 on rank 0 produced a value that is not finite"));
  expect_device_failure(plan, "nan:rank=1,op=global-norm,step=2", FailureKind::non_finite,
                        HasSubstr("the gradients of rank 1 are not finite in step 2, before global norm"));
  expect_device_failure(plan, "drop:rank=0,op=F,mb=2,step=2", FailureKind::stuck,
                        HasSubstr("rank 1 has waited for F(stage 1, mb 2)"));
  expect_device_failure(plan, "stop:rank=0,op=F,mb=2,step=2", FailureKind::stuck,
                        HasSubstr("rank 1 waits for F(stage 1, mb 2) from rank 0"));
  expect_device_failure(plan, "stop:rank=1,op=global-norm,step=2", FailureKind::stuck,
                        HasSubstr("the collective thread of rank 1 has been inside global norm"));
}

TEST(DeviceWorker, TensorRankThatHangsIsAtFault) {
  RunSpec spec = device_descent(test::small_gpt(2));
  spec.tensor_parallel = 2;
  const RunPlan plan(spec, schedule_of("1f1b", 1, 2));
  expect_device_failure(plan, "stop:rank=3,op=F,mb=0,step=2", FailureKind::stuck,
                        StartsWith("rank 3 (pipeline 1, data 0, tensor 1) has been inside F(stage 1, mb 0)"));
}

// A shard of 1.1 M numbers exceeds the 4 MiB that are copied at a time.
TEST(DeviceWorker, ReducesMemoryThatKernelsCannotAccess) {
  constexpr std::int64_t kCount = 2'200'000;
  for (const bool peer_access : {true, false}) {
    std::vector<emulation::EmulatedDeviceSpec> specs(2);
    for (int rank = 0; rank < 2; ++rank) {
      specs[to_size(rank)].ordinal = rank;
      specs[to_size(rank)].peer_access = peer_access;
    }
    const Devices devices(specs);
    on_device_threads(2, devices.all, [&](Transport& transport, const WorkerDevice& mine) {
      const auto connection = mine.transport->connect({.edges = {}, .groups = {{0, 1}}}, *mine.device);
      const auto stream = mine.device->make_stream(StreamPriority::normal);
      auto* const numbers = reinterpret_cast<float*>(mine.device->allocate(4 * kCount));
      for (std::int64_t i = 0; i < kCount; ++i) numbers[i] = static_cast<float>(i % 1000 + transport.rank());
      connection->group(0)->all_reduce_sum(numbers, kCount, Element::float32, *stream);
      connection->group(0)->all_reduce_max(numbers, 2, *stream);
      mine.device->synchronize(*stream);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < kCount; ++i) wrong += numbers[i] == static_cast<float>(2 * (i % 1000) + 1) ? 0 : 1;
      EXPECT_EQ(wrong, 0);
      transport.barrier();
    });
  }
}

TEST(DeviceWorker, LeavesAMarginOfTheMemory) {
  const RunPlan plan(device_descent(test::small_gpt(2)), schedule_of("1f1b", 1, 2));
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kDeviceTokens, 7);
  const std::int64_t arena = std::max(plan.arena(0).total_bytes, plan.arena(1).total_bytes);
  const auto train_with = [&](std::int64_t memory, std::int64_t margin) {
    Devices devices(std::vector<emulation::EmulatedDeviceSpec>{{.ordinal = 0, .memory_bytes = memory},
                                                               {.ordinal = 1, .memory_bytes = memory}});
    devices.all.memory_margin = margin;
    TrainingOptions options;
    options.devices = &devices.all;
    test::train(plan, tokens, options);
  };
  EXPECT_NO_THROW(train_with(arena + kDefaultMemoryMargin, kDefaultMemoryMargin));
  EXPECT_NO_THROW(train_with(arena + (1 << 20), 0));  // for what is not in the arena
  EXPECT_THAT(test::error_from<DoesNotFit>([&] { train_with(arena + kDefaultMemoryMargin - 1, kDefaultMemoryMargin); }),
              HasSubstr("GiB are free, of which 0.50 GiB are kept free (--device-memory-margin)"));
}

TEST(DeviceWorker, ThrowsIfTheArenaDoesNotFit) {
  Transformer model = test::small_gpt(2);
  model.vocab = 8'000'000;  // x 16 x (2 + 4 + 12) bytes: more than the GiB that an emulated device has
  const RunPlan plan(device_descent(model), schedule_of("1f1b", 1, 2));
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(model.vocab), kDeviceTokens, 7);
  EXPECT_THROW(train(plan, tokens), DoesNotFit);
}

}  // namespace
}  // namespace sluice::test
