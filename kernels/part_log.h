#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/workload/layer_part.h"

namespace sluice::kernels {

// A part of a layer with experts, in F, B or I. `dispatch` has the router and sends rows to their experts, `combine`
// sends their results back; in B and I the gradients take the opposite ways. Waits for other ranks count.
struct PartTime {
  LayerPart part = LayerPart::attention;
  bool forward = true;
  std::int64_t start_ns = 0;  // steady_clock
  std::int64_t end_ns = 0;
};

// Records when the parts of layers ran, by one thread. Does not allocate: keeps the first `most` parts.
class PartLog {
 public:
  explicit PartLog(std::size_t most) : most_(most) { times_.reserve(most); }
  void begin(bool forward) {
    forward_ = forward;
    start_ns_ = now();
  }
  // Ends a part, which began at the last call of `begin` or `end`.
  void end(LayerPart part) {
    const std::int64_t end_ns = now();
    if (times_.size() < most_) times_.push_back({part, forward_, start_ns_, end_ns});
    start_ns_ = end_ns;
  }
  void clear() { times_.clear(); }
  std::span<const PartTime> times() const { return times_; }

 private:
  static std::int64_t now() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }

  std::size_t most_;
  bool forward_ = true;
  std::int64_t start_ns_ = 0;
  std::vector<PartTime> times_;
};

}  // namespace sluice::kernels
