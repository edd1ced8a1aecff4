#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "traces/chrome/trace_events.h"
#include "traces/read/trace_read.h"

namespace sluice::traces {

// The kernels, copies and fills of a file of PyTorch's profiler, by the time at which the host launched them. Kineto's
// GPU ranges contain only what the thread of the CPU range launched, but autograd launches the kernels of a backward
// from a thread of its own, while the thread of the range waits for it.
class LaunchedKernels {
 public:
  using Stream = std::pair<std::int64_t, std::int64_t>;  // pid and tid of its events

  // Adds an event, in file order. Others than launches and kernels are ignored.
  void add(const TraceEvent& event);
  // To be called once, after the last event.
  void match();

  std::int64_t size() const { return std::ssize(launches_) + std::ssize(kernels_); }

  struct Span {
    Duration start{};
    Duration end{};
  };
  // Returns the stream on which what was launched within the spans of the host takes most time; none if nothing was.
  std::optional<Stream> busiest_stream(const std::vector<Span>& host) const;
  // Returns the time from the first start to the last end of what any thread launched on a stream within a span of the
  // host.
  std::optional<Span> extent(const Span& host, const Stream& stream) const;

 private:
  struct Launch {
    std::int64_t correlation = 0;
    Duration at{};
  };
  struct Kernel {
    std::int64_t correlation = 0;
    Stream stream;
    Span span;
    Duration launched{};
  };

  template <class Visit>
  void for_each(const Span& host, const Visit& visit) const;

  std::vector<Launch> launches_;
  std::vector<Kernel> kernels_;  // after `match` those with a launch, sorted by it
};

// The action that a `PP:` range of torch.distributed.pipelining denotes (_get_profiler_function_name: "PP:" + action).
struct PipelineAction {
  enum class Kind : std::uint8_t { op, joint, send, receive, reduce, other };
  Kind kind = Kind::other;
  RowOp op;       // for a send or receive: F for activations, B for gradients, and the stage that sends or receives
  RowOp partner;  // for a joint block
};
// Parses a name such as "PP:2F0". Returns nullopt for any other name.
std::optional<PipelineAction> parse_pipeline_range(std::string_view name);

// The ranges of one file, which contains one rank.
class KinetoRank {
 public:
  explicit KinetoRank(std::string source) : source_(std::move(source)) {}

  // Adds an event, in file order. Events that are not pipeline ranges are ignored. Throws InputError.
  void add(const TraceEvent& event);
  // To be called once, after the last event. Selects the ranges of one category and stream, converts them to absolute
  // times and splits them into iterations. Throws InputError if there are none.
  void finish(const TraceHead& head);

  struct Range {
    PipelineAction action;
    std::int64_t pid = 0;
    std::int64_t tid = 0;
    Duration start{};
    Duration end{};
    std::int64_t iteration = -1;  // -1: none, the range is at a cut
  };
  // One iteration; whole if it contains each op of the rank once.
  struct Iteration {
    std::int64_t number = 0;
    bool whole = false;
    Duration start{};
    Duration end{};
  };

  const std::string& source() const { return source_; }
  std::optional<std::int64_t> rank() const { return rank_; }
  bool on_gpu() const { return on_gpu_; }
  // Whether the ops are the kernels launched in the ranges of the CPU, instead of ranges of the GPU.
  bool by_launches() const { return by_launches_; }
  bool has_steps() const { return has_steps_; }                       // iterations are ProfilerStep ranges
  const std::vector<Range>& ops() const { return ops_; }              // sorted by start
  const std::vector<Range>& transfers() const { return transfers_; }  // sends and receives
  const std::vector<Range>& others() const { return others_; }        // reductions and optimizer steps (Kind::other)
  std::vector<Iteration> whole_iterations() const;
  // The number of ranges with a duration below 0 by at most the resolution of a clock, which count as empty.
  std::int64_t num_negative() const { return num_negative_; }

 private:
  struct Step {
    std::int64_t number = 0;
    std::int64_t pid = 0;
    std::int64_t tid = 0;
    Duration start{};
    Duration end{};
  };
  // The ranges of the CPU or of the GPU.
  struct Ranges {
    std::vector<Range> ops;
    std::vector<Range> transfers;
    std::vector<Range> others;
    std::vector<Step> steps;
  };

  bool follow_launches(const Ranges& host, Ranges& device);
  void keep_one_stream(Ranges& ranges);
  void split_by_steps(const std::vector<Step>& steps);
  void split_by_repetition();
  void number_others();

  std::string source_;
  std::int64_t num_kept_ = 0;
  std::int64_t num_negative_ = 0;
  std::optional<std::int64_t> rank_;
  bool on_gpu_ = false;
  bool by_launches_ = false;
  LaunchedKernels kernels_;
  bool has_steps_ = false;
  std::array<Ranges, 2> seen_;  // CPU, GPU
  std::vector<Range> ops_;
  std::vector<Range> transfers_;
  std::vector<Range> others_;
  std::vector<Iteration> iterations_;
};

// Combines the finished files of a pipeline into one run.
TraceRun kineto_run(std::vector<KinetoRank> files, const TraceReadOptions& options);

}  // namespace sluice::traces
