#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/units.h"
#include "traces/chrome/gzip.h"

namespace sluice::traces {

// Of profilers' clocks: ops of a thread may overlap, and end before they begin, by at most this much.
inline constexpr Duration kClockResolution = std::chrono::microseconds(200);

// The op in the args of a slice; -1 for missing values.
struct EventOp {
  std::int64_t stage = -1;
  std::int64_t microbatch = -1;
  std::int64_t slice = -1;
};

// What args of PyTorch's profiler tell of a collective, or of a send or receive; empty or -1 for missing values.
struct CollectiveArgs {
  std::string name;               // "Collective name"
  std::string group;              // "Process Group Name"
  std::string ranks;              // "Process Group Ranks"
  std::int64_t number = -1;       // "Seq"
  std::int64_t size = -1;         // "Group size"
  std::int64_t source = -1;       // "Src Rank"
  std::int64_t destination = -1;  // "Dst Rank"
  std::int64_t external_id = -1;  // "External id", also of other ops
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
  std::int64_t model_chunk = -1;                             // from args, as in ByteDance's timelines
  std::int64_t mb_id = -1;                                   // from args, likewise: the microbatch
  std::int64_t bytes = -1;                                   // from args
  std::int64_t correlation = -1;                             // from args: of a launch and what it launched
  CollectiveArgs collective;                                 // from args
  std::string cause;                                         // from args
  std::string args_name;                                     // from args of metadata: `name`
  std::vector<std::pair<std::string, std::int64_t>> values;  // for a counter: its integer args
};

// The contents of the file besides its events.
struct TraceHead {
  bool is_trace = false;            // has an array `traceEvents`, or is an array
  bool is_array = false;            // is an array of events, without anything else
  bool is_sluice = false;           // has an object `sluice`
  std::string schema;               // of `sluice`, or at the top level
  bool two_runs = false;            // `sluice` has `sides`
  bool some_ranks_omitted = false;  // `sluice` has `world_ranks`
  bool waited_for_cores = false;    // of `sluice`, as TraceOptions
  bool shared_cores = false;
  std::int64_t base_time_ns = 0;  // Kineto: `baseTimeNanoseconds`
  // `rank` of `distributedInfo`; otherwise the first key `rank` in the file with an integer value, like Holistic Trace
  // Analysis.
  std::optional<std::int64_t> rank;
};

using EventHandler = std::function<void(TraceEvent&, const TraceHead&)>;

// A file that may be a trace, opened once, so that pipes can be read too. Throws InputError "file: ..." if it cannot be
// read.
class TraceSource {
 public:
  explicit TraceSource(const std::string& path);
  // A text in memory, which must outlive this; `name` is used in errors.
  TraceSource(std::string_view text, const std::string& name);
  ~TraceSource();
  TraceSource(const TraceSource&) = delete;
  TraceSource& operator=(const TraceSource&) = delete;

  const std::string& name() const { return name_; }

  // Returns whether the file is a trace: an object with `traceEvents`, or an array. Reads up to the first event. To be
  // called first.
  bool is_trace();
  // The name of the first event that is_trace found.
  const std::string& first_name() const { return first_name_; }
  // Whether a head of a Sluice trace precedes it.
  bool is_sluice() const { return is_sluice_; }

  // One of these may be called, once.
  //
  // Reads a Chrome trace (JSON object or array format), gzipped or not, event by event, with memory for one event and a
  // buffer. `on_event` may throw; it receives the head as read so far. The closing bracket of an array may be missing,
  // as the format permits. A file that is no trace is read to its end. Throws InputError "file: line L, column C: not
  // JSON: ..." for text that is not JSON, or "file: ..." for a corrupt gzip stream, a time or nesting depth out of
  // range, or a file above the limits of docs/formats.md ("Limits").
  TraceHead read(const EventHandler& on_event);
  // Returns the whole contents, decompressed.
  std::string text();

 private:
  std::size_t fill(std::span<char> out);
  ByteFill filler();

  std::string name_;
  std::string_view rest_;  // of a text
  int fd_ = -1;            // of a file
  bool keeps_ = false;     // bytes are read again
  std::string first_name_;
  bool is_sluice_ = false;
  std::string kept_;           // bytes that were read by is_trace
  std::size_t kept_read_ = 0;  // number of them that were read again
};

// Reads a trace from text; `source` names it in errors.
TraceHead read_trace_text(std::string_view text, const std::string& source, const EventHandler& on_event);

}  // namespace sluice::traces
