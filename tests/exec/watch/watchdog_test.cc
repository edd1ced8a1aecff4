#include "exec/watch/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/watch/recorder_file.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Clock = std::chrono::steady_clock;

// Takes the alarm, and how long it took to come.
class Ear {
 public:
  std::function<void(const Alarm&)> listen() {
    return [this](const Alarm& alarm) {
      const std::lock_guard lock(mutex_);
      ++count_;
      alarm_ = alarm;
      heard_.notify_all();
    };
  }
  // The alarm, or none within `limit`.
  std::optional<Alarm> wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    heard_.wait_for(lock, limit, [this] { return alarm_.has_value(); });
    return alarm_;
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable heard_;
  std::optional<Alarm> alarm_;
  int count_ = 0;
};

class WatchdogTest : public ::testing::Test {
 protected:
  static constexpr auto kFloor = 1000ms;
  static constexpr auto kTooLate = kFloor + 1000ms;

  WatchdogTest()
      : schedule_(make_schedule(find_family("1f1b"), {.ranks = 3, .microbatches = 4})), graph_(lower(schedule_)) {
    for (int rank = 0; rank < 3; ++rank) owners_.push_back(owner(rank));
    options_.folder = folder_.path();
    options_.limits.floor_ns = std::chrono::nanoseconds(kFloor).count();
    options_.limits.grace_ns = 200'000'000;
  }

  static RecorderOwner owner(int rank) {
    return {.world_rank = rank, .pipeline_rank = rank, .world_size = 3, .process = ::getpid(), .host = host_name()};
  }
  std::unique_ptr<Recorder> recorder(int rank) const {
    return std::make_unique<Recorder>(folder_.path(recorder_name(rank)), owner(rank), graph_);
  }
  std::vector<std::unique_ptr<Recorder>> recorders() const {
    std::vector<std::unique_ptr<Recorder>> all;
    for (int rank = 0; rank < 3; ++rank) all.push_back(recorder(rank));
    return all;
  }
  VertexId vertex(const std::string& name) const {
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (graph_.name(v) == name) return v;
    }
    ADD_FAILURE() << name;
    return 0;
  }
  void waits(Recorder& recorder, const std::string& op, const std::string& awaited) const {
    recorder.doing(WorkerThread::compute, Activity::waiting, 0, vertex(op), vertex(awaited));
  }
  void works(Recorder& recorder, const std::string& op) const {
    recorder.doing(WorkerThread::compute, Activity::working, 0, vertex(op));
  }

  // A process that is the worker of `rank`, and stays inside `op` until it is killed. Returns once it is there.
  pid_t start_worker(int rank, const std::string& op) const {
    int ready[2];
    if (::pipe(ready) != 0) return -1;
    const VertexId v = vertex(op);
    const pid_t child = ::fork();
    if (child == 0) {
      const std::unique_ptr<Recorder> own = recorder(rank);
      own->doing(WorkerThread::compute, Activity::working, 0, v);
      [[maybe_unused]] const auto written = ::write(ready[1], "x", 1);
      while (true) ::pause();
    }
    char byte = 0;
    [[maybe_unused]] const auto got = ::read(ready[0], &byte, 1);
    ::close(ready[0]);
    ::close(ready[1]);
    return child;
  }

  TemporaryFolder folder_;
  Schedule schedule_;
  OpGraph graph_;
  std::vector<RecorderOwner> owners_;
  WatchdogOptions options_;
};

TEST_F(WatchdogTest, IsSilentThroughALongChainOfLawfulOps) {
  const auto workers = recorders();
  Ear ear;
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  // Ranks 1 and 2 wait all the time, four times the floor, for a rank whose ops stay below it.
  waits(*workers[2], "F(stage 2, mb 0)", "send F(stage 1, mb 0) 1->2");
  waits(*workers[1], "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1");
  const auto until = Clock::now() + 4 * kFloor;
  while (Clock::now() < until) {
    works(*workers[0], "F(stage 0, mb 0)");
    std::this_thread::sleep_for(kFloor / 4);
  }
  EXPECT_EQ(ear.count(), 0);
}

TEST_F(WatchdogTest, FindsAnOpPastItsDeadlineAndSaysSoOnce) {
  const auto workers = recorders();
  Ear ear;
  waits(*workers[2], "F(stage 2, mb 1)", "send F(stage 1, mb 1) 1->2");
  works(*workers[1], "F(stage 1, mb 1)");
  waits(*workers[0], "B(stage 0, mb 0)", "send B(stage 1, mb 0) 1->0");
  const auto began = Clock::now();
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  const auto alarm = ear.wait(kTooLate);
  const auto took = Clock::now() - began;
  ASSERT_TRUE(alarm);
  EXPECT_GE(took, kFloor - 50ms);
  EXPECT_EQ(alarm->signal, 0);
  EXPECT_EQ(alarm->report.cause, RootCause::slow);
  EXPECT_EQ(alarm->report.world_rank, 1);
  EXPECT_EQ(alarm->report.op, "F(stage 1, mb 1)");
  EXPECT_THAT(alarm->report.waiting, ElementsAre(0, 2));
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(ear.count(), 1);
}

TEST_F(WatchdogTest, FindsALostMessage) {
  const auto workers = recorders();
  waits(*workers[1], "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1");
  waits(*workers[2], "F(stage 2, mb 0)", "send F(stage 1, mb 0) 1->2");
  Ear ear;
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  // Its sender goes on as if nothing had happened.
  const auto until = Clock::now() + kTooLate;
  while (Clock::now() < until && ear.count() == 0) {
    works(*workers[0], "F(stage 0, mb 1)");
    std::this_thread::sleep_for(10ms);
  }
  const auto alarm = ear.wait(0ms);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.cause, RootCause::lost);
  EXPECT_EQ(alarm->report.op, "send F(stage 0, mb 0) 0->1");
  EXPECT_EQ(alarm->report.world_rank, 0);
  EXPECT_THAT(alarm->report.waiting, ElementsAre(1, 2));
}

TEST_F(WatchdogTest, FindsAKilledProcessAtOnce) {
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  const auto first = recorder(0);
  const auto last = recorder(2);
  works(*first, "B(stage 0, mb 0)");
  waits(*last, "F(stage 2, mb 2)", "send F(stage 1, mb 2) 1->2");
  options_.limits.floor_ns = 3600'000'000'000;
  owners_[1].process = child;
  Ear ear;
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  EXPECT_FALSE(ear.wait(300ms));
  ::kill(child, SIGKILL);
  // Grace of 200 ms, a look every 50 ms; the process is a zombie meanwhile.
  const auto alarm = ear.wait(1200ms);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.cause, RootCause::dead);
  EXPECT_EQ(alarm->report.root, "rank 1 died in step 0, inside F(stage 1, mb 2)");
  EXPECT_THAT(alarm->report.waiting, ElementsAre(2));
}

TEST_F(WatchdogTest, SeesAProcessThatIsStopped) {
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  const auto first = recorder(0);
  const auto last = recorder(2);
  options_.limits.expected_ns = [](VertexId) { return std::int64_t{3600'000'000'000}; };
  owners_[1].process = child;
  Ear ear;
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  ::kill(child, SIGSTOP);
  const auto alarm = ear.wait(kTooLate);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.cause, RootCause::stopped);
  EXPECT_EQ(alarm->report.world_rank, 1);
}

TEST_F(WatchdogTest, RecordersOfAnEarlierRunAreNotLookedAt) {
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  options_.limits.floor_ns = 3600'000'000'000;
  {
    // Its file names another process than this run's worker.
    Ear ear;
    const Watchdog watchdog(graph_, owners_, options_, ear.listen());
    EXPECT_FALSE(ear.wait(500ms));
  }
  {
    // Nobody says which process it is; then the worker comes and makes its own.
    owners_[1].process = 0;
    options_.limits.grace_ns = 400'000'000;
    Ear ear;
    Watchdog watchdog(graph_, owners_, options_, ear.listen());
    const auto second = recorder(1);
    EXPECT_FALSE(ear.wait(900ms));
    EXPECT_EQ(watchdog.look().cause, RootCause::none);
  }
}

TEST_F(WatchdogTest, SeesRecordersThatComeLate) {
  Ear ear;
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  EXPECT_FALSE(ear.wait(200ms));
  const auto workers = recorders();
  works(*workers[2], "F(stage 2, mb 0)");
  const auto alarm = ear.wait(kTooLate);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.world_rank, 2);
}

TEST_F(WatchdogTest, EndsAtOnceWhenNothingIsWrong) {
  const auto workers = recorders();
  options_.period = 10000ms;
  Ear ear;
  const auto began = Clock::now();
  { const Watchdog watchdog(graph_, owners_, options_, ear.listen()); }
  EXPECT_LT(Clock::now() - began, 2000ms);
  EXPECT_EQ(ear.count(), 0);
}

TEST_F(WatchdogTest, SignalsLeadToTheReport) {
  const HeldSignals held;
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto workers = recorders();
    waits(*workers[1], "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1");
    works(*workers[0], "F(stage 0, mb 0)");
    options_.take_signals = true;
    options_.limits.floor_ns = 3600'000'000'000;
    options_.period = 10000ms;  // it does not wait for its turn
    Ear ear;
    const Watchdog watchdog(graph_, owners_, options_, ear.listen());
    ::kill(::getpid(), signal);
    const auto alarm = ear.wait(2000ms);
    ASSERT_TRUE(alarm);
    EXPECT_EQ(alarm->signal, signal);
    EXPECT_FALSE(alarm->report.broken);
    EXPECT_EQ(alarm->report.world_rank, 0);
    EXPECT_THAT(alarm->report.chain, HasSubstr("rank 1 waits for F(stage 1, mb 0) from rank 0, which is inside F(stage "
                                               "0, mb 0)"));
  }
}

TEST_F(WatchdogTest, GoesOnWatchingAfterASignal) {
  const HeldSignals held;
  const auto workers = recorders();
  works(*workers[0], "F(stage 0, mb 0)");
  options_.take_signals = true;
  options_.limits.floor_ns = 2'000'000'000;
  Ear ear;
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  ::kill(::getpid(), SIGINT);
  auto alarm = ear.wait(1500ms);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->signal, SIGINT);
  const auto until = Clock::now() + 3s;
  while (Clock::now() < until && ear.count() < 2) std::this_thread::sleep_for(10ms);
  alarm = ear.wait(0ms);
  EXPECT_EQ(ear.count(), 2);
  EXPECT_EQ(alarm->signal, 0);
  EXPECT_EQ(alarm->report.cause, RootCause::slow);
}

TEST_F(WatchdogTest, ASignalBecauseAnotherDiedNamesTheDead) {
  const HeldSignals held;
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  const auto first = recorder(0);
  const auto last = recorder(2);
  waits(*last, "F(stage 2, mb 2)", "send F(stage 1, mb 2) 1->2");
  options_.take_signals = true;
  options_.limits.grace_ns = 3600'000'000'000;
  owners_[1].process = child;
  Ear ear;
  const Watchdog watchdog(graph_, owners_, options_, ear.listen());
  // A launcher sends the signal as soon as it knows of the death.
  ::kill(child, SIGKILL);
  ::kill(::getpid(), SIGTERM);
  const auto alarm = ear.wait(2000ms);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->signal, SIGTERM);
  EXPECT_EQ(alarm->report.cause, RootCause::dead);
  EXPECT_EQ(alarm->report.world_rank, 1);
}

TEST_F(WatchdogTest, APauseOfTheWholeProcessIsNobodysFault) {
  // A child with its own watchdog is stopped for longer than the deadline, and goes on.
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (RecorderOwner& each : owners_) each.process = ::getpid();
    const auto workers = recorders();
    Ear ear;
    auto watchdog = std::make_unique<Watchdog>(graph_, owners_, options_, ear.listen());
    std::this_thread::sleep_for(100ms);
    works(*workers[0], "F(stage 0, mb 0)");
    [[maybe_unused]] const auto written = ::write(ready[1], "x", 1);
    // The stop comes here, and shows as a jump of the clock.
    auto before = Clock::now();
    while (Clock::now() - before < 2s) {
      before = Clock::now();
      std::this_thread::sleep_for(5ms);
    }
    // The op may now take its whole time again; an alarm for the time before would come with the next look.
    const auto resumed = Clock::now();
    const bool alarmed = ear.wait(kTooLate).has_value();
    const bool early = Clock::now() - resumed < kFloor / 2;
    watchdog.reset();
    ::_exit(alarmed ? (early ? 1 : 0) : 2);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(2500ms);
  ::kill(child, SIGCONT);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: an alarm too early; 2: none at all";
}

}  // namespace
}  // namespace sluice::test
