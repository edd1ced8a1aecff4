#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/units.h"

namespace sluice::traces {

// The op in the args of a slice; -1 for missing values.
struct EventOp {
  std::int64_t stage = -1;
  std::int64_t microbatch = -1;
  std::int64_t slice = -1;
};

// The fields of a Chrome trace event that Sluice reads. Ids that are not integers are -1.
struct TraceEvent {
  std::int64_t number = 0;  // index in the file, from 0
  std::string phase;
  std::string category;
  std::string name;
  std::int64_t pid = -1;
  std::int64_t tid = -1;
  std::optional<Duration> start;                             // `ts`, rounded to nanoseconds
  std::optional<Duration> duration;                          // `dur`, rounded to nanoseconds
  EventOp op;                                                // from args
  EventOp with;                                              // from args: the second op of a joint block
  std::int64_t step = -1;                                    // from args
  std::int64_t bytes = -1;                                   // from args
  std::string cause;                                         // from args
  std::string args_name;                                     // from args of metadata: `name`
  std::vector<std::pair<std::string, std::int64_t>> values;  // for a counter: its integer args
};

// The contents of the file besides its events.
struct TraceHead {
  bool is_trace = false;            // has an array `traceEvents`
  bool is_sluice = false;           // has an object `sluice`
  std::string schema;               // of `sluice`, or at the top level
  bool two_runs = false;            // `sluice` has `sides`
  bool some_ranks_omitted = false;  // `sluice` has `world_ranks`
  std::int64_t base_time_ns = 0;    // Kineto: `baseTimeNanoseconds`
  // `rank` of `distributedInfo`; otherwise the first key `rank` in the file with an integer value, like Holistic Trace
  // Analysis.
  std::optional<std::int64_t> rank;
};

// Reads a Chrome trace (JSON object format), gzipped or not, event by event, with memory for one event and a buffer.
// `on_event` may throw; it receives the head as read so far. A file without `traceEvents` is read to its end. Throws
// InputError "file: line L, column C: not JSON: ..." for text that is not JSON, or "file: ..." for a file that cannot
// be read, a corrupt gzip stream, or a time or nesting depth out of range.
TraceHead read_trace_events(const std::string& path,
                            const std::function<void(TraceEvent&, const TraceHead&)>& on_event);

// Reads a trace from text; `source` names it in errors.
TraceHead read_trace_text(std::string_view text, const std::string& source,
                          const std::function<void(TraceEvent&, const TraceHead&)>& on_event);

}  // namespace sluice::traces
