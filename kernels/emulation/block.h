#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace sluice::emulation {

// Where a block stands in its grid.
struct BlockPlace {
  std::array<int, 3> block{};
  std::array<int, 3> blocks{1, 1, 1};
  int threads = 1;
  int shared_bytes = 0;
};

// Runs a block: `body` once for each thread, as fibers of the calling thread, which go on together past the points
// where threads of a block or of a warp wait for each other. Shared memory begins as bytes 0xff, which are not numbers.
// Throws std::logic_error if some threads wait where others will never come, as that would hang a GPU.
void run_block(const BlockPlace& place, const std::function<void()>& body);

// Of the thread that calls.
const BlockPlace& place();
int thread_index();
unsigned char* shared_memory();
void sync_block();
void sync_warp();

inline constexpr std::size_t kSlotBytes = 32;
using Slot = std::array<std::byte, kSlotBytes>;
// Gives every lane of the warp's what each lane has brought: 32 slots, to be read before the next call.
const Slot* gather_over_warp(const Slot& mine);

// Asynchronous copies of the thread, done when it waits for them.
void copy_later(void* to, const void* from, std::size_t bytes);
void end_copy_group();
void finish_copies(std::size_t all_but);

}  // namespace sluice::emulation
