#include "exec/watch/supervisor.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "exec/watch/recorder_file.h"

namespace sluice::exec {
namespace {

RunFailure failure_of(const Alarm& alarm) {
  const WaitReport& report = alarm.report;
  const bool lost = report.cause == RootCause::dead;
  const FailureKind kind =
      lost ? FailureKind::lost : (report.cause == RootCause::failed ? FailureKind::elsewhere : FailureKind::stuck);
  std::string text = report.text();
  if (alarm.signal != 0 && !report.broken) {
    return {FailureKind::lost, report.world_rank,
            "the launcher terminated the run (signal " + std::to_string(alarm.signal) + "); " + text};
  }
  return {kind, report.world_rank, text};
}

}  // namespace

Supervisor::Supervisor(const OpGraph& graph, const Supervision& supervision, std::vector<RecorderOwner> owners,
                       const std::vector<int>& here, std::function<void()> stop)
    : graph_(graph),
      supervision_(supervision),
      owners_(std::move(owners)),
      stop_(std::move(stop)),
      recorders_(owners_.size()),
      expected_(graph.size()) {
  if (supervision_.folder.empty()) return;
  for (const int rank : here) {
    recorders_[rank] =
        std::make_unique<Recorder>(supervision_.folder + "/" + recorder_name(rank), owners_[rank], graph);
  }
}

Supervisor::~Supervisor() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  watchdog_.reset();
  if (grace_.joinable()) grace_.join();
}

Recorder* Supervisor::recorder(int world_rank) { return recorders_[world_rank].get(); }

void Supervisor::watch() {
  if (supervision_.folder.empty()) return;
  WatchdogOptions options{.folder = supervision_.folder, .limits = supervision_.limits};
  options.take_signals = supervision_.signals;
  options.limits.expected_ns = [this](VertexId v) { return expected_[v].load(std::memory_order_relaxed); };
  watchdog_ =
      std::make_unique<Watchdog>(graph_, owners_, std::move(options), [this](const Alarm& what) { alarm(what); });
}

void Supervisor::expect(std::span<const std::int64_t> starts, std::span<const std::int64_t> ends) {
  for (std::size_t v = 0; v < ends.size(); ++v) {
    // A worker has only one of the two times of a transfer.
    if (starts[v] > 0 && ends[v] > starts[v]) expected_[v].store(ends[v] - starts[v], std::memory_order_relaxed);
  }
}

void Supervisor::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(error);
  }
  stop_();
}

void Supervisor::end() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  const std::exception_ptr failure = failure_;
  lock.unlock();
  watchdog_.reset();
  if (failure) std::rethrow_exception(failure);
}

void Supervisor::alarm(const Alarm& what) {
  if (what.signal != 0 && !is_death(what.report.cause)) return asked_to_stop(what);
  fail_now(failure_of(what));
}

void Supervisor::asked_to_stop(const Alarm& what) {
  const bool in_step = in_steps_.load();
  const int before = stop_signal_.exchange(what.signal);
  if ((before != 0 || !in_step) && supervision_.end_now) supervision_.end_now(what.signal, in_step);
  if (before != 0) return;
  grace_ = std::thread([this, what] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, supervision_.grace, [&] { return ended_; })) return;
    lock.unlock();
    const double seconds = std::chrono::duration<double>(supervision_.grace).count();
    fail_now({FailureKind::lost, what.report.world_rank,
              fmt::format("signal {} came, and the step did not end within the grace period of {} s", what.signal,
                          seconds)});
  });
}

// Ends all waiting of the workers, and then the process if they do not end.
void Supervisor::fail_now(const RunFailure& failure) {
  std::unique_lock lock(mutex_);
  if (ended_) return;
  if (!failure_) failure_ = std::make_exception_ptr(failure);
  lock.unlock();
  stop_();
  lock.lock();
  const bool in_time = changed_.wait_for(lock, supervision_.patience, [&] { return ended_; });
  if (in_time || !supervision_.give_up) return;
  lock.unlock();
  supervision_.give_up(failure);
}

}  // namespace sluice::exec
