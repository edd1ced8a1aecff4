#include "exec/run/faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "exec/run/training_run.h"
#include "exec/transport/tcp.h"
#include "exec/transport/threads.h"
#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "tests/support/errors.h"
#include "tests/support/first_says.h"
#include "tests/support/forwarding_transport.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  return test::error_from([&] { parse_fault(text); }, "none");
}

TEST(Faults, AreParsed) {
  const Fault fault = parse_fault("delay:rank=1,op=F,stage=1,mb=2,step=3,seconds=2.5");
  EXPECT_EQ(fault.kind, FaultKind::delay);
  EXPECT_EQ(fault.vertex, VertexKind::compute);
  EXPECT_EQ(fault.op, OpKind::F);
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.stage, 1);
  EXPECT_EQ(fault.microbatch, 2);
  EXPECT_EQ(fault.step, 3);
  EXPECT_EQ(fault.slice, std::nullopt);
  EXPECT_EQ(fault.delay, std::chrono::milliseconds(2500));
  EXPECT_EQ(fault.text, "delay:rank=1,op=F,stage=1,mb=2,step=3,seconds=2.5");

  EXPECT_EQ(parse_fault("kill").kind, FaultKind::kill);
  EXPECT_EQ(parse_fault("stop:").kind, FaultKind::stop);
  EXPECT_EQ(parse_fault("nan:op=W,slice=3").slice, 3);
  EXPECT_EQ(parse_fault("kill:op=optimizer").vertex, VertexKind::optimizer);
  EXPECT_EQ(parse_fault("stop:op=global-norm").collective, CollectiveKind::global_norm);
  EXPECT_EQ(parse_fault("stop:op=parameter-gather").collective, CollectiveKind::parameter_gather);
  EXPECT_EQ(parse_fault("drop:op=I").op, OpKind::I);
  EXPECT_EQ(parse_fault("latency:seconds=0.5").delay, std::chrono::milliseconds(500));
}

TEST(Faults, ParseErrorsNameTheKey) {
  EXPECT_EQ(error_of("dealy:rank=1"),
            "--fault 'dealy:rank=1': expected delay, drop, kill, stop, nan or latency before the colon, got 'dealy'; "
            "did you mean 'delay'?");
  EXPECT_THAT(error_of(""), HasSubstr("expected delay, drop"));
  EXPECT_THAT(error_of("kill:rnak=1"), HasSubstr("unknown key 'rnak'; did you mean 'rank'?"));
  EXPECT_THAT(error_of("kill:rank"), HasSubstr("expected key=value, got 'rank'"));
  EXPECT_THAT(error_of("kill:rank=1,"), HasSubstr("after the last comma"));
  EXPECT_THAT(error_of("kill:,rank=1"), HasSubstr("expected key=value, got ''"));
  EXPECT_THAT(error_of("kill:rank=1,rank=2"), HasSubstr("rank is given twice"));
  EXPECT_THAT(error_of("kill:rank=-1"), HasSubstr("rank: expected a whole number from 0 to 2147483647, got '-1'"));
  EXPECT_THAT(error_of("kill:step=2147483648"), HasSubstr("step: expected a whole number"));
  EXPECT_THAT(error_of("kill:mb=1x"), HasSubstr("mb: expected a whole number"));
  EXPECT_THAT(error_of("kill:mb="), HasSubstr("mb: expected a whole number"));
  EXPECT_THAT(error_of("kill:op=X"), HasSubstr("op: expected one of F, B, I, W, optimizer, gradient-reduce"));
  EXPECT_THAT(error_of("kill:op=optimiser"), HasSubstr("did you mean 'optimizer'?"));
  EXPECT_THAT(error_of("delay:rank=1"), HasSubstr("expected seconds="));
  for (const std::string bad : {"0", "-1", "nan", "inf", "1e7", "two", ""}) {
    EXPECT_THAT(error_of("delay:seconds=" + bad), HasSubstr("seconds: expected a number above 0")) << bad;
  }
  EXPECT_THAT(error_of("kill:seconds=1"), HasSubstr("seconds: only a delay and a latency have a duration"));
  EXPECT_THAT(error_of("latency:op=F"), HasSubstr("a latency needs a duration: expected seconds=, got none"));
  EXPECT_THAT(error_of("latency:op=W,seconds=1"), HasSubstr("op: expected F, B or I, which exchange tokens"));
  EXPECT_THAT(error_of("latency:op=optimizer,seconds=1"), HasSubstr("op: expected F, B or I, which exchange tokens"));
  EXPECT_THAT(error_of("drop:op=W"), HasSubstr("op: expected F, B or I"));
  EXPECT_THAT(error_of("drop:op=optimizer"), HasSubstr("op: expected F, B or I"));
  EXPECT_THAT(error_of("kill:op=optimizer,mb=1"), HasSubstr("have no microbatch"));
}

class FaultPlanTest : public ::testing::Test {
 protected:
  // Pipeline ranks 0 and 1, data ranks 0 and 1: world rank 2 x pipeline + data.
  FaultPlanTest()
      : schedule_(make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 3})),
        graph_(lower(schedule_, {.data_parallel = 2, .recompute = true})) {
    for (int rank = 0; rank < 4; ++rank) {
      owners_.push_back({.world_rank = rank, .pipeline_rank = rank / 2, .data_rank = rank % 2, .world_size = 4});
    }
  }
  FaultPlan plan(const std::vector<std::string>& texts) const {
    std::vector<Fault> faults;
    for (const std::string& text : texts) faults.push_back(parse_fault(text));
    return {graph_, owners_, 10, std::move(faults)};
  }
  std::string refusal(const std::string& text) const {
    return test::error_from([&] { plan({text}); }, "none");
  }
  // Names of the vertices with a fault.
  std::vector<std::string> hits(const FaultPlan& plan, int rank, int step) const {
    std::vector<std::string> names;
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (plan.at(rank, step, v) != FaultAction{}) names.push_back(graph_.name(v));
    }
    return names;
  }

  Schedule schedule_;
  OpGraph graph_;
  std::vector<RecorderOwner> owners_;
};

TEST_F(FaultPlanTest, MatchesOnlyItsOp) {
  const FaultPlan one = plan({"delay:rank=3,op=F,mb=2,step=4,seconds=2"});
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  // Steps of faults count from 1. Stage 0 is not on world rank 3, which runs only the second one.
  EXPECT_THAT(hits(one, 3, 3), ElementsAre("F(stage 0, mb 2)", "F(stage 1, mb 2)"));
  EXPECT_THAT(hits(one, 3, 4), IsEmpty());
  EXPECT_THAT(hits(one, 2, 3), IsEmpty());
  EXPECT_THAT(hits(plan({"drop:op=B"}), 2, 0),
              ElementsAre("send B(stage 1, mb 0) 1->0", "send B(stage 1, mb 1) 1->0", "send B(stage 1, mb 2) 1->0"));
  EXPECT_THAT(hits(plan({"kill:op=optimizer,stage=1"}), 2, 0), ElementsAre("optimizer(stage 1, step 0)"));
  EXPECT_THAT(hits(plan({"stop:op=gradient-reduce"}), 2, 0),
              ElementsAre("gradient reduce(stage 0, step 0)", "gradient reduce(stage 1, step 0)"));
  // Any op, but not transfers, recomputations, optimizer steps or collectives: 2 stages x 3 microbatches x (F, B).
  EXPECT_EQ(hits(plan({"nan"}), 2, 0).size(), 12U);
}

TEST_F(FaultPlanTest, FaultsAddUp) {
  const FaultPlan both = plan({"delay:mb=1,seconds=1", "delay:op=F,seconds=0.5", "nan:stage=0,op=F", "kill:mb=2"});
  EXPECT_FALSE(both.empty());
  EXPECT_TRUE(plan({}).empty());
  for (VertexId v = 0; v < graph_.size(); ++v) {
    if (graph_.name(v) == "F(stage 0, mb 1)") {
      EXPECT_EQ(both.at(0, 0, v), (FaultAction{.delay = std::chrono::milliseconds(1500), .poison = true}));
    }
  }
}

TEST_F(FaultPlanTest, FaultsWithoutMatchAreRejected) {
  EXPECT_EQ(refusal("kill:rank=4"), "--fault 'kill:rank=4': rank: expected a world rank below 4, got 4");
  EXPECT_EQ(refusal("kill:step=10"), "none");
  EXPECT_THAT(refusal("kill:step=11"), HasSubstr("step: expected 1 to 10, the last step of the run, got 11"));
  EXPECT_THAT(refusal("kill:step=0"), HasSubstr("step: expected 1 to 10, the last step of the run, got 0"));
  EXPECT_THAT(refusal("kill:mb=3"), HasSubstr("no op of the schedule matches"));
  EXPECT_THAT(refusal("kill:op=W"), HasSubstr("no op of the schedule matches"));
  EXPECT_THAT(refusal("kill:rank=0,stage=1"), HasSubstr("no op of the schedule matches"));
  EXPECT_THAT(refusal("drop:op=F,stage=1"), HasSubstr("no message of the schedule matches"));  // the last stage
  EXPECT_THAT(refusal("drop:rank=0,op=B"), HasSubstr("no message of the schedule matches"));
  EXPECT_THAT(refusal("stop:op=global-norm"), HasSubstr("no op of the schedule matches"));
  EXPECT_EQ(refusal("stop:rank=3,op=gradient-reduce,stage=1"), "none");
  EXPECT_THAT(refusal("stop:rank=1,op=gradient-reduce,stage=1"), HasSubstr("no op"));
}

TEST(Faults, JointVerticesMatchByEitherOp) {
  const Schedule schedule = make_schedule(find_family("dualpipe"), {.ranks = 4, .microbatches = 10});
  const OpGraph graph = lower(schedule);
  std::vector<RecorderOwner> owners(4);
  for (int rank = 0; rank < 4; ++rank) {
    owners[rank] = {.world_rank = rank, .pipeline_rank = rank, .world_size = 4};
  }
  VertexId joint = 0;
  while (graph[joint].kind != VertexKind::joint) ++joint;
  for (const Vertex& half : {graph[joint], graph.joint_partner(graph[joint])}) {
    const std::string text = std::string("stop:op=") + letter(half.op) + ",stage=" + std::to_string(half.stage) +
                             ",mb=" + std::to_string(half.microbatch);
    EXPECT_TRUE(FaultPlan(graph, owners, 1, {parse_fault(text)}).at(graph.rank_of(joint), 0, joint).stop) << text;
  }
}

TEST_F(FaultPlanTest, KillIsAnnouncedAndSendsSigkill) {
  const VertexId v = 0;
  EXPECT_EXIT(FaultPlan(graph_, owners_, 1, {}, [](const std::string& text) { std::fputs(text.c_str(), stderr); })
                  .kill(1, 0, v),
              ::testing::KilledBySignal(SIGKILL),
              "--fault: rank 1 kills its process inside F\\(stage 0, mb 0\\) of step 1");
}

// How the workers of a run end it together, and what that costs in messages.

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
