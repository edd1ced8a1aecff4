#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"
#include "traces/rows/part_rows.h"

namespace sluice::traces {

// A run to draw in figures and reports. Refers to its parts, which must outlive it.
struct DrawnRun {
  const OpGraph* graph = nullptr;
  const Timeline* timeline = nullptr;
  const Metrics* metrics = nullptr;
  std::span<const RankMemory> memory;  // by rank, with samples; empty = draw no memory
  std::string title;                   // "zb-v, 4 ranks, 8 microbatches"
  std::vector<PartRow> parts;          // of layers with experts (part_rows): dispatch and combine are drawn as a lane
  std::optional<std::int64_t> capacity_bytes;  // memory of a device available to tensors
};

}  // namespace sluice::traces
