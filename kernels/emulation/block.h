#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "model/namespaces.h"

namespace sluice::kernels::emulation {

// Where a block stands in its grid.
struct BlockPlace {
  std::array<int, 3> block{};
  std::array<int, 3> blocks{1, 1, 1};
  int threads = 1;
  int shared_bytes = 0;
};

// Which warp goes on when several can, and when asynchronous copies are done. On a GPU anything may happen first: a
// kernel that gives the same under all of these is unlikely to lack a point where its threads wait for each other.
struct Schedule {
  enum class Warps : std::uint8_t {
    in_turn,      // each to its next wait
    first_ahead,  // as far as it gets before the others start
    last_ahead,   // likewise from the last warp, and from each warp's last lane
    random,
  };
  enum class Copies : std::uint8_t {
    at_wait,  // as late as can be: finds reads before the wait
    at_once,  // finds readers of what lies there before
    random,
  };
  Warps warps = Warps::in_turn;
  Copies copies = Copies::at_wait;
  std::uint32_t seed = 1;
};
// Of all blocks that the calling thread runs from now on, and the compute capability that they find.
void set_schedule(const Schedule& schedule, int compute_capability = 80);

// Runs a block: `body` once for each thread, as fibers of the calling thread, which go on together past the points
// where threads of a block or of a warp wait for each other. Shared memory begins as bytes 0xff, which are not numbers.
// Throws std::logic_error if some threads wait where others will never come, as that would hang a GPU.
void run_block(const BlockPlace& place, const std::function<void()>& body);

// Of the thread that calls.
int compute_capability();
const BlockPlace& place();
int thread_index();
unsigned char* shared_memory();
void sync_block();
void sync_warp();

inline constexpr std::size_t kSlotBytes = 32;
using Slot = std::array<std::byte, kSlotBytes>;
// Gives every lane of the warp's what each lane has brought: 32 slots, to be read before the next call.
const Slot* gather_over_warp(const Slot& mine);

// Asynchronous copies of the thread; see Schedule::Copies.
void copy_later(void* to, const void* from, std::size_t bytes);
void end_copy_group();
void finish_copies(std::size_t all_but);

}  // namespace sluice::kernels::emulation
