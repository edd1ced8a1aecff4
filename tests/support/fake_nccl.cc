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

// One end of a message.
struct Transfer {
  int sender;
  int receiver;
  bool sends;
  Half half;
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
  bool splits_edges = false;  // the split limits the blocks of its operations
  bool edge = false;
  std::atomic<bool> in_flight{false};  // an edge's message
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
  void* stream;
  std::vector<Transfer> transfers;
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

// Returns whether an operation may begin. The caller holds the communicator's mutex.
bool may_begin(const Communicator& communicator) {
  if (!communicator.ended && communicator.looks_left == 0 && !communicator.joining && !communicator.splitting) {
    return true;
  }
  complain(communicator.ended ? "a communicator is used after its end" : "a communicator in progress is used");
  return false;
}

NcclResult put(Communicator& communicator, void* stream, std::function<void()> task) {
  const std::lock_guard lock(communicator.mutex);
  if (!may_begin(communicator)) return kInvalidUsage;
  if (in_group) complain("a collective in a group");
  return start(
      communicator, [stream, task = std::move(task)] { emulation::put(*static_cast<Stream*>(stream), task); }, true);
}

NcclResult group_start() {
  if (in_group) complain("a group in a group");
  in_group = true;
  return kNcclSuccess;
}

// Waits for the other ends, as a kernel would; on return all have the data.
void exchange(Communicator& communicator, std::vector<Transfer>& transfers) {
  Clique& clique = *communicator.clique;
  std::unique_lock lock(clique.mutex);
  for (Transfer& mine : transfers) {
    const std::pair<int, int> key{mine.sender, mine.receiver};
    auto& others = mine.sends ? clique.receives[key] : clique.sends[key];
    if (others.empty()) {
      (mine.sends ? clique.sends : clique.receives)[key].push_back(&mine.half);
      continue;
    }
    Half& other = *others.front();
    others.pop_front();
    if (other.bytes != mine.half.bytes) complain("a message and its receive differ in size");
    const std::size_t bytes = std::min(other.bytes, mine.half.bytes);
    std::memcpy(mine.sends ? other.data : mine.half.data, mine.sends ? mine.half.data : other.data, bytes);
    other.done = true;
    mine.half.done = true;
    clique.changed.notify_all();
  }
  const auto all_done = [&] {
    return std::all_of(transfers.begin(), transfers.end(), [](const Transfer& mine) { return mine.half.done; });
  };
  clique.changed.wait(lock, [&] { return all_done() || communicator.aborted; });
  for (Transfer& mine : transfers) {
    if (mine.half.done) continue;
    auto& where = (mine.sends ? clique.sends : clique.receives)[{mine.sender, mine.receiver}];
    where.erase(std::find(where.begin(), where.end(), &mine.half));
  }
}

// Enqueues the messages of one communicator, which run together. The caller holds the communicator's mutex.
// On a GPU, whatever NCCL launches later may have to wait for a message that is behind another one.
NcclResult start_transfers(Communicator& communicator, void* stream, std::vector<Transfer> transfers, bool first) {
  if (communicator.edge && communicator.in_flight.exchange(true)) complain("a message behind another one of its edge");
  const auto task = [&communicator, transfers = std::move(transfers)]() mutable {
    exchange(communicator, transfers);
    communicator.in_flight = false;
  };
  return start(
      communicator, [stream, task] { emulation::put(*static_cast<Stream*>(stream), task); }, first);
}

// Enqueues a message now, or at the end of the group.
NcclResult put(Communicator& communicator, void* stream, const Transfer& transfer) {
  const std::lock_guard lock(communicator.mutex);
  if (!may_begin(communicator)) return kInvalidUsage;
  if (!in_group) return start_transfers(communicator, stream, {transfer}, true);
  if (!communicator.connected && communicator.edge) complain("a communicator connects in a group");
  const auto same = std::find_if(grouped.begin(), grouped.end(),
                                 [&](const Grouped& other) { return other.communicator == &communicator; });
  if (same == grouped.end()) {
    grouped.push_back({&communicator, stream, {transfer}});
    return kNcclSuccess;
  }
  if (communicator.edge) complain("two messages of an edge in a group");
  if (same->stream != stream) complain("two streams of a communicator in a group");
  same->transfers.push_back(transfer);
  return kNcclSuccess;
}

NcclResult group_end() {
  in_group = false;
  NcclResult result = kNcclSuccess;
  bool first = true;
  for (Grouped& each : std::exchange(grouped, {})) {
    const std::lock_guard lock(each.communicator->mutex);
    if (start_transfers(*each.communicator, each.stream, std::move(each.transfers), first) != kNcclSuccess) {
      result = kNcclInProgress;
    }
    first = false;
  }
  return result;
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
  communicator.splits_edges = config->max_ctas != kNcclUndefined;
  communicator.split_into = reinterpret_cast<Communicator**>(made);
  const std::lock_guard members(communicator.clique->mutex);
  communicator.clique->splits[communicator.splits].wishes[communicator.rank] = {colour, key};
  return kNcclSuccess;  // as of NCCL 2.28, although it is in progress
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
  Communicator* const fresh = make(child, rank, communicator.world_rank);
  fresh->edge = communicator.splits_edges;
  *communicator.split_into = fresh;
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
  return put(communicator, stream, Transfer{communicator.rank, peer, true, {bytes, count}});
}

NcclResult receive(void* data, std::size_t count, NcclType, int peer, NcclCommunicator handle, void* stream) {
  Communicator& communicator = *of(handle);
  return put(communicator, stream, Transfer{peer, communicator.rank, false, {static_cast<std::byte*>(data), count}});
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

}  // namespace sluice::test
