#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/collective.h"
#include "kernels/device.h"

namespace sluice::test {

// Called by all members of a group on emulated devices: exchanges (from + 2 to + round) % 4 blocks between each pair,
// of different sizes and contents, and expects them at their places.
inline void expect_exchange(StreamGroup& group, Device& device, int round) {
  constexpr std::int64_t kPlace = 64;
  const auto count = [&](int from, int to) { return (from + 2 * to + round) % 4; };
  const auto bytes = [](int from, int to, int i) { return std::int64_t{1} + 5 * from + 3 * to + i; };
  const auto content = [](int from, int to, int i) { return static_cast<std::byte>(1 + 32 * from + 8 * to + i); };
  const auto stream = device.make_stream(StreamPriority::normal);
  std::byte* const sent = device.allocate(4 * group.size() * kPlace);
  std::byte* const received = device.allocate(4 * group.size() * kPlace);
  const auto place = [](std::byte* memory, int other, int i) { return memory + (4 * other + i) * kPlace; };
  std::vector<ExchangeBlock> sends;
  std::vector<ExchangeBlock> receives;
  const int me = group.rank();
  for (int other = 0; other < group.size(); ++other) {
    if (other == me) continue;
    for (int i = 0; i < count(me, other); ++i) {
      std::fill_n(place(sent, other, i), bytes(me, other, i), content(me, other, i));
      sends.push_back({other, place(sent, other, i), bytes(me, other, i)});
    }
    for (int i = 0; i < count(other, me); ++i) {
      receives.push_back({other, place(received, other, i), bytes(other, me, i)});
    }
  }
  group.exchange(sends, receives, *stream);
  device.synchronize(*stream);
  for (int other = 0; other < group.size(); ++other) {
    for (int i = 0; i < 4; ++i) {
      const bool expected = other != me && i < count(other, me);
      for (std::int64_t at = 0; at < kPlace; ++at) {
        const bool inside = expected && at < bytes(other, me, i);
        EXPECT_EQ(place(received, other, i)[at], inside ? content(other, me, i) : std::byte{0});
      }
    }
  }
  device.release(sent);
  device.release(received);
}

}  // namespace sluice::test
