#include "exec/run/watched.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "exec/steady_clock.h"
#include "exec/watch/diagnosis.h"
#include "exec/watch/failure.h"
#include "exec/watch/process_state.h"
#include "exec/watch/recorder_file.h"
#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

std::vector<const OpGraph*> graphs_of(const WatchedPlans& watched) {
  std::vector<const OpGraph*> graphs;
  for (const RunPlan* const plan : watched.plans) graphs.push_back(&plan->graph());
  return graphs;
}

// Fills in process and host of all workers in `owners`, on every worker.
void exchange_owners(Transport& transport, std::vector<RecorderOwner>& owners) {
  struct Known {
    std::int64_t process = 0;
    std::array<char, 256> host{};
  };
  const RecorderOwner& own = owners[transport.rank()];
  Known mine{.process = own.process};
  std::copy_n(own.host.begin(), std::min(own.host.size(), mine.host.size() - 1), mine.host.begin());
  const auto all = transport.gather(std::as_bytes(std::span(&mine, 1)));
  std::vector<Known> known(owners.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) std::memcpy(&known[rank], all[rank].data(), sizeof(Known));
  transport.broadcast(std::as_writable_bytes(std::span(known)));
  for (std::size_t rank = 0; rank < owners.size(); ++rank) {
    owners[rank].process = known[rank].process;
    owners[rank].host = known[rank].host.data();
  }
}

template <typename Work>
std::exception_ptr failure_of(const Work& work) {
  try {
    work();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// All processes begin, or none does, because one of them has failed: its memory or its folder may be another one.
// Throws the own `failure`; otherwise, on the root, the failure of the first process that has one, with its rank.
void begin_together(Transport& transport, const std::exception_ptr& failure) {
  std::string note;  // its kind and text
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const DoesNotFit& error) {
    note = std::string("m") + error.what();
  } catch (const InputError& error) {
    note = std::string("i") + error.what();
  } catch (const std::exception& error) {
    note = std::string("x") + error.what();
  }
  const auto notes = transport.gather(std::as_bytes(std::span(note)));
  const auto first = std::find_if(notes.begin(), notes.end(), [](const auto& each) { return !each.empty(); });
  bool good = first == notes.end();
  transport.broadcast(std::as_writable_bytes(std::span(&good, 1)));
  if (failure) std::rethrow_exception(failure);
  if (good) return;
  if (first == notes.end()) throw InputError("another process has failed");  // only the root has the notes
  const std::string text =
      fmt::format("rank {}: {}", first - notes.begin(),
                  std::string_view(reinterpret_cast<const char*>(first->data()), first->size()).substr(1));
  if (first->front() == std::byte{'m'}) throw DoesNotFit(text);
  if (first->front() == std::byte{'i'}) throw InputError(text);
  throw std::runtime_error(text);
}

// Waits of a process for the others before the run is watched: stops the transport when they take too long, or when one
// of them on this host is suspended for too long or has died.
class StartDeadline {
 public:
  StartDeadline(Transport& transport, const Supervision& supervision)
      : transport_(transport), supervision_(supervision) {
    if (supervision.folder.empty()) return;
    transport_.on_control_wait([this](int peer) { awaited_.store(peer); });
    timer_ = std::thread([this] { watch(); });
  }
  ~StartDeadline() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    if (timer_.joinable()) timer_.join();
    transport_.on_control_wait(nullptr);
  }
  StartDeadline(const StartDeadline&) = delete;
  StartDeadline& operator=(const StartDeadline&) = delete;

  // The processes of all workers are known from now on.
  void set_owners(const std::vector<RecorderOwner>& owners) {
    const std::lock_guard lock(mutex_);
    owners_ = owners;
  }

  // Calls `meet`, which waits for the other processes. Throws RunFailure.
  template <typename Meet>
  void within(const Meet& meet) {
    try {
      meet();
    } catch (const Stopped&) {
      const std::lock_guard lock(mutex_);
      if (!failure_) throw;
      throw agree_on_diagnosis(supervision_.folder, *failure_);
    }
  }

 private:
  void watch() {
    const std::int64_t began = now_ns();
    std::int64_t last_look = began;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(50), [this] { return ended_; })) {
      const std::int64_t now = now_ns();
      // After a pause of this process, the others have their whole time again.
      if (now - last_look > 1'000'000'000) trouble_.clear();
      last_look = now;
      failure_ = trouble_of_others(now);
      if (!failure_ && now - began > supervision_.limits.start_ns) {
        failure_ = RunFailure(
            FailureKind::stuck, awaited_.load(),
            fmt::format("rank {} has waited at {} for rank {} for {} s", transport_.rank(),
                        name_of(ControlPhase::start), awaited_.load(), in_seconds(supervision_.limits.start_ns)));
      }
      if (failure_) return transport_.stop();
    }
  }

  std::optional<RunFailure> trouble_of_others(std::int64_t now) {
    trouble_.resize(owners_.size(), {ProcessState::running, 0});
    for (const RecorderOwner& owner : owners_) {
      if (owner.world_rank == transport_.rank() || owner.host != host_name() || owner.process == ::getpid()) continue;
      auto& [state, since] = trouble_[to_size(owner.world_rank)];
      const ProcessState seen = process_state(owner.process);
      if (seen != state) since = now;
      state = seen;
      const WaitLimits& limits = supervision_.limits;
      const std::string where = fmt::format("at {}", name_of(ControlPhase::start));
      if (state == ProcessState::suspended && now - since > limits.floor_ns) {
        return RunFailure(FailureKind::stuck, owner.world_rank,
                          fmt::format("rank {} has been suspended {} for {:.1f} s", owner.world_rank, where,
                                      in_seconds(now - since)));
      }
      if (state == ProcessState::dead && now - since > limits.grace_ns) {
        return RunFailure(FailureKind::lost, owner.world_rank, fmt::format("rank {} died {}", owner.world_rank, where));
      }
    }
    return std::nullopt;
  }

  Transport& transport_;
  const Supervision& supervision_;
  std::atomic<int> awaited_{-1};
  std::mutex mutex_;  // guards the next four
  std::vector<RecorderOwner> owners_;
  std::vector<std::pair<ProcessState, std::int64_t>> trouble_;  // by world rank, and since when
  std::optional<RunFailure> failure_;
  bool ended_ = false;
  std::condition_variable changed_;
  std::thread timer_;
};

}  // namespace

std::vector<RecorderOwner> owners_of(const RunPlan& plan) {
  const RunLayout& layout = plan.layout();
  std::vector<RecorderOwner> owners;
  for (int rank = 0; rank < layout.size(); ++rank) {
    owners.push_back({.world_rank = rank,
                      .pipeline_rank = layout.pipeline_rank(rank),
                      .data_rank = layout.data_rank(rank),
                      .tensor_rank = layout.tensor_rank(rank),
                      .expert_ranks = plan.has_experts() ? layout.expert : 0,
                      .world_size = layout.size(),
                      .process = static_cast<std::int64_t>(::getpid()),
                      .host = host_name()});
  }
  return owners;
}

ControlRecorder::ControlRecorder(Transport& transport, Recorder* recorder)
    : transport_(transport), recorder_(recorder) {
  if (recorder == nullptr) return;
  transport_.on_control_wait([this](int peer) { recorder_->control(phase_, last_step_, peer); });
}

ControlRecorder::~ControlRecorder() { transport_.on_control_wait(nullptr); }

void ControlRecorder::enter(ControlPhase phase, std::int64_t last_step) {
  phase_ = phase;
  last_step_ = static_cast<int>(last_step);
  if (recorder_ != nullptr) recorder_->control(phase_, last_step_, -1);
}

std::unique_ptr<Supervisor> watch_process(const WatchedPlans& watched, Transport& transport, const BeginCheck& check) {
  const RunPlan& plan = *watched.plans.front();
  // Exchange the owners: which workers share this host?
  std::vector<RecorderOwner> owners = owners_of(plan);
  std::optional<StartDeadline> start(std::in_place, transport, watched.supervision);
  start->within([&] { exchange_owners(transport, owners); });
  start->set_owners(owners);
  std::vector<int> workers_here(to_size(plan.layout().pipeline), 0);
  for (const RecorderOwner& owner : owners) {
    if (owner.host == host_name()) ++workers_here[owner.pipeline_rank];
  }
  std::unique_ptr<Supervisor> supervisor;
  const std::exception_ptr failure = failure_of([&] {
    check(owners, workers_here);
    supervisor = std::make_unique<Supervisor>(graphs_of(watched), watched.supervision, owners,
                                              std::vector{transport.rank()}, [&transport] { transport.stop(); });
  });
  start->within([&] { begin_together(transport, failure); });
  start.reset();
  supervisor->watch();
  return supervisor;
}

std::exception_ptr run_watched(Supervisor& supervisor, const Transport& transport, const std::function<void()>& work) {
  const int rank = transport.rank();
  std::exception_ptr failure;
  try {
    work();
  } catch (const Stopped&) {  // another worker has failed
  } catch (...) {
    failure = std::current_exception();
    supervisor.fail(rank, failure);
  }
  if (Recorder* const recorder = supervisor.recorder(rank); recorder != nullptr && !transport.stopped()) {
    recorder->doing(WorkerThread::compute, Activity::finished, 0);
  }
  return failure;
}

void work_as_process(const WatchedPlans& watched, Transport& transport, const WorkerDevice& device,
                     const WatchedWork& work) {
  if (watched.supervision.folder.empty()) return work(transport, device, nullptr);
  const auto supervisor = watch_process(watched, transport, [](const auto&, const auto&) {});
  run_watched(*supervisor, transport, [&] { work(transport, device, supervisor.get()); });
  supervisor->end();
}

void work_on_threads(const WatchedPlans& watched, int workers, const RunDevices& devices, const WatchedWork& work) {
  const auto work_unwatched = [&](Transport& transport, const WorkerDevice& device) {
    work(transport, device, nullptr);
  };
  if (watched.supervision.folder.empty()) return on_device_threads(workers, devices, work_unwatched);
  std::vector<int> here(to_size(workers));
  std::iota(here.begin(), here.end(), 0);
  std::mutex mutex;
  Transport* root = nullptr;  // while its worker runs
  const auto stop = [&] {
    const std::lock_guard lock(mutex);
    if (root != nullptr) root->stop();
  };
  const auto set_root = [&](const Transport& transport, Transport* to) {
    const std::lock_guard lock(mutex);
    if (transport.rank() == Transport::kRoot) root = to;
  };
  Supervisor supervisor(graphs_of(watched), watched.supervision, owners_of(*watched.plans.front()), here, stop);
  supervisor.watch();
  try {
    on_device_threads(workers, devices, [&](Transport& transport, const WorkerDevice& device) {
      set_root(transport, &transport);
      const auto failure = run_watched(supervisor, transport, [&] { work(transport, device, &supervisor); });
      set_root(transport, nullptr);
      if (failure) std::rethrow_exception(failure);  // stops the others
    });
  } catch (...) {
    // The supervisor has the first failure.
  }
  supervisor.end();
}

}  // namespace sluice::exec
