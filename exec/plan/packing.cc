#include "exec/plan/packing.h"

#include <iterator>

#include "kernels/stage.h"

namespace sluice::exec {

std::int64_t aligned(std::int64_t bytes) {
  constexpr auto kTo = static_cast<std::int64_t>(kBufferAlignment);
  return (bytes + kTo - 1) / kTo * kTo;
}

std::int64_t Packing::take(std::int64_t bytes) {
  bytes = aligned(bytes);
  if (bytes == 0) return 0;
  held_ += bytes;
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  std::int64_t offset = 0;
  if (best != free_.end()) {
    offset = best->first;
    const std::int64_t left = best->second - bytes;
    free_.erase(best);
    if (left > 0) free_.emplace(offset + bytes, left);
    return offset;
  }
  // Extend a free block at the end.
  offset = size_;
  if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == size_) {
    offset = free_.rbegin()->first;
    free_.erase(std::prev(free_.end()));
  }
  size_ = offset + bytes;
  return offset;
}

void Packing::give(std::int64_t offset, std::int64_t bytes) {
  bytes = aligned(bytes);
  if (bytes == 0) return;
  held_ -= bytes;
  auto [at, added] = free_.emplace(offset, bytes);
  if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
}

}  // namespace sluice::exec
