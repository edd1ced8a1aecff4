#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/graph/footprint.h"
#include "model/graph/op_graph.h"
#include "model/timeline/memory.h"
#include "model/timeline/timeline.h"

namespace sluice::model {

// Tensors of one name on one stage.
struct HeldTensor {
  MemoryClass memory_class{};
  int stage = -1;  // -1: of the whole rank
  std::string_view name;
  std::string formula;     // of the bytes of one, in the footprint's symbols; "": none
  std::int64_t count = 0;  // over layers, microbatches and slices
  std::int64_t bytes = 0;  // of all of them
};

// Returns what a rank holds when its memory first reaches its peak, the largest first. The bytes of each class add up
// to `memory.at_peak`, except that received tensors are what is left of the buffers.
std::vector<HeldTensor> held_at_peak(const OpGraph& graph, const Timeline& timeline, const Footprint& footprint,
                                     const RankMemory& memory, int rank);

}  // namespace sluice::model
