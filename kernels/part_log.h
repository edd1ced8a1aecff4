#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/workload/layer_part.h"

namespace sluice::kernels {

// The pass to which a part of a layer belongs: F, I, or W. B is an input gradient with weight gradients.
enum class PartPass : std::uint8_t { forward, input_gradient, weight_gradient };

// When a part of a layer with experts ran. `dispatch` sends rows to their experts, `combine` sends their results back;
// in B and I the gradients take the opposite ways. Waits for other ranks count. The router is in `attention`.
struct PartTime {
  LayerPart part = LayerPart::attention;
  PartPass pass = PartPass::forward;
  int layer = 0;              // of the stage, from 0, in the order of the pass: in a backward, 0 is the last
  std::int64_t start_ns = 0;  // steady_clock
  std::int64_t end_ns = 0;
};

// Records when the parts of layers ran, by one thread. Does not allocate: keeps the first `most` parts.
class PartLog {
 public:
  explicit PartLog(std::size_t most) : most_(most) { times_.reserve(most); }
  void begin(PartPass pass, int layer) {
    pass_ = pass;
    layer_ = layer;
    start_ns_ = now();
  }
  // Ends a part, which began at the last call of `begin` or `end`.
  void end(LayerPart part) {
    const std::int64_t end_ns = now();
    if (times_.size() < most_) times_.push_back({part, pass_, layer_, start_ns_, end_ns});
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
  PartPass pass_ = PartPass::forward;
  int layer_ = 0;
  std::int64_t start_ns_ = 0;
  std::vector<PartTime> times_;
};

}  // namespace sluice::kernels
