#include "tests/support/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/cuda/lanes.h"
#include "kernels/emulation/device.h"

namespace sluice::test {
namespace {

constexpr NcclResult kInvalidUsage = 5;
constexpr NcclResult kRemoteError = 6;
constexpr int kLooks = 3;  // calls of ncclCommGetAsyncError until a connection is made

struct Communicator;

// Two ends of a message; the second to arrive finds the data of the first.
struct Half {
  std::byte* data;
  std::size_t bytes;
  bool done = false;
};

struct Clique {
  int size = 0;
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<Half*>> sends;     // by sender and receiver
  std::map<std::pair<int, int>, std::deque<Half*>> receives;  // likewise
  std::vector<void*> brought;                                 // inputs of an all-reduce, by rank
  int arrived = 0;
  int left = 0;
  struct Split {
    std::map<int, std::pair<int, int>> wishes;  // by rank: colour, key
    std::map<int, std::shared_ptr<Clique>> made;
  };
  std::map<int, Split> splits;  // by number
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int world_rank = 0;
  std::mutex mutex;  // guards the members below
  int looks_left = 0;
  std::function<void()> when_settled;
  bool connected = false;
  bool joining = false;
  int splits = 0;
  bool splitting = false;
  int colour = 0;
  Communicator** split_into = nullptr;
  std::thread::id by;
  bool ended = false;
  std::atomic<bool> aborted{false};  // operations that wait on the device end
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Clique>> worlds;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::string> misuse;
  std::map<std::thread::id, int> in_progress;  // by thread
  int alive = 0;
  int ids = 0;
  int aborting = 0;
  int most_aborting = 0;
  int abort_waits_for = 0;
  bool abort_hangs = false;
  int fails = -1;
  int looks = 0;  // calls of ncclCommGetAsyncError until an operation of a connected communicator is enqueued
  int operations = 0;
};
State* state = nullptr;

// A call inside a group, until its end.
struct Grouped {
  Communicator* communicator;
  std::function<void()> place;
};
thread_local bool in_group = false;
thread_local std::vector<Grouped> grouped;

Communicator* of(NcclCommunicator handle) { return reinterpret_cast<Communicator*>(handle); }

void complain(const std::string& text) {
  const std::lock_guard lock(state->mutex);
  state->misuse.push_back(text);
}

Communicator* make(std::shared_ptr<Clique> clique, int rank, int world_rank) {
  const std::lock_guard lock(state->mutex);
  auto fresh = std::make_unique<Communicator>();
  fresh->clique = std::move(clique);
  fresh->rank = rank;
  fresh->world_rank = world_rank;
  state->communicators.push_back(std::move(fresh));
  ++state->alive;
  return state->communicators.back().get();
}

// The caller holds the communicator's mutex. Counts the operation unless it continues that of a group.
void begin(Communicator& communicator, int looks, std::function<void()> when_settled, bool first) {
  communicator.looks_left = looks;
  communicator.when_settled = std::move(when_settled);
  communicator.by = std::this_thread::get_id();
  const std::lock_guard lock(state->mutex);
  if (state->in_progress[communicator.by]++ > 0 && first) {
    state->misuse.push_back("two operations of a thread in progress");
  }
}

void settle(Communicator& communicator) {
  const std::lock_guard lock(state->mutex);
  --state->in_progress[communicator.by];
}

// Enqueues an operation immediately, or later if it must connect first. The caller holds the communicator's mutex.
NcclResult start(Communicator& communicator, std::function<void()> place, bool first) {
  int looks = 0;
  {
    const std::lock_guard all(state->mutex);
    state->operations += first ? 1 : 0;
    looks = communicator.connected ? state->looks : kLooks;
  }
  communicator.connected = true;
  if (looks == 0) {
    place();
    return kNcclSuccess;
  }
  begin(communicator, looks, std::move(place), first);
  return kNcclInProgress;
}

// Calls `start` now, or at the end of the group.
NcclResult put(Communicator& communicator, void* stream, std::function<void()> task) {
  const std::lock_guard lock(communicator.mutex);
  if (communicator.ended || communicator.looks_left > 0 || communicator.joining || communicator.splitting) {
    complain(communicator.ended ? "a communicator is used after its end" : "a communicator in progress is used");
    return kInvalidUsage;
  }
  auto place = [stream, task = std::move(task)] { emulation::put(*static_cast<Stream*>(stream), task); };
  if (in_group) {
    for (const Grouped& other : grouped) {
      if (other.communicator == &communicator) complain("two messages of a communicator in a group");
    }
    if (!communicator.connected) complain("a communicator connects in a group");
    grouped.push_back({&communicator, std::move(place)});
    return kNcclSuccess;
  }
  return start(communicator, std::move(place), true);
}

NcclResult group_start() {
  if (in_group) complain("a group in a group");
  in_group = true;
  return kNcclSuccess;
}

NcclResult group_end() {
  in_group = false;
  NcclResult result = kNcclSuccess;
  bool first = true;
  for (Grouped& each : std::exchange(grouped, {})) {
    const std::lock_guard lock(each.communicator->mutex);
    if (start(*each.communicator, std::move(each.place), first) != kNcclSuccess) result = kNcclInProgress;
    first = false;
  }
  return result;
}

// Waits for the other end, as a kernel would; on return both have the data.
void exchange(Communicator& communicator, int sender, int receiver, bool sends, Half mine) {
  Clique& clique = *communicator.clique;
  std::unique_lock lock(clique.mutex);
  auto& others = sends ? clique.receives[{sender, receiver}] : clique.sends[{sender, receiver}];
  if (!others.empty()) {
    Half& other = *others.front();
    others.pop_front();
    if (other.bytes != mine.bytes) complain("a message and its receive differ in size");
    const std::size_t bytes = std::min(other.bytes, mine.bytes);
    std::memcpy(sends ? other.data : mine.data, sends ? mine.data : other.data, bytes);
    other.done = true;
    clique.changed.notify_all();
    return;
  }
  (sends ? clique.sends : clique.receives)[{sender, receiver}].push_back(&mine);
  clique.changed.wait(lock, [&] { return mine.done || communicator.aborted; });
  if (mine.done) return;
  auto& where = (sends ? clique.sends : clique.receives)[{sender, receiver}];
  where.erase(std::find(where.begin(), where.end(), &mine));
}

// Reduces in float32, in the order of the ranks, and rounds once.
template <class T>
void combine(const std::vector<void*>& brought, std::size_t count, NcclReduction reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    float all = cuda::to_float(static_cast<T*>(brought[0])[i]);
    for (std::size_t r = 1; r < brought.size(); ++r) {
      const float each = cuda::to_float(static_cast<T*>(brought[r])[i]);
      all = reduction == NcclReduction::sum ? all + each : std::max(all, each);
    }
    for (void* const each : brought) static_cast<T*>(each)[i] = cuda::from_float<T>(all);
  }
}

// When all members of the clique have arrived, the last one calls `combine` on their inputs.
void together(Communicator& communicator, void* data, const std::function<void(std::vector<void*>&)>& combine_all) {
  Clique& clique = *communicator.clique;
  std::unique_lock lock(clique.mutex);
  clique.changed.wait(lock, [&] { return clique.left == 0 || communicator.aborted; });  // of the previous all-reduce
  if (communicator.aborted) return;
  clique.brought.resize(clique.size);
  clique.brought[communicator.rank] = data;
  if (++clique.arrived == clique.size) {
    combine_all(clique.brought);
    clique.left = clique.size;
    clique.arrived = 0;
    clique.changed.notify_all();
  } else {
    clique.changed.wait(lock, [&] { return clique.left > 0 || communicator.aborted; });
    if (communicator.aborted) return;
  }
  if (clique.left > 0) --clique.left;
  clique.changed.notify_all();
}

void reduce(Communicator& communicator, void* data, std::size_t count, NcclType type, NcclReduction reduction) {
  together(communicator, data, [&](std::vector<void*>& brought) {
    switch (type) {
      case NcclType::float16: combine<cuda::float16>(brought, count, reduction); break;
      case NcclType::bfloat16: combine<cuda::bfloat16>(brought, count, reduction); break;
      case NcclType::float32: combine<float>(brought, count, reduction); break;
      case NcclType::int8: complain("a sum of bytes"); break;
    }
  });
}

void gather(Communicator& communicator, void* data, std::size_t share) {
  together(communicator, data, [&](std::vector<void*>& brought) {
    for (std::size_t from = 0; from < brought.size(); ++from) {
      for (std::size_t to = 0; to < brought.size(); ++to) {
        if (from == to) continue;
        std::memcpy(static_cast<std::byte*>(brought[to]) + from * share,
                    static_cast<const std::byte*>(brought[from]) + from * share, share);
      }
    }
  });
}

NcclResult get_version(int* version) {
  *version = 22809;
  return kNcclSuccess;
}

NcclResult get_unique_id(NcclId* id) {
  const std::lock_guard lock(state->mutex);
  const std::string text = "world " + std::to_string(++state->ids);
  id->bytes.fill('\0');
  std::copy(text.begin(), text.end(), id->bytes.begin());
  return kNcclSuccess;
}

NcclResult init_rank(NcclCommunicator* communicator, int size, NcclId id, int rank, NcclConfig* config) {
  if (config->magic != 0xcafebeef || config->size != sizeof(NcclConfig) || config->blocking != 0) {
    complain("a world's configuration");
  }
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(state->mutex);
    auto& world = state->worlds[id.bytes.data()];
    if (world == nullptr) world = std::make_shared<Clique>();
    clique = world;
  }
  Communicator* const fresh = make(clique, rank, rank);
  *communicator = reinterpret_cast<NcclCommunicator>(fresh);
  const std::lock_guard lock(fresh->mutex);
  fresh->joining = true;
  const std::lock_guard members(clique->mutex);
  clique->size = size;
  ++clique->joined;
  return kNcclInProgress;
}

NcclResult split(NcclCommunicator parent, int colour, int key, NcclCommunicator* made, NcclConfig* config) {
  Communicator& communicator = *of(parent);
  const std::lock_guard lock(communicator.mutex);
  if (config->blocking != 0) complain("a split's configuration");
  if (communicator.looks_left > 0 || communicator.joining || communicator.splitting || communicator.ended) {
    complain("a communicator in progress is split");
    return kInvalidUsage;
  }
  *made = nullptr;
  communicator.splitting = true;
  communicator.colour = colour;
  communicator.split_into = reinterpret_cast<Communicator**>(made);
  const std::lock_guard members(communicator.clique->mutex);
  communicator.clique->splits[communicator.splits].wishes[communicator.rank] = {colour, key};
  return kNcclInProgress;
}

// Returns whether all members have called the split that this one waits for. The caller holds the communicator's mutex.
bool finish_split(Communicator& communicator) {
  std::shared_ptr<Clique> child;
  int rank = 0;
  {
    Clique& clique = *communicator.clique;
    const std::lock_guard members(clique.mutex);
    Clique::Split& split = clique.splits[communicator.splits];
    if (static_cast<int>(split.wishes.size()) < clique.size) return false;
    ++communicator.splits;
    communicator.splitting = false;
    if (communicator.colour == kNcclNoColour) return true;
    int size = 0;
    const auto mine = std::pair(split.wishes[communicator.rank].second, communicator.rank);
    for (const auto& [other, wish] : split.wishes) {
      if (wish.first != communicator.colour) continue;
      ++size;
      rank += std::pair(wish.second, other) < mine ? 1 : 0;
    }
    auto& clique_of_colour = split.made[communicator.colour];
    if (clique_of_colour == nullptr) clique_of_colour = std::make_shared<Clique>();
    child = clique_of_colour;
    child->size = size;
  }
  *communicator.split_into = make(child, rank, communicator.world_rank);
  return true;
}

NcclResult get_async_error(NcclCommunicator handle, NcclResult* result) {
  Communicator& communicator = *of(handle);
  {
    const std::lock_guard lock(state->mutex);
    if (state->fails == communicator.world_rank) {
      *result = kRemoteError;
      return kNcclSuccess;
    }
  }
  const std::lock_guard lock(communicator.mutex);
  *result = kNcclSuccess;
  if (communicator.ended) complain("a communicator is looked at after its end");
  if (communicator.joining) {
    const std::lock_guard members(communicator.clique->mutex);
    communicator.joining = communicator.clique->joined < communicator.clique->size;
    if (communicator.joining) *result = kNcclInProgress;
  } else if (communicator.splitting) {
    if (!finish_split(communicator)) *result = kNcclInProgress;
  } else if (communicator.looks_left > 0) {
    if (--communicator.looks_left > 0) {
      *result = kNcclInProgress;
    } else {
      communicator.when_settled();
      settle(communicator);
    }
  }
  return kNcclSuccess;
}

void end(Communicator& communicator) {
  const std::lock_guard lock(communicator.mutex);
  if (communicator.ended) complain("a communicator is ended twice");
  communicator.ended = true;
  if (communicator.looks_left > 0) settle(communicator);
  const std::lock_guard all(state->mutex);
  --state->alive;
}

NcclResult finalize(NcclCommunicator) { return kNcclSuccess; }

NcclResult destroy(NcclCommunicator handle) {
  end(*of(handle));
  return kNcclSuccess;
}

NcclResult abort(NcclCommunicator handle) {
  Communicator& communicator = *of(handle);
  {
    std::unique_lock lock(state->mutex);
    ++state->aborting;
    state->most_aborting = std::max(state->most_aborting, state->aborting);
    state->changed.notify_all();
    if (state->abort_hangs) state->changed.wait(lock, [] { return !state->abort_hangs; });
    state->changed.wait(lock, [] { return state->most_aborting >= state->abort_waits_for; });
  }
  {
    const std::lock_guard lock(communicator.clique->mutex);
    communicator.aborted = true;
    communicator.clique->changed.notify_all();
  }
  end(communicator);
  const std::lock_guard lock(state->mutex);
  --state->aborting;
  return kNcclSuccess;
}

const char* error_text(NcclResult result) { return result == kRemoteError ? "remote process exited" : "invalid usage"; }
const char* last_error(NcclCommunicator) { return "said the fake"; }

NcclResult send(const void* data, std::size_t count, NcclType, int peer, NcclCommunicator handle, void* stream) {
  Communicator& communicator = *of(handle);
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(data));
  return put(communicator, stream, [&communicator, peer, bytes, count] {
    exchange(communicator, communicator.rank, peer, true, {bytes, count});
  });
}

NcclResult receive(void* data, std::size_t count, NcclType, int peer, NcclCommunicator handle, void* stream) {
  Communicator& communicator = *of(handle);
  auto* const bytes = static_cast<std::byte*>(data);
  return put(communicator, stream, [&communicator, peer, bytes, count] {
    exchange(communicator, peer, communicator.rank, false, {bytes, count});
  });
}

NcclResult all_reduce(const void* from, void* into, std::size_t count, NcclType type, NcclReduction reduction,
                      NcclCommunicator handle, void* stream) {
  if (from != into) complain("a sum that is not in place");
  Communicator& communicator = *of(handle);
  return put(communicator, stream,
             [&communicator, into, count, type, reduction] { reduce(communicator, into, count, type, reduction); });
}

NcclResult all_gather(const void* from, void* into, std::size_t count, NcclType type, NcclCommunicator handle,
                      void* stream) {
  Communicator& communicator = *of(handle);
  if (type != NcclType::int8) complain("a gather of other things than bytes");
  if (from != static_cast<std::byte*>(into) + static_cast<std::size_t>(communicator.rank) * count) {
    complain("a gather that is not in place");
  }
  return put(communicator, stream, [&communicator, into, count] { gather(communicator, into, count); });
}

}  // namespace

FakeNccl::FakeNccl()
    : functions_{.get_version = get_version,
                 .get_unique_id = get_unique_id,
                 .init_rank = init_rank,
                 .split = split,
                 .finalize = finalize,
                 .destroy = destroy,
                 .abort = abort,
                 .get_async_error = get_async_error,
                 .error_text = error_text,
                 .last_error = last_error,
                 .group_start = group_start,
                 .group_end = group_end,
                 .send = send,
                 .receive = receive,
                 .all_reduce = all_reduce,
                 .all_gather = all_gather,
                 .version = "2.28.9",
                 .path = "the fake"} {
  state = new State;
}

FakeNccl::~FakeNccl() {
  {
    std::unique_lock lock(state->mutex);
    state->abort_hangs = false;
    state->changed.notify_all();
  }
  // Lets the remaining threads end.
  while (true) {
    {
      const std::lock_guard lock(state->mutex);
      if (state->aborting == 0) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  delete state;
  state = nullptr;
}

std::vector<std::string> FakeNccl::misuse() const {
  const std::lock_guard lock(state->mutex);
  return state->misuse;
}
int FakeNccl::alive() const {
  const std::lock_guard lock(state->mutex);
  return state->alive;
}
int FakeNccl::most_aborts_at_once() const {
  const std::lock_guard lock(state->mutex);
  return state->most_aborting;
}
void FakeNccl::abort_waits_for(int others) {
  const std::lock_guard lock(state->mutex);
  state->abort_waits_for = others;
}
void FakeNccl::abort_hangs() {
  const std::lock_guard lock(state->mutex);
  state->abort_hangs = true;
}
int FakeNccl::operations() const {
  const std::lock_guard lock(state->mutex);
  return state->operations;
}
void FakeNccl::take_looks(int looks) {
  const std::lock_guard lock(state->mutex);
  state->looks = looks;
}
void FakeNccl::fail(int world_rank) {
  const std::lock_guard lock(state->mutex);
  state->fails = world_rank;
}

std::function<void(std::span<std::byte>)> FirstSays::to(int rank) {
  return [this, rank](std::span<std::byte> bytes) {
    const auto shared = std::as_writable_bytes(std::span(id_.bytes));
    if (rank == 0) {
      std::copy(bytes.begin(), bytes.end(), shared.begin());
      written_.count_down();
    }
    written_.wait();
    std::copy(shared.begin(), shared.end(), bytes.begin());
  };
}

}  // namespace sluice::test
