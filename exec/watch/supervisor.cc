#include "exec/watch/supervisor.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "exec/watch/diagnosis.h"
#include "exec/watch/recorder_file.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

constexpr int kLooksForDeath = 10;

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

std::size_t most_vertices(std::span<const OpGraph* const> graphs) {
  std::size_t most = 0;
  for (const OpGraph* const graph : graphs) most = std::max<std::size_t>(most, graph->size());
  return most;
}

}  // namespace

Supervisor::Supervisor(std::span<const OpGraph* const> graphs, const Supervision& supervision,
                       std::vector<RecorderOwner> owners, const std::vector<int>& here, std::function<void()> stop)
    : first_graph_(*graphs.front()),
      supervision_(supervision),
      owners_(std::move(owners)),
      first_here_(here.front()),
      stop_(std::move(stop)),
      recorders_(owners_.size()),
      expected_(most_vertices(graphs)) {
  if (supervision_.folder.empty()) return;
  remove_diagnosis(supervision_.folder);
  for (const int rank : here) {
    recorders_[rank] =
        std::make_unique<Recorder>(supervision_.folder + "/" + recorder_name(rank), owners_[rank], first_graph_);
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
  options.found_by_others = [this]() -> std::optional<RunFailure> {
    const std::lock_guard lock(mutex_);
    return failure_ ? std::nullopt : read_diagnosis(supervision_.folder);
  };
  watchdog_ =
      std::make_unique<Watchdog>(first_graph_, owners_, std::move(options), [this](const Alarm& what) { alarm(what); });
}

void Supervisor::use(int world_rank, const OpGraph& graph) {
  if (Recorder* const of_worker = recorder(world_rank)) of_worker->use(graph);
  if (world_rank != first_here_) return;
  for (auto& expected : expected_) expected.store(0, std::memory_order_relaxed);
  if (watchdog_) watchdog_->use(graph);
}

void Supervisor::expect(std::span<const std::int64_t> starts, std::span<const std::int64_t> ends) {
  for (std::size_t v = 0; v < ends.size(); ++v) {
    // A worker has only one of the two times of a transfer.
    if (starts[v] > 0 && ends[v] > starts[v]) expected_[v].store(ends[v] - starts[v], std::memory_order_relaxed);
  }
}

void Supervisor::fail(int world_rank, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = agreed(world_rank, error);
  }
  stop_();
}

// Returns `error`, or the failure that another process has found before.
std::exception_ptr Supervisor::agreed(int world_rank, const std::exception_ptr& error) {
  if (!watchdog_) return error;
  const auto agree = [&](const RunFailure& mine) {
    const RunFailure first = agree_on_diagnosis(supervision_.folder, mine);
    const bool is_mine = first.world_rank() == mine.world_rank() && std::string_view(first.what()) == mine.what();
    return is_mine ? nullptr : std::make_exception_ptr(first);
  };
  std::exception_ptr other;
  try {
    std::rethrow_exception(error);
  } catch (const RunFailure& failure) {
    other = agree(failure);
  } catch (const InputError&) {
    // Reported by itself; some are known to all workers.
  } catch (const std::exception& failure) {
    other = death_of_another(world_rank);
    if (!other)
      other = agree({FailureKind::elsewhere, world_rank, fmt::format("rank {}: {}", world_rank, failure.what())});
  }
  return other ? other : error;
}

// A connection fails when the process at its other end dies, possibly a moment before its death is visible. Returns the
// failure, or nothing.
std::exception_ptr Supervisor::death_of_another(int world_rank) {
  for (int i = 0; i < kLooksForDeath; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const WaitReport report = watchdog_->look();
    if (report.cause != RootCause::dead || report.world_rank == world_rank) continue;
    return std::make_exception_ptr(agree_on_diagnosis(supervision_.folder, failure_of({.report = report})));
  }
  return nullptr;
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
  if (what.found_by_others) return fail_now(*what.found_by_others);
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
void Supervisor::fail_now(const RunFailure& found) {
  std::unique_lock lock(mutex_);
  if (ended_) return;
  const RunFailure failure = agree_on_diagnosis(supervision_.folder, found);
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
