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

// Far longer than any alarm takes on a busy machine: waiting ends with the alarm.
constexpr auto kPatience = 120s;

// Keeps the alarms of a watchdog.
class Alarms {
 public:
  std::function<void(const Alarm&)> listener() {
    return [this](const Alarm& alarm) {
      const std::lock_guard lock(mutex_);
      alarms_.push_back(alarm);
      changed_.notify_all();
    };
  }
  // Waits for alarm `index`; nothing if there is none within `limit`.
  std::optional<Alarm> wait(std::chrono::milliseconds limit = kPatience, std::size_t index = 0) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [&] { return alarms_.size() > index; })) return std::nullopt;
    return alarms_[index];
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return alarms_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Alarm> alarms_;
};

class WatchdogTest : public ::testing::Test {
 protected:
  static constexpr auto kFloor = 1000ms;
  static constexpr std::int64_t kHour = 3600'000'000'000;

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

  // Starts a process that is the worker of `rank` and stays inside `op` until it is killed. Returns once it is there.
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

TEST_F(WatchdogTest, IsSilentDuringALongChainOfShortOps) {
  // Ranks 1 and 2 wait for four times the floor, for a rank whose ops stay below it. Where the machine has held an op
  // of this test up for longer, an alarm is justified: try again.
  for (bool held_up = true; held_up;) {
    held_up = false;
    const auto workers = recorders();
    Alarms alarms;
    waits(*workers[2], "F(stage 2, mb 0)", "send F(stage 1, mb 0) 1->2");
    waits(*workers[1], "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1");
    auto began = Clock::now();
    works(*workers[0], "F(stage 0, mb 0)");
    const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
    const auto until = began + 4 * kFloor;
    while (began < until && !held_up) {
      std::this_thread::sleep_for(kFloor / 4);
      const auto next = Clock::now();
      works(*workers[0], "F(stage 0, mb 0)");
      held_up = Clock::now() - began > kFloor;
      began = next;
    }
    const std::size_t count = alarms.count();
    held_up = held_up || Clock::now() - began > kFloor;
    if (!held_up) {
      EXPECT_EQ(count, 0U);
    }
  }
}

TEST_F(WatchdogTest, ReportsAnOpPastItsDeadlineOnce) {
  const auto workers = recorders();
  Alarms alarms;
  const auto began = Clock::now();
  waits(*workers[2], "F(stage 2, mb 1)", "send F(stage 1, mb 1) 1->2");
  works(*workers[1], "F(stage 1, mb 1)");
  waits(*workers[0], "B(stage 0, mb 0)", "send B(stage 1, mb 0) 1->0");
  const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
  const auto alarm = alarms.wait();
  const auto took = Clock::now() - began;
  ASSERT_TRUE(alarm);
  EXPECT_GE(took, kFloor);
  EXPECT_EQ(alarm->signal, 0);
  EXPECT_EQ(alarm->report.cause, RootCause::slow);
  EXPECT_EQ(alarm->report.world_rank, 1);
  EXPECT_EQ(alarm->report.op, "F(stage 1, mb 1)");
  EXPECT_THAT(alarm->report.waiting, ElementsAre(0, 2));
  EXPECT_FALSE(alarms.wait(300ms, 1));
}

TEST_F(WatchdogTest, FindsALostMessage) {
  const auto workers = recorders();
  waits(*workers[1], "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1");
  waits(*workers[2], "F(stage 2, mb 0)", "send F(stage 1, mb 0) 1->2");
  // The sender continues as if nothing had happened, in an op that may take as long as it likes.
  const VertexId next = vertex("F(stage 0, mb 1)");
  options_.limits.expected_ns = [next](VertexId v) { return v == next ? kHour : 0; };
  Alarms alarms;
  const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
  const auto until = Clock::now() + kPatience;
  std::optional<Alarm> alarm;
  while (!alarm && Clock::now() < until) {
    works(*workers[0], "F(stage 0, mb 1)");
    alarm = alarms.wait(10ms);
  }
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.cause, RootCause::lost);
  EXPECT_EQ(alarm->report.op, "send F(stage 0, mb 0) 0->1");
  EXPECT_EQ(alarm->report.world_rank, 0);
  EXPECT_THAT(alarm->report.waiting, ElementsAre(1, 2));
}

TEST_F(WatchdogTest, FindsAKilledProcessAfterTheGracePeriod) {
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  const auto first = recorder(0);
  const auto last = recorder(2);
  works(*first, "B(stage 0, mb 0)");
  waits(*last, "F(stage 2, mb 2)", "send F(stage 1, mb 2) 1->2");
  options_.limits.floor_ns = kHour;
  owners_[1].process = child;
  Alarms alarms;
  const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
  EXPECT_FALSE(alarms.wait(300ms));
  ::kill(child, SIGKILL);
  // Long before any deadline; the process is a zombie meanwhile.
  const auto alarm = alarms.wait();
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.cause, RootCause::dead);
  EXPECT_EQ(alarm->report.root, "rank 1 died in step 1, inside F(stage 1, mb 2)");
  EXPECT_THAT(alarm->report.waiting, ElementsAre(2));
}

TEST_F(WatchdogTest, FindsASuspendedProcess) {
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  const auto first = recorder(0);
  const auto last = recorder(2);
  options_.limits.expected_ns = [](VertexId) { return kHour; };
  owners_[1].process = child;
  Alarms alarms;
  const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
  ::kill(child, SIGSTOP);
  const auto alarm = alarms.wait();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.cause, RootCause::stopped);
  EXPECT_EQ(alarm->report.world_rank, 1);
}

TEST_F(WatchdogTest, RecordersOfAnEarlierRunAreIgnored) {
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  options_.limits.floor_ns = kHour;
  {
    // The file is of another process than the worker of this run.
    Alarms alarms;
    Watchdog watchdog(graph_, owners_, options_, alarms.listener());
    EXPECT_FALSE(alarms.wait(500ms));
    EXPECT_EQ(watchdog.look().cause, RootCause::none);
  }
  {
    // If the process of the worker is unknown, the old file is taken for it, until the worker replaces it.
    owners_[1].process = 0;
    options_.limits.grace_ns = kHour;
    Alarms alarms;
    Watchdog watchdog(graph_, owners_, options_, alarms.listener());
    const auto until = Clock::now() + kPatience;
    while (watchdog.look().cause != RootCause::dead && Clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(watchdog.look().cause, RootCause::dead);
    const auto second = recorder(1);
    EXPECT_EQ(watchdog.look().cause, RootCause::none);
    EXPECT_EQ(alarms.count(), 0U);
  }
}

TEST_F(WatchdogTest, OpensRecordersThatAppearLate) {
  Alarms alarms;
  const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
  EXPECT_FALSE(alarms.wait(200ms));
  const auto workers = recorders();
  works(*workers[2], "F(stage 2, mb 0)");
  const auto alarm = alarms.wait();
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->report.world_rank, 2);
}

TEST_F(WatchdogTest, EndsWithoutWaitingForItsPeriod) {
  const auto workers = recorders();
  options_.period = 2 * kPatience;
  Alarms alarms;
  const auto began = Clock::now();
  { const Watchdog watchdog(graph_, owners_, options_, alarms.listener()); }
  EXPECT_LT(Clock::now() - began, kPatience);
  EXPECT_EQ(alarms.count(), 0U);
}

TEST_F(WatchdogTest, SignalsCauseAReport) {
  const HeldSignals held;
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto workers = recorders();
    waits(*workers[1], "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1");
    works(*workers[0], "F(stage 0, mb 0)");
    options_.take_signals = true;
    options_.limits.floor_ns = kHour;
    options_.period = 2 * kPatience;  // a signal ends the wait
    Alarms alarms;
    const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
    ::kill(::getpid(), signal);
    const auto alarm = alarms.wait();
    ASSERT_TRUE(alarm);
    EXPECT_EQ(alarm->signal, signal);
    EXPECT_FALSE(alarm->report.broken);
    EXPECT_EQ(alarm->report.world_rank, 0);
    EXPECT_THAT(alarm->report.chain, HasSubstr("rank 1 waits for F(stage 1, mb 0) from rank 0, which has been inside "
                                               "F(stage 0, mb 0)"));
  }
}

TEST_F(WatchdogTest, ContinuesAfterASignal) {
  const HeldSignals held;
  const auto workers = recorders();
  options_.take_signals = true;
  Alarms alarms;
  const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
  ::kill(::getpid(), SIGINT);
  auto alarm = alarms.wait();
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->signal, SIGINT);
  works(*workers[0], "F(stage 0, mb 0)");
  alarm = alarms.wait(kPatience, 1);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->signal, 0);
  EXPECT_EQ(alarm->report.cause, RootCause::slow);
}

TEST_F(WatchdogTest, SignalAfterADeathNamesTheDeadProcess) {
  const HeldSignals held;
  const pid_t child = start_worker(1, "F(stage 1, mb 2)");
  ASSERT_GT(child, 0);
  const auto first = recorder(0);
  const auto last = recorder(2);
  waits(*last, "F(stage 2, mb 2)", "send F(stage 1, mb 2) 1->2");
  options_.take_signals = true;
  options_.limits.grace_ns = kHour;
  owners_[1].process = child;
  Alarms alarms;
  const Watchdog watchdog(graph_, owners_, options_, alarms.listener());
  // A launcher sends the signal as soon as it knows of the death, which is when the process is a zombie.
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  ::kill(::getpid(), SIGTERM);
  const auto alarm = alarms.wait();
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->signal, SIGTERM);
  EXPECT_EQ(alarm->report.cause, RootCause::dead);
  EXPECT_EQ(alarm->report.world_rank, 1);
}

TEST_F(WatchdogTest, TimeInWhichTheProcessWasSuspendedDoesNotCount) {
  // A child with its own watchdog is suspended for longer than the deadline, and continued. Its op then has its whole
  // deadline again. If the machine is so slow that the alarm came before the suspension, try again.
  std::int64_t suspended_ns = 0;
  std::int64_t continued_ns = 0;
  std::int64_t alarm_ns = 0;
  const auto now_ns = [] { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); };
  while (alarm_ns <= suspended_ns) {
    int result[2];
    ASSERT_EQ(::pipe(result), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (RecorderOwner& each : owners_) each.process = ::getpid();
      const auto workers = recorders();
      Alarms alarms;
      std::int64_t heard_ns = -1;
      Watchdog watchdog(graph_, owners_, options_, [&, listener = alarms.listener()](const Alarm& alarm) {
        heard_ns = now_ns();
        listener(alarm);
      });
      watchdog.look();
      works(*workers[0], "F(stage 0, mb 0)");
      ::raise(SIGSTOP);
      if (!alarms.wait()) ::_exit(1);
      [[maybe_unused]] const auto written = ::write(result[1], &heard_ns, sizeof heard_ns);
      ::_exit(0);
    }
    ::close(result[1]);
    ::waitpid(child, nullptr, WUNTRACED);
    suspended_ns = now_ns();
    std::this_thread::sleep_for(2 * kFloor + 500ms);
    continued_ns = now_ns();
    ::kill(child, SIGCONT);
    const auto got = ::read(result[0], &alarm_ns, sizeof alarm_ns);
    ::close(result[0]);
    ::waitpid(child, nullptr, 0);
    ASSERT_EQ(got, static_cast<ssize_t>(sizeof alarm_ns)) << "no alarm";
  }
  EXPECT_GE(alarm_ns, continued_ns + std::chrono::nanoseconds(kFloor).count());
}

}  // namespace
}  // namespace sluice::test
