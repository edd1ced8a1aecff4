#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::traces {

// Measured ops and what they need, to simulate them with other durations. Ops that communicate with each other form a
// group: its transfer starts when the last of them is ready. Groups are contiguous and in topological order.
struct ReplayGraph {
  std::vector<std::int32_t> group_begin;  // the first position of each group; one more at the end
  std::vector<std::int32_t> need_begin;   // the first entry of `needs` of each position; one more at the end
  std::vector<std::int32_t> needs;        // positions
  // ns, by position: without waiting for the others of its group. Down to -10 ms by the early rule of StepGraph where
  // clocks differ; otherwise never below 0.
  std::vector<double> transfer;
  // ns, by position: from the last end of what its group needs to the last start in its group; never below 0.
  std::vector<double> delay;
};

// Simulates a step: an op of a group starts when all of the group are ready, that is, `delay(position, lane)` ns after
// what they need has ended, and takes the duration that `duration(position, lane)` returns, in ns. `kLanes` variants
// are simulated in one sweep. Returns the last end of each variant; `on_end(position, ends)` receives the ends of each
// op.
template <int kLanes, typename Delay, typename Duration, typename OnEnd>
std::array<double, kLanes> replay_with(const ReplayGraph& graph, const Delay& delay, const Duration& duration,
                                       const OnEnd& on_end) {
  using Lanes = std::array<double, kLanes>;
  std::vector<Lanes> ends(graph.delay.size());
  Lanes last{};
  for (std::size_t g = 0; g + 1 < graph.group_begin.size(); ++g) {
    const auto begin = static_cast<std::size_t>(graph.group_begin[g]);
    const auto end = static_cast<std::size_t>(graph.group_begin[g + 1]);
    Lanes start{};
    for (std::size_t p = begin; p < end; ++p) {
      Lanes ready{};
      for (auto i = graph.need_begin[p]; i < graph.need_begin[p + 1]; ++i) {
        const Lanes& need = ends[static_cast<std::size_t>(graph.needs[static_cast<std::size_t>(i)])];
        for (int k = 0; k < kLanes; ++k) ready[k] = std::max(ready[k], need[k]);
      }
      for (int k = 0; k < kLanes; ++k) start[k] = std::max(start[k], ready[k] + delay(p, k));
    }
    for (std::size_t p = begin; p < end; ++p) {
      for (int k = 0; k < kLanes; ++k) {
        ends[p][k] = start[k] + duration(p, k);
        last[k] = std::max(last[k], ends[p][k]);
      }
      on_end(p, ends[p]);
    }
  }
  return last;
}

// Likewise with the measured delays, or with none.
template <int kLanes, typename Duration, typename OnEnd>
std::array<double, kLanes> replay(const ReplayGraph& graph, bool delays, const Duration& duration,
                                  const OnEnd& on_end) {
  return replay_with<kLanes>(
      graph, [&](std::size_t p, int) { return delays ? graph.delay[p] : 0.0; }, duration, on_end);
}

template <int kLanes, typename Duration>
std::array<double, kLanes> replay(const ReplayGraph& graph, bool delays, const Duration& duration) {
  return replay<kLanes>(graph, delays, duration, [](std::size_t, const std::array<double, kLanes>&) {});
}

}  // namespace sluice::traces
