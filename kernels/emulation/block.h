#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "model/namespaces.h"

namespace sluice::kernels::emulation {

// Index of a block and sizes of its grid.
struct BlockPlace {
  std::array<int, 3> block{};
  std::array<int, 3> blocks{1, 1, 1};
  int threads = 1;
  int shared_bytes = 0;
};

// The order in which runnable warps run. A GPU may use any order: a kernel with equal results in all of these is
// unlikely to lack a barrier.
struct ExecutionOrder {
  enum class Warps : std::uint8_t {
    round_robin,  // each up to its next wait
    first_ahead,  // the first warp runs as far as it can before the others start
    last_ahead,   // the same from the last warp, and from each warp's last lane
    random,
  };
  Warps warps = Warps::round_robin;
  std::uint32_t seed = 1;
};
// Sets the order of all blocks that the calling thread runs from now on.
void set_execution_order(const ExecutionOrder& order);

// Runs a block: `body` once per thread, as fibers of the calling thread that are switched at barriers of the block or
// of a warp. Shared memory is initialized with bytes 0xff, which are NaNs. Throws std::logic_error if threads wait at a
// barrier that others never reach, which would hang a GPU.
void run_block(const BlockPlace& place, const std::function<void()>& body);

// State of the calling thread.
const BlockPlace& place();
int thread_index();
unsigned char* shared_memory();
void sync_block();
void sync_warp();

inline constexpr std::size_t kSlotBytes = 32;
using Slot = std::array<std::byte, kSlotBytes>;
// Exchanges one slot per lane over the warp: returns the slots of all 32 lanes, valid until the next call.
const Slot* gather_over_warp(const Slot& mine);

// What all kernels of the process have done: number of grids, and the bytes of their vector accesses outside of shared
// memory. Caches are not emulated: bytes that are read twice count twice.
struct KernelWork {
  std::int64_t grids = 0;
  std::int64_t bytes = 0;
};
KernelWork kernel_work();
// Counts an access of the calling thread.
void count_access(const void* address, std::size_t bytes);

}  // namespace sluice::kernels::emulation
