#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "traces/figure/figure.h"

namespace sluice::traces {

// The maximum number of memory samples over all ranks. More samples are reduced to the minimum and maximum of
// intervals.
inline constexpr std::int64_t kMaxReportSamples = 2'000'000;

// A run in the format that the report's script reads: a JSON header that lists columns of numbers, and the concatenated
// columns, each padded to 4 bytes. Numbers are little-endian; a column of type `i64` is stored as all low words
// followed by all high words.
//
// Ops, lane by lane in time order, a collective on each lane that it occupies:
//   gap, duration   ns; the gap is from the end of the previous op on the lane, or from 0
//   kind            0 to 3: F, B, I, W; + 4 for a joint block; + 8 for its recomputation; + 12 for its transfer;
//                   16 collective; 17 optimizer step; 20, 21: S, T; 22, 23: their transfers
//   stage, slice    as in Vertex; a collective's stage is an index into the header's `collectives`
//   microbatch*     or step
//   need*           index of the dependency that ended last (LastNeed), -1 for none
//   slack*          ns
//   critical        1 on the critical path
// Columns with * are differences from the previous op of the same kind on the lane, or from 0.
//   partner_kind, partner_stage, partner_microbatch, partner_slice      one entry per joint block
// Idle intervals, rank by rank (numbers of intervals: `idle` in the header):
//   idle_gap, idle_duration, idle_cause, idle_from, idle_next, idle_need     as in IdleInterval, with op indices
// Memory, rank by rank; differences from the previous sample:
//   memory_time, memory_<class>
// With experts (`parts` in the header: the names of parts, and whether they were merged), dispatch and combine within
// ops by pattern (PartData):
//   part_pattern    by op: the index of its pattern, -1 for none
//   pattern_parts   by pattern: its number of parts
//   part_gap, part_duration, part_hidden, part_layer, part_name      pattern by pattern
struct ReportData {
  std::string header;
  std::string columns;
};
ReportData encode_run(const DrawnRun& run);

}  // namespace sluice::traces
