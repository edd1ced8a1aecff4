#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "traces/chrome/trace_events.h"
#include "traces/read/trace_read.h"

namespace sluice::traces {

// Builds a run from the events of one Sluice trace.
class SluiceTraceReader {
 public:
  explicit SluiceTraceReader(std::string source) : source_(std::move(source)) {}

  // Adds an event, in file order. Throws InputError "source: event N: rule, got value".
  void add(const TraceEvent& event);
  // To be called once, after the last event.
  TraceRun finish(const TraceHead& head, const TraceReadOptions& options) &&;

 private:
  struct Process {
    int rank = 0;
    bool has_idle = false;
    IdleByCause idle{};
    std::vector<MemorySample> samples;
  };
  // One end of a transfer.
  struct End {
    RowOp op;
    int rank = 0;
    Duration start{};
    Duration duration{};
    std::int64_t bytes = 0;
  };

  [[noreturn]] void fail(const TraceEvent& event, const std::string& rule) const;
  Process& process_of(const TraceEvent& event);
  RowOp op_of(const TraceEvent& event, const EventOp& op, OpKind kind) const;
  OpRow row_of(const TraceEvent& event);
  static bool ends_match(const End& send, const End& receive);
  void add_row(const OpRow& row);
  void add_joined(const End& send, const End& receive);
  void take_rows();
  void add_compute(const TraceEvent& event);
  void add_transfer(const TraceEvent& event);
  void add_copy(const TraceEvent& event);
  void add_step(const TraceEvent& event);
  void add_idle(const TraceEvent& event);
  void add_part(const TraceEvent& event);
  void add_memory(const TraceEvent& event);
  std::int64_t join_transfers();
  std::string take_iteration(const TraceReadOptions& options, Duration& begin, Duration& end);
  void set_memory(Duration begin, Duration end);
  void take_parts(Duration begin, Duration end);
  void name_recomputation();

  std::string source_;
  RunRows run_;
  std::vector<std::vector<OpRow>> blocks_;     // of rows: a vector that grows holds its contents twice
  std::map<std::int64_t, Process> processes_;  // by pid
  std::vector<End> sends_;
  std::vector<End> receives_;
  bool send_is_open_ = false;  // the last transfer slice was that of sends_.back()
};

}  // namespace sluice::traces
