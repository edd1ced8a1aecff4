#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "traces/chrome/trace_events.h"
#include "traces/measured/measured_run.h"
#include "traces/profile/gpu_trace.h"

namespace sluice::traces {

// Which op the name of a trace event denotes. A name may contain fields in braces, {microbatch}, {chunk} and {step},
// which stand for a number each.
class NameMap {
 public:
  // The names of ByteDance's timelines (kMeasuredKindNames), and their fused pairs of a send and a receive.
  NameMap();
  // Reads `sluice.names/1`: an object `names` of names and the ops that they denote: a kind of kMeasuredKindNames, or
  // F, B, I, W. Throws InputError "source: /names/...: ...".
  NameMap(std::string_view text, const std::string& source);

  struct Match {
    std::vector<MeasuredKind> kinds;  // two for a fused send and receive; empty if the name denotes no op
    std::int64_t microbatch = -1;
    std::int64_t chunk = -1;
    std::int64_t step = -1;
  };
  Match match(const std::string& name) const;
  // What errors call the names.
  const std::string& source() const { return source_; }

 private:
  struct Pattern {
    std::vector<std::string> pieces;  // between the fields
    std::vector<std::string> fields;
    std::vector<MeasuredKind> kinds;
  };
  void add(const std::string& name, std::vector<MeasuredKind> kinds, const std::string& place);
  static bool matches(const Pattern& pattern, std::string_view name, Match& match);

  std::string source_;
  std::map<std::string, std::vector<MeasuredKind>, std::less<>> exact_;
  std::vector<Pattern> patterns_;
};

// Collects the ops of Chrome traces by their names. An op's worker is that of its thread, if threads are named "PP rank
// P, TP rank T, ..." and processes are data-parallel ranks, as ByteDance's are; otherwise, with one file per rank, the
// rank of its file (`rank` of distributedInfo, or the order of the files); otherwise its process id, counted as
// pipeline rank, or as global rank if several processes have no receive of activations. The step is `step` of args or
// of the name, or that of a range ProfilerStep#N that contains the op.
class NamedOps {
 public:
  explicit NamedOps(const NameMap& names) : names_(names) {}

  // Adds an event of file number `file`, in file order. Throws InputError "source: event N: ...".
  void add(const TraceEvent& event, int file, const std::string& source);
  // The rank of a file, from its head.
  void set_rank(int file, std::int64_t rank) { rank_of_file_[file] = rank; }
  bool empty() const { return num_passes_ == 0; }

  MeasuredRun finish(const std::string& format, const std::string& source) &&;

 private:
  // A thread of a process of a file.
  struct Thread {
    int file = 0;
    std::int64_t pid = 0;
    std::int64_t tid = 0;
    friend bool operator==(const Thread&, const Thread&) = default;
    friend bool operator<(const Thread& a, const Thread& b) {
      return std::tie(a.file, a.pid, a.tid) < std::tie(b.file, b.pid, b.tid);
    }
  };
  struct Place {
    int replica = 0;
    int rank = 0;
    int shard = 0;
  };
  struct Range {
    Duration start{};
    Duration end{};
    std::int64_t step = 0;
  };

  int thread_of(const TraceEvent& event, int file);
  std::vector<Place> places(const std::string& source) const;
  std::vector<Place> places_of_processes(const std::string& source) const;
  void find_steps();

  const NameMap& names_;
  std::map<Thread, int> threads_;             // and their numbers
  std::map<int, std::pair<int, int>> named_;  // rank and shard of threads with a name
  std::map<int, std::int64_t> rank_of_file_;
  std::map<int, std::vector<Range>> step_ranges_;  // by file
  std::vector<int> file_of_thread_;
  std::pair<Thread, int> last_{{-1, 0, 0}, -1};
  std::map<std::string, NameMap::Match, std::less<>> known_;  // names seen
  std::deque<RawMeasuredOp> ops_;                             // `worker` is the number of the thread
  std::size_t num_passes_ = 0;
};

struct MeasuredReadOptions {
  const NameMap* names = nullptr;  // of the ops in Chrome traces; null: those of ByteDance's timelines
  // Not null: receives the GPUs of traces of PyTorch's profiler that have kernels but no ops of a pipeline, in which
  // case the run is empty.
  std::vector<GpuTrace>* profile = nullptr;
  bool kernels = false;  // with `profile`: also where there are ops of a pipeline
};

// Reads measured steps from files (trace_files): a folder of Primus's pipeline logs; a Chrome trace whose ops have the
// names of ByteDance's timelines or of a name map, with all workers in one file or one file per rank; or a trace that
// read_trace_run reads, Sluice's own or of PyTorch's pipelining, of which it takes one step.
// Throws InputError "file: ...".
MeasuredRun read_measured_run(const std::vector<std::string>& paths, const MeasuredReadOptions& options = {});

// Reads a timeline of ByteDance from an opened file.
MeasuredRun read_bytedance_timeline(TraceSource& source);

}  // namespace sluice::traces
