#include "exec/watch/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "exec/steady_clock.h"
#include "exec/watch/recorder_file.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

// The pipe of HeldSignals: the handler writes a byte per signal, the watchdog reads it. -1: none.
std::atomic<int> held_in{-1};
std::atomic<int> held_out{-1};
std::atomic<bool> holds{false};  // a watchdog takes signals, or has taken them
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void hold_signal(int signal) {
  if (!holds.load()) ::_exit(128 + signal);
  const int before = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // Fails only if thousands of signals are pending.
  [[maybe_unused]] const ssize_t written = ::write(held_in.load(), &byte, 1);
  errno = before;
}

// Returns the next pending signal, or 0.
int next_held_signal() {
  unsigned char signal = 0;
  return ::read(held_out.load(), &signal, 1) == 1 ? signal : 0;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "the watchdog's descriptor");
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

// The recorders of a folder, opened once they exist.
class Recorders {
 public:
  Recorders(std::string folder, const std::vector<RecorderOwner>& owners)
      : folder_(std::move(folder)), owners_(owners), files_(owners.size()) {}

  std::vector<WorkerView> read() {
    // Recorders of other hosts never appear: do not try to open them at every look.
    constexpr int kRetry = 10;
    const bool try_again = looks_++ % kRetry == 0;
    std::vector<WorkerView> views(owners_.size());
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      if (!files_[i] && try_again) open(i);
      if (files_[i]) views[i] = view(i);
    }
    return views;
  }

 private:
  void open(std::size_t i) {
    files_[i].reset();
    try {
      RecorderFile file(folder_ + "/" + recorder_name(static_cast<int>(i)));
      const RecorderOwner& is = file.owner();
      const RecorderOwner& expected = owners_[i];
      // Skip recorders of another run.
      if (is.world_rank != static_cast<int>(i) || is.world_size != std::ssize(owners_)) return;
      if (expected.process != 0 && is.process != expected.process) return;
      if (!file.process()) return;
      files_[i] = std::move(file);
    } catch (const InputError&) {
      // Missing or not readable: the worker is not observed.
    }
  }

  WorkerView view(std::size_t i) {
    ProcessState process = state_of(*files_[i]);
    if (process == ProcessState::dead && files_[i]->replaced()) {
      open(i);
      if (!files_[i]) return {};
      process = state_of(*files_[i]);
    }
    try {
      return {.seen = true,
              .process = process,
              .compute = files_[i]->doing(WorkerThread::compute),
              .collective = files_[i]->doing(WorkerThread::collective)};
    } catch (const InputError&) {
      return {};
    }
  }

  static ProcessState state_of(const RecorderFile& file) {
    if (file.owner().process == ::getpid()) return ProcessState::running;
    return file.process().value_or(ProcessState::running);
  }

  std::string folder_;
  const std::vector<RecorderOwner>& owners_;
  std::vector<std::optional<RecorderFile>> files_;
  int looks_ = 0;
};

}  // namespace

HeldSignals::HeldSignals() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw std::system_error(errno, std::generic_category(), "the pipe for signals");
  }
  holds.store(false);
  held_out.store(ends[0]);
  held_in.store(ends[1]);
  struct sigaction hold {};
  hold.sa_handler = hold_signal;
  hold.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &hold, &terminate_before_);
  ::sigaction(SIGINT, &hold, &interrupt_before_);
}

HeldSignals::~HeldSignals() {
  ::sigaction(SIGTERM, &terminate_before_, nullptr);
  ::sigaction(SIGINT, &interrupt_before_, nullptr);
  while (const int signal = next_held_signal()) ::raise(signal);
  ::close(held_in.exchange(-1));
  ::close(held_out.exchange(-1));
}

struct Watchdog::Impl {
  Impl(const OpGraph& graph, std::vector<RecorderOwner> given, WatchdogOptions asked,
       std::function<void(const Alarm&)> callback)
      : owners(std::move(given)),
        options(std::move(asked)),
        on_alarm(std::move(callback)),
        chains(std::make_unique<WaitChains>(graph, owners, options.limits)),
        recorders(options.folder, owners),
        ended(::eventfd(0, EFD_CLOEXEC)) {
    last_look_ns = now_ns();
    if (options.take_signals) holds.store(true);
    thread = std::thread([this] { run(); });
  }

  ~Impl() {
    const std::uint64_t one = 1;
    // Fails only if the counter overflows.
    [[maybe_unused]] const ssize_t written = ::write(ended.get(), &one, sizeof one);
    thread.join();
  }

  WaitReport look() {
    const std::lock_guard lock(mutex);
    // Read before the states: activities that begin in between have lasted no time.
    const std::int64_t now = now_ns();
    const std::int64_t gap = now - last_look_ns;
    const std::int64_t period = std::chrono::nanoseconds(options.period).count();
    last_look_ns = now;
    if (gap > period + std::max<std::int64_t>(1'000'000'000, options.limits.floor_ns / 2)) resumed_ns = now;
    std::vector<WorkerView> views = recorders.read();
    for (WorkerView& view : views) {
      view.compute.since_ns = std::max(view.compute.since_ns, resumed_ns);
      view.collective.since_ns = std::max(view.collective.since_ns, resumed_ns);
    }
    return chains->examine(views, now);
  }

  void use(const OpGraph& graph) {
    const std::lock_guard lock(mutex);
    chains = std::make_unique<WaitChains>(graph, owners, options.limits);
  }

  void run() {
    while (!wait(options.period)) {
      if (options.found_by_others) {
        if (auto failure = options.found_by_others()) return on_alarm({.found_by_others = std::move(failure)});
      }
      Alarm alarm{.signal = options.take_signals ? next_held_signal() : 0};
      alarm.report = look();
      if (alarm.signal != 0) {
        // A launcher terminates the other processes because one has ended, which may take a moment to be visible.
        for (int i = 0; i < 10 && !is_death(alarm.report.cause); ++i) {
          if (wait(std::chrono::milliseconds(20), false)) break;
          alarm.report = look();
        }
      }
      if (!alarm.report.broken && alarm.signal == 0) continue;
      on_alarm(alarm);
      if (alarm.report.broken) return;
    }
  }

  // Returns true if the watchdog is to end; false after `time`, or earlier after a signal.
  bool wait(std::chrono::milliseconds time, bool wake_for_signals = true) const {
    std::array<pollfd, 2> sources = {pollfd{.fd = ended.get(), .events = POLLIN},
                                     pollfd{.fd = held_out.load(), .events = POLLIN}};
    ::poll(sources.data(), options.take_signals && wake_for_signals ? 2 : 1, static_cast<int>(time.count()));
    return sources[0].revents != 0;
  }

  std::vector<RecorderOwner> owners;
  WatchdogOptions options;
  std::function<void(const Alarm&)> on_alarm;
  std::mutex mutex;  // guards the next four
  std::unique_ptr<WaitChains> chains;
  Recorders recorders;
  std::int64_t last_look_ns = 0;
  std::int64_t resumed_ns = 0;
  Descriptor ended;
  std::thread thread;
};

Watchdog::Watchdog(const OpGraph& graph, std::vector<RecorderOwner> owners, WatchdogOptions options,
                   std::function<void(const Alarm&)> on_alarm)
    : impl_(std::make_unique<Impl>(graph, std::move(owners), std::move(options), std::move(on_alarm))) {}

Watchdog::~Watchdog() = default;

void Watchdog::use(const OpGraph& graph) { impl_->use(graph); }

WaitReport Watchdog::look() { return impl_->look(); }

}  // namespace sluice::exec
