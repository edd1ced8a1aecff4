#include "exec/transport/nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "exec/transport/nccl_communicators.h"

namespace sluice::exec {
NcclCommunicators::NcclCommunicators(const NcclFunctions& functions, Device& device, int rank, int size,
                                     const NcclOptions& options)
    : functions_(functions), device_(device), rank_(rank), size_(size), options_(options) {}

NcclCommunicators::~NcclCommunicators() { finish(); }

NcclConfig NcclCommunicators::configuration(int most_blocks) const {
  NcclConfig config;
  config.blocking = 1;
  if (most_blocks > 0) {
    config.min_ctas = 1;
    config.max_ctas = most_blocks;
  }
  return config;
}

void NcclCommunicators::check(NcclResult result, NcclCommunicator communicator, const char* name,
                              const std::string& what) const {
  if (result == kNcclSuccess) return;
  const char* const last = functions_.last_error(communicator);
  const std::string more = last == nullptr || *last == '\0' ? "" : fmt::format(" ({})", last);
  throw DeviceError(fmt::format("{} for {} on rank {}, {}: {}{}", name, what, rank_, device_.name(),
                                functions_.error_text(result), more));
}

void NcclCommunicators::give_up(const std::string& what) const {
  throw DeviceError(
      fmt::format("NCCL: {}: rank {} has waited {} s for the other ranks: one of them has not arrived or "
                  "cannot be reached (NCCL_DEBUG=INFO prints details)",
                  what, rank_, std::chrono::duration_cast<std::chrono::duration<double>>(options_.patience).count()));
}

void NcclCommunicators::look_at(NcclCommunicator communicator, const std::string& what) {
  const std::lock_guard lock(calls_);
  throw_if_aborted();
  NcclResult state = kNcclSuccess;
  check(functions_.get_async_error(communicator, &state), communicator, "ncclCommGetAsyncError", what);
  check(state, communicator, "NCCL", what);
}

std::future<NcclResult> NcclCommunicators::on_own_thread(std::function<NcclResult()> call) {
  std::packaged_task<NcclResult()> task([call = std::move(call), device = &device_, aborted = aborted_] {
    device->make_current();
    return aborted->load() ? kNcclSuccess : call();
  });
  std::future<NcclResult> result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

void NcclCommunicators::issue_and_wait(NcclCommunicator communicator, const char* name, const std::string& what,
                                       const Transport& host, std::function<NcclResult()> call) {
  throw_if_aborted();
  std::future<NcclResult> result = on_own_thread(std::move(call));
  try {
    wait_until(what, host, [&] { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  } catch (...) {
    // Ends the call, unless it creates the world: that thread is left behind.
    abort();
    if (communicator != nullptr) result.wait_for(options_.abort_budget);
    throw;
  }
  const NcclResult ended = result.get();
  throw_if_aborted();
  check(ended, communicator, name, what);
}

void NcclCommunicators::make_world(const NcclId& id, const Transport& host) {
  const auto made = std::make_shared<NcclCommunicator>(nullptr);  // lives as long as a thread that is left behind
  issue_and_wait(nullptr, "ncclCommInitRankConfig", fmt::format("the world of {} ranks", size_), host,
                 [made, id, size = size_, rank = rank_, init_rank = functions_.init_rank,
                  config = configuration(0)]() mutable { return init_rank(made.get(), size, id, rank, &config); });
  keep(*made);
}

void NcclCommunicators::keep(NcclCommunicator communicator) {
  const std::lock_guard lock(calls_);
  throw_if_aborted();
  communicators_.push_back(communicator);
}

NcclCommunicator NcclCommunicators::split(const std::vector<std::vector<int>>& members, int most_blocks,
                                          const std::string& what, const Transport& host) {
  int colour = kNcclNoColour;
  int key = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto me = std::find(members[i].begin(), members[i].end(), rank_);
    if (me == members[i].end()) continue;
    colour = static_cast<int>(i);
    key = static_cast<int>(me - members[i].begin());
  }
  const NcclCommunicator world = communicators_.front();
  const auto made = std::make_shared<NcclCommunicator>(nullptr);
  issue_and_wait(world, "ncclCommSplit", what, host,
                 [made, world, colour, key, split = functions_.split, config = configuration(most_blocks)]() mutable {
                   return split(world, colour, key, made.get(), &config);
                 });
  if (colour == kNcclNoColour) return nullptr;
  keep(*made);
  return *made;
}

void NcclCommunicators::abort() {
  // Waits one second at most: the thread inside NCCL may be the one that has to be aborted.
  std::unique_lock lock(calls_, std::defer_lock);
  for (int look = 0; look < 1000 && !lock.try_lock(); ++look) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (aborted_->exchange(true)) return;
  // Shared with the threads, which may outlive this call.
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t left = 0;
  };
  const auto progress = std::make_shared<Progress>();
  const std::vector<NcclCommunicator> all = communicators_;
  if (lock.owns_lock()) lock.unlock();
  progress->left = all.size();
  for (NcclCommunicator const each : all) {
    std::thread([progress, each, abort = functions_.abort] {
      abort(each);
      const std::lock_guard done(progress->mutex);
      --progress->left;
      progress->changed.notify_all();
    }).detach();
  }
  std::unique_lock waiting(progress->mutex);
  progress->changed.wait_for(waiting, options_.abort_budget, [&] { return progress->left == 0; });
}

void NcclCommunicators::finish() noexcept {
  if (aborted()) return;
  const auto deadline = std::chrono::steady_clock::now() + options_.abort_budget;
  try {
    // Communicators that were split off are freed before the world.
    for (; !communicators_.empty(); communicators_.pop_back()) {
      NcclCommunicator const last = communicators_.back();
      std::future<NcclResult> ended = on_own_thread([last, finalize = functions_.finalize] { return finalize(last); });
      if (ended.wait_until(deadline) != std::future_status::ready || ended.get() != kNcclSuccess) return abort();
      functions_.destroy(last);
    }
  } catch (...) {
    // Failures while freeing are ignored.
  }
}

std::vector<std::vector<std::size_t>> rounds_without_overlap(const std::vector<std::vector<int>>& members) {
  std::vector<std::vector<std::size_t>> rounds;
  std::vector<std::vector<int>> taken;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto free = [&](const std::vector<int>& ranks) {
      return std::none_of(members[i].begin(), members[i].end(),
                          [&](int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); });
    };
    const auto round = static_cast<std::size_t>(std::find_if(taken.begin(), taken.end(), free) - taken.begin());
    if (round == rounds.size()) {
      rounds.emplace_back();
      taken.emplace_back();
    }
    rounds[round].push_back(i);
    taken[round].insert(taken[round].end(), members[i].begin(), members[i].end());
  }
  return rounds;
}

NcclWorld::NcclWorld(const NcclFunctions& functions, Device& device, Transport& host, const NcclOptions& options)
    : host_(host),
      communicators_(std::make_unique<NcclCommunicators>(functions, device, host.rank(), host.size(), options)),
      exceptions_(std::uncaught_exceptions()) {
  device.make_current();
  NcclId id{};
  if (host.rank() == 0 && functions.get_unique_id(&id) != kNcclSuccess) {
    throw DeviceError(fmt::format("ncclGetUniqueId: {}", functions.last_error(nullptr)));
  }
  host.broadcast(std::as_writable_bytes(std::span(id.bytes)));
  try {
    communicators_->make_world(id, host);
    devices_ = make_nccl_devices(*communicators_, host);
    host.on_stop([this] { communicators_->abort(); });
  } catch (...) {
    communicators_->abort();
    throw;
  }
}

NcclWorld::~NcclWorld() {
  host_.on_stop({});
  try {
    // An orderly end needs the other ranks.
    if (std::uncaught_exceptions() > exceptions_ || host_.stopped()) communicators_->abort();
  } catch (const std::exception&) {
    // The process ends.
  }
  communicators_->finish();
}

void NcclWorld::abort() { communicators_->abort(); }

}  // namespace sluice::exec
