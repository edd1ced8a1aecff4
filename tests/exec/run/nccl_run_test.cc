// Runs of processes that communicate only through NCCL, on the fake: bitwise the same as runs of threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "exec/device/provider.h"
#include "exec/run/run_devices.h"
#include "exec/run/training_run.h"
#include "exec/transport/nccl.h"
#include "exec/transport/tcp.h"
#include "exec/watch/failure.h"
#include "kernels/device_kernels.h"
#include "kernels/emulation/device.h"
#include "model/schedule/family.h"
#include "tests/support/command.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/first_says.h"
#include "tests/support/forwarding_transport.h"
#include "tests/support/golden.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kNcclTokens = 12;

struct Process {
  TrainingReport report;
  std::string error;
  std::int64_t stopped_at = 0;  // in steps; 0: it was not stopped
};

// Which process is asked to stop, after how many steps.
struct AskedToStop {
  int rank = -1;
  std::int64_t steps = 0;
};

class NcclRun : public ::testing::Test {
 protected:
  // Each process is a thread with its own device, connected to the others only through NCCL.
  std::vector<Process> run_processes(const RunPlan& plan, const TrainingOptions& common, AskedToStop asked = {}) {
    const int size = plan.layout().size();
    std::vector<Process> processes(static_cast<std::size_t>(size));
    weights_.clear();
    test::FirstSays said;
    std::mutex mutex;
    std::vector<Transport*> controls;
    std::latch ended(size);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto broadcast = said.to(rank);
        Process& process = processes[rank];
        emulation::EmulatedDeviceSpec device_spec;
        device_spec.counters = &counters_;
        const auto device = emulation::make_device(device_spec);
        std::unique_ptr<Transport> tcp;
        std::optional<CountingTransport> control;
        std::optional<NcclWorld> world;
        try {
          tcp = make_tcp_transport(rank, size, broadcast, milliseconds(120000));
          control.emplace(*tcp, control_messages_);
          world.emplace(fake_.functions(), *device, *control,
                        NcclOptions{.patience = milliseconds(120000), .abort_budget = milliseconds(20000)});
          {
            const std::lock_guard lock(mutex);
            controls.push_back(&*control);
          }
          RunDevices devices{.kernels = device_kernels(), .transport = &world->devices()};
          devices.devices.resize(static_cast<std::size_t>(size));
          devices.devices[rank] = device.get();
          TrainingOptions options = common;
          options.devices = &devices;
          std::atomic<bool> stop{false};
          options.stop = &stop;
          // Reports overlap with the next run.
          const std::int64_t last = common.runs * plan.batches();
          const WorkerHooks hooks{
              .after_run =
                  [&](Worker& worker, Transport&, std::int64_t) {
                    const std::lock_guard lock(mutex);
                    test::add_weights(plan, worker, weights_);
                  },
              .is_due =
                  [&](std::int64_t steps_done) {
                    if (rank == asked.rank && steps_done == asked.steps) stop = true;
                    return steps_done == last;
                  },
              .at_stop = [&](Worker&, Transport&, std::int64_t steps_done) { process.stopped_at = steps_done; }};
          const RunObserver observer = [&](const RunReport& run) {
            if (run.first_step == 0) counters_.most_pending = 0;  // without what happens before the first run
          };
          train_as_process(plan, *control, tokens_, options, process.report, hooks, observer);
        } catch (const std::exception& error) {
          process.error = error.what();
          // As a launcher terminates the others.
          const std::lock_guard lock(mutex);
          for (Transport* const each : controls) {
            if (!each->stopped()) each->stop();
          }
        }
        ended.arrive_and_wait();
      });
    }
    threads.clear();
    EXPECT_THAT(fake_.misuse(), IsEmpty());
    EXPECT_EQ(fake_.alive(), 0);
    return processes;
  }

  void expect_same_as_threads(const RunSpec& spec, const Schedule& schedule) {
    const RunPlan plan(spec, schedule);
    TrainingOptions options;
    options.runs = 2;
    const std::vector<Process> processes = run_processes(plan, options);
    for (const Process& process : processes) EXPECT_EQ(process.error, "");
    const auto held = device_provider()->open({.kind = DeviceRequest::green, .count = plan.layout().size()});
    RunDevices devices{.kernels = device_kernels()};
    for (const auto& device : held) devices.devices.push_back(device.get());
    options.devices = &devices;
    const test::Trained threads = test::train(plan, tokens_, options);
    ASSERT_EQ(processes[0].report.runs.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(processes[0].report.runs[i].losses, threads.report.runs[i].losses);
    }
    EXPECT_EQ(test::relative_difference(weights_, threads.weights), 0);
  }

  static RunSpec spec_of(int layers) {
    RunSpec spec{.model = test::small_gpt(layers), .precision = Precision::bfloat16, .kernels = device_kernels()};
    spec.optimizer.learning_rate = 1e-2;
    return spec;
  }
  static Schedule schedule_of(const std::string& name, int ranks, int microbatches = 4) {
    const Family& family = find_family(name);
    FamilyParams params{.ranks = ranks, .microbatches = microbatches};
    params.shape = family.sliced ? MicrobatchShape{1, {5, 4, 3}} : MicrobatchShape{1, {12}};
    return make_schedule(family, params);
  }

  test::FakeNccl fake_;
  emulation::Counters counters_;          // of all processes
  std::atomic<int> control_messages_{0};  // likewise
  TokenSource tokens_ = TokenSource::synthetic(32, kNcclTokens, 7);
  test::Weights weights_;
};

TEST_F(NcclRun, FourProcessesMatchThreads) {
  const std::vector<std::string> families = {"seq1f1b", "1f1b", "interleaved-1f1b", "zb-v", "dualpipe", "seq1f1b-zb2p"};
  for (const std::string& name : in_scope(families)) {
    SCOPED_TRACE(name);
    const Schedule schedule = schedule_of(name, 4, 8);
    expect_same_as_threads(spec_of(schedule.num_stages()), schedule);
  }
}

TEST_F(NcclRun, DataAndTensorParallelProcessesMatchThreads) {
  RunSpec spec = spec_of(2);
  spec.data_parallel = 2;
  expect_same_as_threads(spec, schedule_of("1f1b", 2));
  spec.overlap_grad_reduce = true;
  spec.tensor_parallel = 2;
  expect_same_as_threads(spec, schedule_of("seq1f1b", 2));
}

// Tokens of experts within replicas, across them, and in woven blocks.
TEST_F(NcclRun, ProcessesWithExpertsMatchThreads) {
  for (const auto& [name, data, tensor, expert] :
       {std::tuple("1f1b", 2, 1, 2), {"dualpipe", 2, 1, 2}, {"zb-h1", 2, 2, 4}}) {
    SCOPED_TRACE(name);
    const Schedule schedule = schedule_of(name, 2, 8);
    RunSpec spec = spec_of(schedule.num_stages());
    spec.model = test::small_expert_gpt(schedule.num_stages());
    spec.data_parallel = data;
    spec.tensor_parallel = tensor;
    spec.expert_parallel = expert;
    spec.clip_gradients = 1;
    expect_same_as_threads(spec, schedule);
  }
}

// The queue of a stream is limited: a rank that enqueues a long op whose input waits for an answer to a message that is
// not yet enqueued would wait for ever.
TEST_F(NcclRun, OpsLongerThanTheQueueOfAStreamDoNotHang) {
  RunSpec spec = spec_of(2 * 70);
  spec.clip_gradients = 1;
  const RunPlan plan(spec, schedule_of("1f1b", 2, 3));
  TrainingOptions options;
  const test::TemporaryFolder folder;
  options.runs = 2;
  options.supervision.folder = folder.path();
  options.supervision.limits.floor_ns = 20'000'000'000;
  const std::vector<Process> processes = run_processes(plan, options);
  for (const Process& process : processes) EXPECT_EQ(process.error, "");
  EXPECT_LT(counters_.most_pending, 1024);
}

// The decision travels with the report of a run, while the next one computes.
TEST_F(NcclRun, StopEndsAllProcessesAfterTheSameStep) {
  const RunPlan plan(spec_of(4), schedule_of("1f1b", 4));
  for (const int rank : {0, 3}) {
    TrainingOptions options;
    options.runs = 6;
    options.faults = {parse_fault("delay:rank=2,op=B,mb=1,step=4,seconds=0.05")};
    for (const Process& process : run_processes(plan, options, {.rank = rank, .steps = 3})) {
      EXPECT_EQ(process.error, "");
      EXPECT_EQ(process.stopped_at, 4);
    }
  }
}

// A gather of two messages per rank, and a broadcast. None of them is a message between devices.
TEST_F(NcclRun, ARunTakesThreeControlMessagesPerRank) {
  const RunPlan plan(spec_of(4), schedule_of("1f1b", 4));
  const auto messages_of = [&](int runs) {
    control_messages_ = 0;
    TrainingOptions options;
    options.runs = runs;
    run_processes(plan, options);
    return control_messages_.load();
  };
  EXPECT_EQ(messages_of(4) - messages_of(2), 2 * 3 * 3);
}

// A rank that fails ends the run of all ranks: none hangs on its device.
TEST_F(NcclRun, FailureOfOneRankEndsAll) {
  const RunPlan plan(spec_of(2), schedule_of("1f1b", 2));
  TrainingOptions options;
  options.runs = 3;
  options.faults = {parse_fault("nan:op=F,stage=1,mb=1,step=1")};
  options.supervision.patience = milliseconds(20000);
  const std::vector<Process> processes = run_processes(plan, options);
  EXPECT_THAT(processes[1].error, HasSubstr("not finite"));
}

}  // namespace
}  // namespace sluice::test
