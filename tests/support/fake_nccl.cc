#include "tests/support/fake_nccl.h"

#include <algorithm>
#include <array>
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

// What the first use of a communicator connects: all of its ranks, apart for collectives and for messages.
enum Connection : std::size_t { kCollectives, kMessages, kNumConnections };

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
  std::array<int, kNumConnections> connecting{};              // number of members that have come
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
  std::array<bool, kNumConnections> connected{};
  int splits = 0;
  bool edge = false;                   // its operations use few blocks
  std::atomic<bool> in_flight{false};  // an edge's message
  std::atomic<bool> in_call{false};    // of NCCL
  std::atomic<bool> ended{false};
  std::atomic<bool> aborted{false};  // calls of NCCL, and operations that wait on the device, end
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Clique>> worlds;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::string> misuse;
  int alive = 0;
  int ids = 0;
  int aborting = 0;
  int most_aborting = 0;
  int abort_waits_for = 0;
  bool abort_hangs = false;
  int fails = -1;
  int never_connects = -1;
  int never_finalizes = -1;
  int waiting = 0;                // calls that wait for other ranks
  std::atomic<bool> over{false};  // they end
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

// A call that uses a communicator: NCCL allows one at a time.
class Use {
 public:
  explicit Use(Communicator& communicator) : communicator_(communicator), alone_(!communicator.in_call.exchange(true)) {
    if (!alone_) complain("a communicator is used by two calls");
    if (communicator.ended) complain("a communicator is used after its end");
  }
  ~Use() {
    if (alone_) communicator_.in_call = false;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  bool allowed() const { return alone_ && !communicator_.ended; }

 private:
  Communicator& communicator_;
  bool alone_;
};

// Blocks until the condition holds, which other members of the clique change. Returns an error if `communicator`,
// unless null, is aborted before, or the fake ends.
template <typename Condition>
NcclResult wait_for_members(Clique& clique, const Communicator* communicator, const Condition& come) {
  const auto count = [](int change) {
    const std::lock_guard lock(state->mutex);
    state->waiting += change;
  };
  count(1);
  NcclResult result = kNcclSuccess;
  {
    std::unique_lock lock(clique.mutex);
    const auto ends = [&] { return (communicator != nullptr && communicator->aborted) || state->over; };
    clique.changed.wait(lock, [&] { return ends() || come(); });
    if (ends()) result = kRemoteError;
  }
  count(-1);
  return result;
}

// The first use of a communicator waits for the first use of all its members.
NcclResult connect(Communicator& communicator, Connection connection) {
  if (communicator.connected[connection]) return kNcclSuccess;
  Clique& clique = *communicator.clique;
  bool comes = true;
  {
    const std::lock_guard lock(state->mutex);
    comes = state->never_connects != communicator.world_rank;
  }
  {
    const std::lock_guard lock(clique.mutex);
    clique.connecting[connection] += comes ? 1 : 0;
    clique.changed.notify_all();
  }
  communicator.connected[connection] = true;
  return wait_for_members(clique, &communicator, [&] { return clique.connecting[connection] == clique.size; });
}

NcclResult put(Communicator& communicator, void* stream, const std::function<void()>& task) {
  const Use use(communicator);
  if (!use.allowed()) return kInvalidUsage;
  if (in_group) complain("a collective in a group");
  const NcclResult connected = connect(communicator, kCollectives);
  if (connected == kNcclSuccess) emulation::put(*static_cast<Stream*>(stream), task);
  return connected;
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

// Enqueues the messages of one communicator, which run together.
// On a GPU, whatever NCCL launches later may have to wait for a message that is behind another one.
NcclResult start_transfers(Communicator& communicator, void* stream, std::vector<Transfer> transfers) {
  const Use use(communicator);
  if (!use.allowed()) return kInvalidUsage;
  const NcclResult connected = connect(communicator, kMessages);
  if (connected != kNcclSuccess) return connected;
  if (communicator.edge && communicator.in_flight.exchange(true)) complain("a message behind another one of its edge");
  emulation::put(*static_cast<Stream*>(stream), [&communicator, transfers = std::move(transfers)]() mutable {
    exchange(communicator, transfers);
    communicator.in_flight = false;
  });
  return kNcclSuccess;
}

// Enqueues a message now, or at the end of the group.
NcclResult put(Communicator& communicator, void* stream, const Transfer& transfer) {
  if (!in_group) return start_transfers(communicator, stream, {transfer});
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
  for (Grouped& each : std::exchange(grouped, {})) {
    const NcclResult result = start_transfers(*each.communicator, each.stream, std::move(each.transfers));
    if (result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
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

NcclResult init_rank(NcclCommunicator* made, int size, NcclId id, int rank, NcclConfig* config) {
  if (config->magic != 0xcafebeef || config->size != sizeof(NcclConfig) || config->blocking != 1) {
    complain("a world's configuration");
  }
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(state->mutex);
    auto& world = state->worlds[id.bytes.data()];
    if (world == nullptr) world = std::make_shared<Clique>();
    clique = world;
  }
  {
    const std::lock_guard lock(clique->mutex);
    clique->size = size;
    ++clique->joined;
    clique->changed.notify_all();
  }
  const NcclResult joined = wait_for_members(*clique, nullptr, [&] { return clique->joined == size; });
  if (joined == kNcclSuccess) *made = reinterpret_cast<NcclCommunicator>(make(clique, rank, rank));
  return joined;
}

NcclResult split(NcclCommunicator parent, int colour, int key, NcclCommunicator* made, NcclConfig* config) {
  Communicator& communicator = *of(parent);
  if (config->blocking != 1) complain("a split's configuration");
  const Use use(communicator);
  if (!use.allowed()) return kInvalidUsage;
  Clique& clique = *communicator.clique;
  Clique::Split* split = nullptr;
  {
    const std::lock_guard lock(clique.mutex);
    split = &clique.splits[communicator.splits++];
    split->wishes[communicator.rank] = {colour, key};
    clique.changed.notify_all();
  }
  const NcclResult met =
      wait_for_members(clique, &communicator, [&] { return static_cast<int>(split->wishes.size()) == clique.size; });
  if (met != kNcclSuccess || colour == kNcclNoColour) return met;
  int rank = 0;
  std::shared_ptr<Clique> child;
  {
    const std::lock_guard lock(clique.mutex);
    int size = 0;
    const auto mine = std::pair(key, communicator.rank);
    for (const auto& [other, wish] : split->wishes) {
      if (wish.first != colour) continue;
      ++size;
      rank += std::pair(wish.second, other) < mine ? 1 : 0;
    }
    auto& clique_of_colour = split->made[colour];
    if (clique_of_colour == nullptr) clique_of_colour = std::make_shared<Clique>();
    child = clique_of_colour;
    child->size = size;
  }
  Communicator* const fresh = make(child, rank, communicator.world_rank);
  fresh->edge = config->max_ctas != kNcclUndefined;
  *made = reinterpret_cast<NcclCommunicator>(fresh);
  return kNcclSuccess;
}

NcclResult get_async_error(NcclCommunicator handle, NcclResult* result) {
  const Communicator& communicator = *of(handle);
  if (communicator.ended) complain("a communicator is looked at after its end");
  const std::lock_guard lock(state->mutex);
  *result = state->fails == communicator.world_rank ? kRemoteError : kNcclSuccess;
  return kNcclSuccess;
}

void end(Communicator& communicator) {
  if (communicator.ended.exchange(true)) complain("a communicator is ended twice");
  const std::lock_guard lock(state->mutex);
  --state->alive;
}

NcclResult finalize(NcclCommunicator handle) {
  Communicator& communicator = *of(handle);
  const Use use(communicator);
  if (!use.allowed()) return kInvalidUsage;
  bool ends = true;
  {
    const std::lock_guard lock(state->mutex);
    ends = state->never_finalizes != communicator.world_rank;
  }
  return wait_for_members(*communicator.clique, &communicator, [&] { return ends; });
}

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
  // Lets the remaining threads end.
  state->over = true;
  while (true) {
    std::vector<std::shared_ptr<Clique>> cliques;
    {
      const std::lock_guard lock(state->mutex);
      state->abort_hangs = false;
      state->changed.notify_all();
      if (state->aborting == 0 && state->waiting == 0) break;
      for (const auto& [id, world] : state->worlds) cliques.push_back(world);
      for (const auto& communicator : state->communicators) cliques.push_back(communicator->clique);
    }
    for (const auto& clique : cliques) {
      const std::lock_guard lock(clique->mutex);
      clique->changed.notify_all();
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
int FakeNccl::waiting() const {
  const std::lock_guard lock(state->mutex);
  return state->waiting;
}
void FakeNccl::never_connect(int world_rank) {
  const std::lock_guard lock(state->mutex);
  state->never_connects = world_rank;
}
void FakeNccl::never_finalize(int world_rank) {
  const std::lock_guard lock(state->mutex);
  state->never_finalizes = world_rank;
}
void FakeNccl::fail(int world_rank) {
  const std::lock_guard lock(state->mutex);
  state->fails = world_rank;
}

}  // namespace sluice::test
