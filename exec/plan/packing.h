#pragma once

#include <cstdint>
#include <map>

#include "model/namespaces.h"

namespace sluice::exec {

// Places blocks in an arena ahead of time, by replaying allocations and releases in the order in which they will
// happen. Best fit; blocks begin at multiples of kBufferAlignment.
class Packing {
 public:
  // Allocates a block and returns its offset (any offset for 0 bytes, which hold nothing).
  std::int64_t take(std::int64_t bytes);
  void give(std::int64_t offset, std::int64_t bytes);
  // Returns the size of the arena in bytes.
  std::int64_t size() const { return size_; }
  // Returns the bytes allocated and not released.
  std::int64_t held() const { return held_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset to bytes, no two adjacent
  std::int64_t size_ = 0;
  std::int64_t held_ = 0;
};

// Returns `bytes` rounded up to the alignment of blocks.
std::int64_t aligned(std::int64_t bytes);

}  // namespace sluice::exec
