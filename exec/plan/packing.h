#pragma once

#include <cstdint>
#include <map>

#include "model/namespaces.h"

namespace sluice::exec {

// Places blocks in an arena ahead of time: takes and gives are replayed in the order in which they will happen. Blocks
// go where they leave least over, and begin at multiples of kBufferAlignment.
class Packing {
 public:
  // The offset of a block of so many bytes (0: any offset, nothing is held).
  std::int64_t take(std::int64_t bytes);
  void give(std::int64_t offset, std::int64_t bytes);
  // What the arena must hold.
  std::int64_t size() const { return size_; }
  // Bytes taken and not given, and the most that ever were.
  std::int64_t held() const { return held_; }
  std::int64_t most_held() const { return most_held_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset to bytes, none next to another
  std::int64_t size_ = 0;
  std::int64_t held_ = 0;
  std::int64_t most_held_ = 0;
};

// `bytes` with what alignment adds.
std::int64_t aligned(std::int64_t bytes);

}  // namespace sluice::exec
