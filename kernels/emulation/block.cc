#include "kernels/emulation/block.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <cstring>
#include <deque>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace sluice::emulation {
namespace {

namespace context = boost::context;

constexpr int kWarpLanes = 32;
constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::align_val_t kSharedAlignment{128};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  std::size_t bytes;
};

enum class At : std::uint8_t { work, block, warp, end };

struct Thread {
  context::fiber fiber;
  At at = At::work;
  int exchanges = 0;  // over the warp, so far
  std::vector<Copy> open_group;
  std::deque<std::vector<Copy>> groups;
#if defined(__SANITIZE_THREAD__)
  void* sanitizer_fiber = nullptr;
#endif
};

struct Block {
  const BlockPlace* place = nullptr;
  std::vector<Thread> threads;
  std::array<std::vector<Slot>, 2> slots;  // by parity of the exchange, and thread
  unsigned char* shared = nullptr;
  int running = 0;
  context::fiber scheduler;
  std::exception_ptr error;
#if defined(__SANITIZE_THREAD__)
  void* sanitizer_scheduler = nullptr;
#endif
};

thread_local Block* current = nullptr;

void wait(At at) {
  Block& block = *current;
  block.threads[static_cast<std::size_t>(block.running)].at = at;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(block.sanitizer_scheduler, 0);
#endif
  block.scheduler = std::move(block.scheduler).resume();
}

void resume(Block& block, int index) {
  Thread& thread = block.threads[static_cast<std::size_t>(index)];
  block.running = index;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(thread.sanitizer_fiber, 0);
#endif
  thread.fiber = std::move(thread.fiber).resume();
}

// Lets those go on who wait where all others of their block, or warp, wait too or have ended. False: there are none.
bool release(Block& block) {
  const int count = block.place->threads;
  bool any = false;
  for (int first = 0; first < count; first += kWarpLanes) {
    const int last = std::min(first + kWarpLanes, count);
    int waiting = 0;
    for (int i = first; i < last; ++i) waiting += block.threads[static_cast<std::size_t>(i)].at == At::warp ? 1 : 0;
    if (waiting != last - first) continue;
    for (int i = first; i < last; ++i) block.threads[static_cast<std::size_t>(i)].at = At::work;
    any = true;
  }
  if (any) return true;
  int waiting = 0;
  for (const Thread& thread : block.threads) waiting += thread.at == At::block ? 1 : 0;
  if (waiting != count) return false;
  for (Thread& thread : block.threads) thread.at = At::work;
  return true;
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

void run_block(const BlockPlace& place, const std::function<void()>& body) {
  const SharedMemory shared(static_cast<std::size_t>(std::max(place.shared_bytes, 1)));
  Block block;
  block.place = &place;
  block.shared = shared.data;
  block.threads.resize(static_cast<std::size_t>(place.threads));
  for (auto& slots : block.slots) slots.resize(block.threads.size());
  Block* const before = std::exchange(current, &block);
#if defined(__SANITIZE_THREAD__)
  block.sanitizer_scheduler = __tsan_get_current_fiber();
#endif
  for (Thread& thread : block.threads) {
#if defined(__SANITIZE_THREAD__)
    thread.sanitizer_fiber = __tsan_create_fiber(0);
#endif
    thread.fiber = context::fiber(std::allocator_arg, context::fixedsize_stack(kStackBytes),
                                  [&block, &body](context::fiber&& scheduler) {
                                    block.scheduler = std::move(scheduler);
                                    try {
                                      body();
                                    } catch (const context::detail::forced_unwind&) {
                                      throw;
                                    } catch (...) {
                                      block.error = std::current_exception();
                                    }
                                    block.threads[static_cast<std::size_t>(block.running)].at = At::end;
#if defined(__SANITIZE_THREAD__)
                                    __tsan_switch_to_fiber(block.sanitizer_scheduler, 0);
#endif
                                    return std::move(block.scheduler);
                                  });
  }
  bool stuck = false;
  while (true) {
    int ended = 0;
    for (int i = 0; i < place.threads; ++i) {
      const At& at = block.threads[static_cast<std::size_t>(i)].at;
      if (at == At::work) resume(block, i);
      ended += at == At::end ? 1 : 0;
    }
    if (ended == place.threads || block.error) break;
    if (!release(block)) {
      stuck = true;
      break;
    }
  }
#if defined(__SANITIZE_THREAD__)
  for (Thread& thread : block.threads) __tsan_destroy_fiber(thread.sanitizer_fiber);
#endif
  // Fibers that have not ended are unwound here.
  block.threads.clear();
  current = before;
  if (block.error) std::rethrow_exception(block.error);
  if (stuck) throw std::logic_error("threads of a block wait for others that never come");
}

const BlockPlace& place() { return *current->place; }
int thread_index() { return current->running; }
unsigned char* shared_memory() { return current->shared; }
void sync_block() { wait(At::block); }
void sync_warp() { wait(At::warp); }

const Slot* gather_over_warp(const Slot& mine) {
  Block& block = *current;
  const auto index = static_cast<std::size_t>(block.running);
  auto& slots = block.slots[static_cast<std::size_t>(block.threads[index].exchanges++ % 2)];
  slots[index] = mine;
  wait(At::warp);
  return slots.data() + index / kWarpLanes * kWarpLanes;
}

void copy_later(void* to, const void* from, std::size_t bytes) {
  current->threads[static_cast<std::size_t>(current->running)].open_group.push_back({to, from, bytes});
}
void end_copy_group() {
  Thread& thread = current->threads[static_cast<std::size_t>(current->running)];
  thread.groups.push_back(std::exchange(thread.open_group, {}));
}
void finish_copies(std::size_t all_but) {
  Thread& thread = current->threads[static_cast<std::size_t>(current->running)];
  while (thread.groups.size() > all_but) {
    for (const Copy& copy : thread.groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
    }
    thread.groups.pop_front();
  }
}

}  // namespace sluice::emulation
