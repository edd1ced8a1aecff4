#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/units.h"

namespace sluice::model {

// The transfers of a link, in its order, of which some have copies that a timeline leaves out (LeftOutBlocks).
class Inbound {
 public:
  explicit Inbound(int copies) : copies_(copies) {}

  // `growth`: the time from one copy to the next; 0 without copies.
  void add(Duration start, Duration growth, std::int64_t bytes) { transfers_.push_back({start, growth, bytes, 0}); }

  // Receives those that start before `time`: adds their bytes, and sets `last` to the start of the last with any.
  void receive(Duration time, std::int64_t& bytes, Duration& last);

  // Returns an upper bound of the bytes that are received in any interval of this length between two times; nothing if
  // none is found. The i-th transfers of consecutive blocks are at least some time apart.
  std::optional<std::int64_t> most_in(Duration length, Duration begin, Duration end) const;

 private:
  struct Transfer {
    Duration start{};
    Duration growth{};
    std::int64_t bytes = 0;
    std::int64_t received = 0;  // itself, and copies
  };

  std::int64_t copies_;
  std::vector<Transfer> transfers_;
  std::size_t first_ = 0;  // the first of which copies are still to be received
};

}  // namespace sluice::model
