#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "traces/figure/drawn_run.h"

namespace sluice::traces {

// More memory samples than these, over all ranks, are thinned to the least and the greatest of equal stretches of time.
inline constexpr std::int64_t kMostReportSamples = 2'000'000;

// A run as the report's script reads it: a JSON header that names columns of numbers, and the columns themselves, one
// after the other, each padded to whole words of 4 bytes, as a zlib stream in base64. Columns of type `i64` are all
// their low words, then all their high ones; all are little-endian.
//
// Ops stand lane by lane in the order of time, a collective on each lane that it occupies:
//   gap, duration   ns from the end of the op before it on the lane, or from 0; its length
//   kind            0 to 3: F, B, I, W; + 4 as a joint block; + 8 recomputation before it; + 12 its transfer;
//                   16 collective; 17 optimizer step
//   stage, slice    as in Vertex; a collective's stage is an index into the header's `collectives`
//   microbatch*     or step
//   need*           index of the op that was needed last (LastNeed), -1 for none
//   slack*          ns
//   critical        1 on the longest path
// Columns with * hold the difference from the op before it on the lane that has the same kind, or from 0.
//   partner_kind, partner_stage, partner_microbatch, partner_slice      of each joint block
// Idle stretches, rank by rank (`idle` in the header counts them):
//   idle_gap, idle_duration, idle_cause, idle_from, idle_next, idle_need     as in IdleInterval, by op index
// Memory, rank by rank; differences from the sample before:
//   memory_time, memory_<class>
struct ReportData {
  std::string header;
  std::string columns;
};
ReportData encode_run(const DrawnRun& run);

// RFC 4648, with padding.
std::string base64(std::string_view bytes);

}  // namespace sluice::traces
