#include "kernels/emulation/block.h"

#include <algorithm>
#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/preallocated.hpp>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/emulation/stack_notes.h"

namespace sluice::kernels::emulation {
namespace {

namespace context = boost::context;

constexpr int kWarpLanes = 32;
constexpr std::size_t kStackBytes = std::size_t{64} * 1024;
constexpr std::align_val_t kSharedAlignment{128};

enum class At : std::uint8_t { work, block, warp, end };

// Where a host returns to: the code that chooses which thread of a block runs.
struct Scheduler {
  context::fiber fiber;
  StackNotes notes;
};

// A stack on which a thread runs. One that ends leaves it to the next: threads that never wait take turns on one stack
// without a switch.
struct Host {
  context::fiber fiber;
  StackNotes notes;
};

struct Thread {
  Host* host = nullptr;  // from its start to its end
  At at = At::work;
  int exchanges = 0;  // over the warp, up to now
};

struct Block {
  const BlockPlace* place = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<Thread> threads;
  std::array<std::vector<Slot>, 2> slots;  // by parity of the exchange, and thread
  unsigned char* shared = nullptr;
  int running = 0;
  Scheduler scheduler;
  std::exception_ptr error;
  bool abandoned = false;  // unfinished threads must end
  std::int64_t accessed_bytes = 0;
};

// Thrown in threads that must end.
struct Abandoned {};

thread_local Block* current = nullptr;  // null: hosts must end
thread_local ExecutionOrder order;
thread_local std::minstd_rand random_numbers;
std::atomic<std::int64_t> grids{0};
std::atomic<std::int64_t> accessed_bytes{0};

std::uint32_t any_number() { return static_cast<std::uint32_t>(random_numbers() >> 8); }

int first_lane(int thread) { return thread / kWarpLanes * kWarpLanes; }
int end_of_warp(int thread, const Block& block) {
  return std::min(first_lane(thread) + kWarpLanes, block.place->threads);
}

// Returns the lane that runs after `thread` in its warp, or -1.
int next_lane(int thread, const Block& block) {
  const bool backwards = order.warps == ExecutionOrder::Warps::last_ahead;
  if (backwards) return thread > first_lane(thread) ? thread - 1 : -1;
  return thread + 1 < end_of_warp(thread, block) ? thread + 1 : -1;
}

void switch_to(Host& host, Scheduler& from) {
  note_leaving(from.notes, host.notes, false);
  host.fiber = std::move(host.fiber).resume();
  note_arriving(from.notes, host.notes);
}

// Runs the thread that is to run, and those after it in its warp that have not started.
void run_threads(Host& host) {
  Block& block = *current;
  for (int next = block.running; next >= 0;) {
    Thread& thread = block.threads[static_cast<std::size_t>(next)];
    if (thread.at != At::work || thread.host != nullptr) return;
    block.running = next;
    thread.host = &host;
    try {
      (*block.body)();
    } catch (const Abandoned&) {
    } catch (...) {
      block.error = std::current_exception();
    }
    thread.host = nullptr;
    thread.at = At::end;
    next = block.error || block.abandoned ? -1 : next_lane(block.running, block);
  }
}

// The hosts of the calling thread. They end with it.
class Hosts {
 public:
  Hosts() = default;
  ~Hosts() {
    current = nullptr;
    note_thread(ending_.notes);
    for (const auto& host : all_) {
      switch_to(*host, ending_);
      forget_fiber(host->notes);
    }
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  Host& take() {
    if (idle_.empty()) idle_.push_back(&add());
    Host& host = *idle_.back();
    idle_.pop_back();
    return host;
  }

 private:
  Host& add() {
    Host& host = *all_.emplace_back(std::make_unique<Host>());
    const context::stack_context stack = stacks_.allocate();
    note_fiber(host.notes, static_cast<std::byte*>(stack.sp) - stack.size, stack.size);
    const auto run = [this, &host](context::fiber&& scheduler) { return serve(host, std::move(scheduler)); };
    host.fiber = context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack), stacks_, run);
    return host;
  }

  context::fiber serve(Host& host, context::fiber&& scheduler) {
    arrive(host, std::move(scheduler));
    while (current != nullptr) {
      run_threads(host);
      idle_.push_back(&host);
      note_leaving(host.notes, current->scheduler.notes, false);
      context::fiber back = std::move(current->scheduler.fiber).resume();
      arrive(host, std::move(back));
    }
    note_leaving(host.notes, ending_.notes, true);
    return std::move(ending_.fiber);
  }

  void arrive(Host& host, context::fiber&& scheduler) {
    Scheduler& from = current != nullptr ? current->scheduler : ending_;
    note_arriving(host.notes, from.notes);
    from.fiber = std::move(scheduler);
  }

  context::fixedsize_stack stacks_{kStackBytes};
  std::vector<std::unique_ptr<Host>> all_;
  std::vector<Host*> idle_;
  Scheduler ending_;
};
thread_local Hosts hosts;

void wait(At at) {
  Block& block = *current;
  Thread& thread = block.threads[static_cast<std::size_t>(block.running)];
  thread.at = at;
  note_leaving(thread.host->notes, block.scheduler.notes, false);
  context::fiber back = std::move(block.scheduler.fiber).resume();
  block.scheduler.fiber = std::move(back);
  note_arriving(thread.host->notes, block.scheduler.notes);
  if (block.abandoned) throw Abandoned{};
}

// Runs a thread to its next wait or its end.
void resume(Block& block, int index) {
  block.running = index;
  Host* const host = block.threads[static_cast<std::size_t>(index)].host;
  switch_to(host != nullptr ? *host : hosts.take(), block.scheduler);
}

// Releases a warp if all its lanes wait for each other.
void release_warp(Block& block, int warp) {
  const int first = warp * kWarpLanes;
  const int last = std::min(first + kWarpLanes, block.place->threads);
  for (int i = first; i < last; ++i) {
    if (block.threads[i].at != At::warp) return;
  }
  for (int i = first; i < last; ++i) block.threads[i].at = At::work;
}

// Releases the block if all its threads wait for each other; returns whether they do.
bool release_block(Block& block) {
  for (const Thread& thread : block.threads) {
    if (thread.at != At::block) return false;
  }
  for (Thread& thread : block.threads) thread.at = At::work;
  return true;
}

// Returns a warp that can run, or -1 if there is none.
int choose_warp(const Block& block, int before) {
  const int warps = (block.place->threads + kWarpLanes - 1) / kWarpLanes;
  const bool backwards = order.warps == ExecutionOrder::Warps::last_ahead;
  int begin = 0;
  if (order.warps == ExecutionOrder::Warps::round_robin) begin = before + 1;
  if (order.warps == ExecutionOrder::Warps::random) begin = static_cast<int>(any_number() % 64);
  for (int i = 0; i < warps; ++i) {
    const int warp = backwards ? warps - 1 - i : (begin + i) % warps;
    const int last = std::min((warp + 1) * kWarpLanes, block.place->threads);
    for (int j = warp * kWarpLanes; j < last; ++j) {
      if (block.threads[j].at == At::work) return warp;
    }
  }
  return -1;
}

// Runs each runnable lane of a warp to its next wait or its end.
void advance(Block& block, int warp) {
  const int first = warp * kWarpLanes;
  const bool backwards = order.warps == ExecutionOrder::Warps::last_ahead;
  for (int i = backwards ? end_of_warp(first, block) - 1 : first; i >= 0; i = next_lane(i, block)) {
    if (block.threads[i].at == At::work) resume(block, i);
  }
  release_warp(block, warp);
}

struct SharedMemory {
  explicit SharedMemory(std::size_t bytes)
      : data(static_cast<unsigned char*>(::operator new(bytes, kSharedAlignment))) {
    std::memset(data, 0xff, bytes);
  }
  ~SharedMemory() { ::operator delete(data, kSharedAlignment); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  unsigned char* data;
};

}  // namespace

void set_execution_order(const ExecutionOrder& of_blocks) {
  order = of_blocks;
  random_numbers.seed(of_blocks.seed);
}

void run_block(const BlockPlace& place, const std::function<void()>& body) {
  const SharedMemory shared(static_cast<std::size_t>(std::max(place.shared_bytes, 1)));
  Block block;
  block.place = &place;
  block.body = &body;
  block.shared = shared.data;
  block.threads.resize(place.threads);
  for (auto& slots : block.slots) slots.resize(block.threads.size());
  Block* const before = std::exchange(current, &block);
  note_thread(block.scheduler.notes);
  bool stuck = false;
  int warp = -1;
  while (!block.error) {
    warp = choose_warp(block, warp);
    if (warp >= 0) {
      advance(block, warp);
      continue;
    }
    const auto ended = [](const Thread& thread) { return thread.at == At::end; };
    if (std::all_of(block.threads.begin(), block.threads.end(), ended)) break;
    if (release_block(block)) continue;
    stuck = true;
    break;
  }
  block.abandoned = true;
  for (int i = 0; i < place.threads; ++i) {
    if (block.threads[i].host != nullptr) resume(block, i);
  }
  current = before;
  accessed_bytes += block.accessed_bytes;
  if (place.block == std::array<int, 3>{}) ++grids;
  if (block.error) std::rethrow_exception(block.error);
  if (stuck) throw std::logic_error("deadlock: threads of a block wait for threads that never arrive");
}

KernelWork kernel_work() { return {.grids = grids, .bytes = accessed_bytes}; }

void count_access(const void* address, std::size_t bytes) {
  const auto* const at = static_cast<const unsigned char*>(address);
  const std::less<> before;
  const bool in_shared = !before(at, current->shared) && before(at, current->shared + current->place->shared_bytes);
  if (!in_shared) current->accessed_bytes += static_cast<std::int64_t>(bytes);
}

const BlockPlace& place() { return *current->place; }
int thread_index() { return current->running; }
unsigned char* shared_memory() { return current->shared; }
void sync_block() { wait(At::block); }
void sync_warp() { wait(At::warp); }

const Slot* gather_over_warp(const Slot& mine) {
  Block& block = *current;
  const auto index = static_cast<std::size_t>(block.running);
  auto& slots = block.slots[block.threads[index].exchanges++ % 2];
  slots[index] = mine;
  wait(At::warp);
  return slots.data() + index / kWarpLanes * kWarpLanes;
}

}  // namespace sluice::kernels::emulation
