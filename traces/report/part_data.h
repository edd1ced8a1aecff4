#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/timeline/timeline.h"
#include "traces/rows/part_rows.h"

namespace sluice::traces {

// The maximum number of dispatches and combines in a report. Of more, those of an op are merged.
inline constexpr std::int64_t kMaxReportParts = 1'000'000;

// Dispatch and combine within the ops of a run. Ops whose parts have the same times from the start of the op share a
// pattern, so that the size depends on the number of different ops.
struct PartData {
  std::vector<std::string> names;        // "dispatch(F)"; if merged "dispatch" and "combine"
  bool merged = false;                   // equal intervals of an op have one dispatch and one combine each
  std::vector<std::int32_t> pattern_of;  // by vertex; -1 for an op without communication
  std::vector<std::int32_t> num_parts;   // by pattern
  std::vector<std::int64_t> gap;         // pattern by pattern, ns: from the end of the previous part, or the op's start
  std::vector<std::int64_t> duration;    // ns
  std::vector<std::int64_t> hidden;      // of it, behind compute
  std::vector<std::int32_t> layer;       // as in PartRow; -1 if merged
  std::vector<std::uint8_t> name;        // index into `names`
  bool empty() const { return num_parts.empty(); }
};

// `parts` is in the order of vertex ids, as from part_rows.
PartData part_data(std::span<const PartRow> parts, const Timeline& timeline, int num_ranks);

}  // namespace sluice::traces
