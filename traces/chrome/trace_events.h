#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/units.h"

namespace sluice::traces {

// An op as the args of a slice name it; -1 where they do not.
struct EventOp {
  std::int64_t stage = -1;
  std::int64_t microbatch = -1;
  std::int64_t slice = -1;
};

// One event of a Chrome trace: what readers of ours ask for. Ids that are no whole numbers are -1.
struct TraceEvent {
  std::int64_t number = 0;  // in the file, from 0
  std::string phase;
  std::string category;
  std::string name;
  std::int64_t pid = -1;
  std::int64_t tid = -1;
  std::optional<Duration> start;                             // `ts`, rounded to nanoseconds
  std::optional<Duration> duration;                          // `dur`, the same
  EventOp op;                                                // of args
  EventOp with;                                              // of args: the second op of a joint block
  std::int64_t step = -1;                                    // of args
  std::int64_t bytes = -1;                                   // of args
  std::string cause;                                         // of args
  std::string args_name;                                     // of args: `name`, of metadata
  std::vector<std::pair<std::string, std::int64_t>> values;  // of a counter: its args that are whole numbers
};

// What the file says besides its events.
struct TraceHead {
  bool is_trace = false;             // has an array `traceEvents`
  bool is_ours = false;              // has an object `sluice`
  std::string schema;                // of `sluice`, or of the file itself
  bool two_runs = false;             // `sluice` has `sides`
  bool some_ranks_left_out = false;  // `sluice` has `world_ranks`
  std::int64_t base_time_ns = 0;     // Kineto: `baseTimeNanoseconds`
  // `rank` of `distributedInfo`; else the first key `rank` in the file with a whole number, as Holistic Trace Analysis
  // finds ranks.
  std::optional<std::int64_t> rank;
};

// Reads a Chrome trace (JSON object format), gzipped or not, event by event: what is held at once is one event and a
// buffer. `on_event` may throw; it is given what the head holds so far. Where there are no `traceEvents` the file is
// read to its end all the same. Throws InputError "file: line L, column C: not JSON: ..." for text that is no JSON, or
// "file: ..." for a file that cannot be read, a damaged gzip stream, or a time or a nesting out of range.
TraceHead read_trace_events(const std::string& path,
                            const std::function<void(TraceEvent&, const TraceHead&)>& on_event);

// The same of text; `source` names it in errors.
TraceHead read_trace_text(std::string_view text, const std::string& source,
                          const std::function<void(TraceEvent&, const TraceHead&)>& on_event);

}  // namespace sluice::traces
