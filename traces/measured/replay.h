#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "traces/measured/step_graph.h"

namespace sluice::traces {

// Simulates a step: an op of a group starts when all of the group are ready, that is, when what they need has ended,
// and takes the duration that `duration(position, lane)` returns, in ns. `kLanes` variants are simulated in one sweep.
// With `delays`, every op is ready later by its measured delay. Returns the last end of each variant; `on_end(position,
// ends)` receives the ends of each op.
template <int kLanes, typename Duration, typename OnEnd>
std::array<double, kLanes> replay(const StepGraph& graph, bool delays, const Duration& duration, const OnEnd& on_end) {
  using Lanes = std::array<double, kLanes>;
  std::vector<Lanes> ends(graph.size());
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
      const double delay = delays ? graph.delay[p] : 0;
      for (int k = 0; k < kLanes; ++k) start[k] = std::max(start[k], ready[k] + delay);
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

template <int kLanes, typename Duration>
std::array<double, kLanes> replay(const StepGraph& graph, bool delays, const Duration& duration) {
  return replay<kLanes>(graph, delays, duration, [](std::size_t, const std::array<double, kLanes>&) {});
}

}  // namespace sluice::traces
