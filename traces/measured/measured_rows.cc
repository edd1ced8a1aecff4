#include "traces/measured/measured_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/to_size.h"
#include "traces/read/trace_read.h"

namespace sluice::traces {
namespace {

MeasuredKind kind_of_collective(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::parameter_gather: return MeasuredKind::parameter_gather;
    case CollectiveKind::gradient_reduce: return MeasuredKind::gradient_scatter;
    case CollectiveKind::tied_embedding: return MeasuredKind::embedding_reduce;
    case CollectiveKind::global_norm: return MeasuredKind::clip;
    case CollectiveKind::replica_reduce: return MeasuredKind::separate_reduce;
  }
  return MeasuredKind::separate_reduce;
}

class RowConverter {
 public:
  RowConverter(TraceRun read, const std::string& source)
      : run_(std::move(read.run)), notes_(std::move(read.notes)), source_(source) {
    for (const OpRow& row : run_.rows) {
      if (row.kind == RowKind::joint) {
        throw InputError(fmt::format("{}: {}: expected ops of their own, got a joint block, whose halves have no times",
                                     source, name_of(row, run_.sliced)));
      }
      if (row.kind == RowKind::recompute) recomputed_[{row.op.microbatch, row.op.stage, row.op.slice}] = row.start;
      if (row.kind <= RowKind::W) {
        slices_ = std::max(slices_, row.op.slice + 1);
        place(row);
      }
    }
    chunks_ = 1;
    for (const auto& [rank, stages] : stages_of_) chunks_ = std::max(chunks_, static_cast<int>(stages.size()));
  }

  MeasuredRun run() {
    for (const OpRow& row : run_.rows) add(row);
    run_ = {};  // the memory of a long trace
    MeasuredRun run = measured_run(std::move(ops_), "trace", source_);
    run.notes.insert(run.notes.begin(), notes_.begin(), notes_.end());
    run.chunks = chunks_;
    run.stage_of_chunk.assign(to_size(run.ranks) * to_size(chunks_), 0);
    for (const auto& [rank, stages] : stages_of_) {
      for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
        run.stage_of_chunk[to_size(rank) * to_size(chunks_) + chunk] = stages[chunk];
      }
    }
    return run;
  }

 private:
  void place(const OpRow& row) {
    std::vector<int>& stages = stages_of_[row.rank];
    const auto [found, is_new] = rank_of_.try_emplace(row.op.stage, row.rank);
    if (found->second != row.rank) {
      throw InputError(fmt::format("{}: stage {} is on ranks {} and {}: expected one", source_, row.op.stage,
                                   found->second, row.rank));
    }
    if (is_new) stages.insert(std::lower_bound(stages.begin(), stages.end(), row.op.stage), row.op.stage);
  }

  std::int16_t chunk_of(int stage) const {
    const std::vector<int>& stages = stages_of_.at(rank_of_.at(stage));
    return static_cast<std::int16_t>(std::lower_bound(stages.begin(), stages.end(), stage) - stages.begin());
  }

  void add(const OpRow& row) {
    RawMeasuredOp raw{.rank = row.rank};
    raw.op.start = row.start;
    raw.op.end = row.end;
    raw.op.microbatch = row.op.microbatch * slices_ + row.op.slice;
    switch (row.kind) {
      case RowKind::F: raw.op.kind = MeasuredKind::forward; break;
      case RowKind::B: raw.op.kind = MeasuredKind::backward; break;
      case RowKind::I: raw.op.kind = MeasuredKind::input_gradient; break;
      case RowKind::W: raw.op.kind = MeasuredKind::weight_gradient; break;
      case RowKind::transfer: add_transfer(row, raw); return;
      case RowKind::collective: raw.op.kind = kind_of_collective(row.collective); break;
      case RowKind::optimizer: raw.op.kind = MeasuredKind::optimizer; break;
      default: return;
    }
    if (row.kind <= RowKind::W) {
      raw.op.chunk = chunk_of(row.op.stage);
      const auto recomputed = recomputed_.find({row.op.microbatch, row.op.stage, row.op.slice});
      if ((row.kind == RowKind::B || row.kind == RowKind::I) && recomputed != recomputed_.end()) {
        raw.op.start = std::min(raw.op.start, recomputed->second);
      }
    } else {
      raw.op.microbatch = -1;
      if (row.op.stage >= 0 && rank_of_.contains(row.op.stage)) raw.op.chunk = chunk_of(row.op.stage);
    }
    ops_.push_back(raw);
  }

  void add_transfer(const OpRow& row, RawMeasuredOp raw) {
    const bool forward = row.op.kind == OpKind::F;
    raw.op.kind = forward ? MeasuredKind::forward_send : MeasuredKind::backward_send;
    raw.op.chunk = chunk_of(row.op.stage);
    ops_.push_back(raw);
    raw.rank = row.peer;
    raw.op.kind = forward ? MeasuredKind::forward_receive : MeasuredKind::backward_receive;
    raw.op.end += row.latency;
    const int stage = row.op.stage + (forward ? 1 : -1);
    raw.op.chunk = rank_of_.contains(stage) ? chunk_of(stage) : std::int16_t{0};
    ops_.push_back(raw);
  }

  RunRows run_;
  std::vector<std::string> notes_;
  const std::string& source_;
  std::map<std::tuple<int, int, int>, Duration> recomputed_;  // by microbatch, stage and slice
  std::map<int, std::vector<int>> stages_of_;                 // by rank, ascending
  std::map<int, int> rank_of_;                                // by stage
  int slices_ = 1;
  int chunks_ = 1;
  std::deque<RawMeasuredOp> ops_;
};

// The row of an op, without its transfer; nullopt if comparisons have no such row.
std::optional<OpRow> row_of(const MeasuredRun& run, const MeasuredOp& op) {
  OpRow row{.rank = static_cast<std::int16_t>(run.rank_of(op.worker)), .start = op.start, .end = op.end};
  row.op = {.microbatch = op.microbatch, .stage = static_cast<std::int16_t>(run.stage(row.rank, op.chunk))};
  const auto collective = [&](CollectiveKind kind) {
    row.kind = RowKind::collective;
    row.collective = kind;
    row.op.microbatch = 0;
    if (kind == CollectiveKind::global_norm) row.op.stage = -1;
    return op.number < run.chunks ? std::optional(row) : std::nullopt;
  };
  switch (op.kind) {
    case MeasuredKind::forward: row.kind = RowKind::F; break;
    case MeasuredKind::backward: row.kind = RowKind::B; break;
    case MeasuredKind::input_gradient: row.kind = RowKind::I; break;
    case MeasuredKind::weight_gradient: row.kind = RowKind::W; break;
    case MeasuredKind::parameter_gather: return collective(CollectiveKind::parameter_gather);
    case MeasuredKind::gradient_scatter: return collective(CollectiveKind::gradient_reduce);
    case MeasuredKind::embedding_reduce: return collective(CollectiveKind::tied_embedding);
    case MeasuredKind::clip: return collective(CollectiveKind::global_norm);
    case MeasuredKind::optimizer:
      row.kind = RowKind::optimizer;
      row.op.microbatch = 0;
      return op.number == 0 ? std::optional(row) : std::nullopt;
    default: return std::nullopt;
  }
  row.op.kind = static_cast<OpKind>(row.kind);
  return row;
}

}  // namespace

TraceRun rows_of_step(const MeasuredRun& run, std::optional<std::int64_t> step, const std::string& source) {
  const std::int64_t number = step.value_or(run.steps.back());
  const auto found = std::find(run.steps.begin(), run.steps.end(), number);
  if (found == run.steps.end()) {
    throw InputError(fmt::format("{}: step {}: expected one of {} steps from {} to {}", source, number,
                                 run.steps.size(), run.steps.front(), run.steps.back()));
  }
  TraceRun out;
  out.run.num_ranks = run.ranks;
  for (int rank = 0; rank < run.ranks; ++rank) {
    for (const MeasuredOp& op : run.of(static_cast<int>(found - run.steps.begin()), run.worker(0, rank))) {
      if (const std::optional<OpRow> row = row_of(run, op)) out.run.rows.push_back(*row);
    }
  }
  out.notes = run.notes;
  out.notes.push_back(fmt::format("step {} of {}", number, run.format));
  if (run.replicas > 1) out.notes.push_back(fmt::format("the first of {} replicas", run.replicas));
  out.run.idle = idle_of_rows(out.run);
  return out;
}

MeasuredRun measured_rows(TraceRun read, const std::string& source) {
  return RowConverter(std::move(read), source).run();
}

}  // namespace sluice::traces
