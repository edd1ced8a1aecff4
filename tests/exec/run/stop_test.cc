// How the workers of a run end it together, and what that costs in messages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "exec/run/training_run.h"
#include "exec/transport/tcp.h"
#include "exec/transport/threads.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "tests/support/first_says.h"
#include "tests/support/forwarding_transport.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

using ::testing::Each;

constexpr int kRanks = 4;
constexpr std::int64_t kStopTokens = 6;
constexpr int kNeverAsked = 1000;

RunPlan stop_plan() {
  const RunSpec spec{.model = test::small_gpt(kRanks)};
  return {spec, make_schedule(find_family("1f1b"), {.ranks = kRanks, .microbatches = 4, .shape = {1, {kStopTokens}}})};
}

struct Ended {
  std::vector<std::int64_t> stopped_at = std::vector<std::int64_t>(kRanks, 0);  // by rank, in steps; 0: not stopped
  TrainingReport report;
};

// Trains; `asker` is asked to stop when it has done `asked` steps. Hooks after a run are due after each `every` steps.
Ended run_until(int asker, int asked, int every, TrainingOptions common,
                const std::function<void(const std::function<void(Transport&)>&)>& on_ranks) {
  const RunPlan plan = stop_plan();
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(plan.spec().model.vocab), kStopTokens, 5);
  Ended ended;
  on_ranks([&](Transport& transport) {
    const int rank = transport.rank();
    std::atomic<bool> stop{false};
    TrainingOptions options = common;
    options.stop = &stop;
    const WorkerHooks hooks{
        .after_run = [](Worker&, Transport& all, std::int64_t) { all.barrier(); },
        .is_due =
            [&](std::int64_t steps_done) {
              if (rank == asker && steps_done == asked) stop = true;
              return steps_done % every == 0;
            },
        .at_stop = [&](Worker&, Transport&, std::int64_t steps_done) { ended.stopped_at[to_size(rank)] = steps_done; }};
    TrainingReport of_others;
    train_as_process(plan, transport, tokens, options, rank == 0 ? ended.report : of_others, hooks);
  });
  return ended;
}

void over_threads(const std::function<void(Transport&)>& work) { on_threads(kRanks, work); }

// On a CPU, only control messages go over TCP between hosts: the others stay with the threads.
class ControlOverTcp final : public ForwardingTransport {
 public:
  ControlOverTcp(Transport& inner, Transport& control) : ForwardingTransport(inner), control_(control) {}
  void post_send(Message& message) override {
    is_control(message.channel) ? control_.post_send(message) : ForwardingTransport::post_send(message);
  }
  void post_receive(Message& message) override {
    is_control(message.channel) ? control_.post_receive(message) : ForwardingTransport::post_receive(message);
  }
  bool poll(Message& message) override {
    return is_control(message.channel) ? control_.poll(message) : ForwardingTransport::poll(message);
  }
  std::uint32_t changes(Channel channel) const override {
    return is_control(channel) ? control_.changes(channel) : ForwardingTransport::changes(channel);
  }
  void sleep(Channel channel, std::uint32_t seen) override {
    is_control(channel) ? control_.sleep(channel, seen) : ForwardingTransport::sleep(channel, seen);
  }

 private:
  static bool is_control(Channel channel) { return channel == Channel::control; }
  Transport& control_;
};

void over_tcp(const std::function<void(Transport&)>& work) {
  test::FirstSays said;
  on_threads(kRanks, [&](Transport& transport) {
    const auto control =
        make_tcp_transport(transport.rank(), kRanks, said.to(transport.rank()), std::chrono::milliseconds(120000));
    ControlOverTcp both(transport, *control);
    work(both);
  });
}

TEST(Stop, EndsAllWorkersAfterTheCurrentRun) {
  for (const auto& on_ranks : {over_threads, over_tcp}) {
    for (int asker = 0; asker < kRanks; ++asker) {
      for (const int every : {1, 2, kNeverAsked}) {
        SCOPED_TRACE(testing::Message() << "rank " << asker << " is asked, hooks every " << every << " steps");
        const Ended ended = run_until(asker, 3, every, {.runs = 8}, on_ranks);
        EXPECT_THAT(ended.stopped_at, Each(3));
        EXPECT_TRUE(ended.report.interrupted);
        EXPECT_EQ(ended.report.runs.size(), 3U);
      }
    }
  }
}

// One worker is late in the step in which another one is asked to stop.
TEST(Stop, EndsAllWorkersTogetherDespiteADelay) {
  for (const int late : {0, 2}) {
    TrainingOptions options{.runs = 8};
    options.faults = {parse_fault("delay:rank=" + std::to_string(late) + ",op=B,mb=3,step=3,seconds=0.1")};
    EXPECT_THAT(run_until(3, 3, kNeverAsked, options, over_threads).stopped_at, Each(3));
    EXPECT_THAT(run_until(3, 2, kNeverAsked, options, over_threads).stopped_at, Each(2));
  }
}

TEST(Stop, IsIgnoredInTheLastRun) {
  const Ended ended = run_until(1, 4, kNeverAsked, {.runs = 4}, over_threads);
  EXPECT_FALSE(ended.report.interrupted);
  EXPECT_THAT(ended.stopped_at, Each(0));
}

// A run of the graph takes one gather, of two messages per rank, and one broadcast.
TEST(Stop, ARunTakesThreeControlMessagesPerRank) {
  const auto messages_of = [](int runs) {
    std::atomic<int> count{0};
    run_until(0, kNeverAsked, kNeverAsked, {.runs = runs}, [&](const std::function<void(Transport&)>& work) {
      over_threads([&](Transport& transport) {
        CountingTransport counting(transport, count);
        work(counting);
      });
    });
    return count.load();
  };
  EXPECT_EQ(messages_of(6) - messages_of(2), 4 * 3 * (kRanks - 1));
}

}  // namespace
}  // namespace sluice::test
