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

// What a `PP:` range of torch.distributed.pipelining stands for (_get_profiler_function_name: "PP:" and the action).
struct PipelineAction {
  enum class Kind : std::uint8_t { op, joint, send, receive, reduce, other };
  Kind kind = Kind::other;
  RowOp op;       // of a send or receive: F its activations, B its gradients, and the stage that sends or receives
  RowOp partner;  // of a joint block
};
// Of "PP:2F0"; nothing if `name` is no such range or has another action.
std::optional<PipelineAction> parse_pipeline_range(std::string_view name);

// The ranges of one file, that of one rank.
class KinetoRank {
 public:
  explicit KinetoRank(std::string source) : source_(std::move(source)) {}

  // Takes events in the order of the file; those that are no ranges of the pipeline are passed over. Throws InputError.
  void add(const TraceEvent& event);
  // Once, after the last event: takes the ranges of one category and stream, on an absolute clock, and tells iterations
  // apart. Throws InputError where there are none.
  void finish(const TraceHead& head);

  struct Range {
    PipelineAction action;
    std::int64_t pid = 0;
    std::int64_t tid = 0;
    Duration start{};
    Duration end{};
    std::int64_t iteration = -1;  // -1: cut off
  };
  // One iteration; whole if each op that the rank has is in it.
  struct Iteration {
    std::int64_t number = 0;
    bool whole = false;
    Duration start{};
    Duration end{};
  };

  const std::string& source() const { return source_; }
  std::optional<std::int64_t> rank() const { return rank_; }
  bool on_gpu() const { return on_gpu_; }
  bool has_steps() const { return has_steps_; }                       // iterations are those of ProfilerStep
  const std::vector<Range>& ops() const { return ops_; }              // by start
  const std::vector<Range>& transfers() const { return transfers_; }  // sends and receives
  const std::vector<Range>& others() const { return others_; }        // reductions, and optimizer steps (Kind::other)
  std::vector<Iteration> whole_iterations() const;

 private:
  struct Step {
    std::int64_t number = 0;
    std::int64_t pid = 0;
    std::int64_t tid = 0;
    Duration start{};
    Duration end{};
  };
  // Ranges of the CPU, and of the GPU.
  struct Ranges {
    std::vector<Range> ops;
    std::vector<Range> transfers;
    std::vector<Range> others;
    std::vector<Step> steps;
  };

  void keep_one_stream(Ranges& ranges);
  void split_by_steps(const std::vector<Step>& steps);
  void split_by_repetition();
  void number_others();

  std::string source_;
  std::optional<std::int64_t> rank_;
  bool on_gpu_ = false;
  bool has_steps_ = false;
  std::array<Ranges, 2> seen_;
  std::vector<Range> ops_;
  std::vector<Range> transfers_;
  std::vector<Range> others_;
  std::vector<Iteration> iterations_;
};

// Makes one run of the files of a pipeline, each of which is finished.
TraceRun kineto_run(std::vector<KinetoRank> files, const TraceReadOptions& options);

}  // namespace sluice::traces
