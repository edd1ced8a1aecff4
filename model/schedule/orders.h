#pragma once

#include <algorithm>
#include <vector>

#include "model/schedule/family.h"

// The building blocks of the families' rules (spec names: run, lag) and of their placements.
namespace sluice::orders {

inline Op op(OpKind kind, int stage, int microbatch, int slice = 0) {
  return Op{.microbatch = microbatch,
            .stage = static_cast<std::int16_t>(stage),
            .slice = static_cast<std::int16_t>(slice),
            .kind = kind};
}

// Appends the first `warm` forwards, then a forward and a backward in turn until the forwards are used up, then
// the remaining backwards. `forward(i)` and `backward(i)` append the i-th of `count` each.
template <typename Forward, typename Backward>
void run(int warm, int count, Forward&& forward, Backward&& backward) {
  int f = 0;
  int b = 0;
  for (; f < std::min(warm, count); ++f) forward(f);
  for (; f < count; ++f, ++b) {
    forward(f);
    backward(b);
  }
  for (; b < count; ++b) backward(b);
}

// Appends the first `warm` (at least 1) forwards, then a backward and a forward in turn: backward first.
template <typename Forward, typename Backward>
void run_backward_first(int warm, int count, Forward&& forward, Backward&& backward) {
  run(std::min(warm, count) - 1, count, forward, backward);
}

// Parts with everything but placement and orders filled in from `params`.
inline ScheduleParts frame(const Family& family, const FamilyParams& params, int stages) {
  ScheduleParts parts;
  parts.family = family.name;
  parts.num_ranks = params.ranks;
  parts.num_stages = stages;
  parts.num_microbatches = params.microbatches;
  parts.num_batches = params.batches;
  parts.shapes = {params.shape};
  parts.orders.resize(static_cast<std::size_t>(params.ranks));
  return parts;
}

// Placements: the rank of each stage.
inline std::vector<int> linear(int ranks) {
  std::vector<int> route(static_cast<std::size_t>(ranks));
  for (int s = 0; s < ranks; ++s) route[static_cast<std::size_t>(s)] = s;
  return route;
}
inline std::vector<int> looped(int ranks, int chunks) {
  std::vector<int> route(static_cast<std::size_t>(ranks * chunks));
  for (int s = 0; s < ranks * chunks; ++s) route[static_cast<std::size_t>(s)] = s % ranks;
  return route;
}
// V for two chunks; for more, hanayo's waves.
inline std::vector<int> snake(int ranks, int chunks) {
  std::vector<int> route(static_cast<std::size_t>(ranks * chunks));
  for (int s = 0; s < ranks * chunks; ++s) {
    route[static_cast<std::size_t>(s)] = (s / ranks) % 2 == 0 ? s % ranks : ranks - 1 - s % ranks;
  }
  return route;
}

}  // namespace sluice::orders
