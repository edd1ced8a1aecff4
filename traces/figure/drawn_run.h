#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "model/graph/op_graph.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

// One run as pictures show it; refers to what it is given.
struct DrawnRun {
  const OpGraph* graph = nullptr;
  const Timeline* timeline = nullptr;
  const Metrics* metrics = nullptr;
  std::span<const RankMemory> memory;          // by rank, with samples; empty: no memory is drawn
  std::string title;                           // "zb-v, 4 ranks, 8 microbatches"
  std::optional<std::int64_t> capacity_bytes;  // what a device has for tensors
};

}  // namespace sluice::traces
