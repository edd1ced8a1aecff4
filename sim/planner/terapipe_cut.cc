#include "sim/planner/terapipe_cut.h"

#include <algorithm>
#include <utility>

#include "model/slicing/terapipe.h"

namespace sluice::sim {
namespace {

// Time of a whole microbatch, forward and backward, including recomputation.
double whole_seconds(const Setup& setup, int stage) {
  const MicrobatchShape shape{setup.schedule().shape(0).sequences, {setup.schedule().shape(0).tokens()}};
  const CostModel& cost = setup.cost();
  return cost.compute_s(OpKind::F, stage, shape, 0) + cost.compute_s(OpKind::B, stage, shape, 0) +
         cost.recompute_s(stage, shape, 0);
}

int slowest_stage(const Setup& setup) {
  int slowest = 0;
  for (int stage = 1; stage < setup.schedule().num_stages(); ++stage) {
    if (whole_seconds(setup, stage) > whole_seconds(setup, slowest)) slowest = stage;
  }
  return slowest;
}

// The rank from which `bytes` take longest to the next rank.
int slowest_sender(const Setup& setup, std::int64_t bytes) {
  int slowest = 0;
  double most = 0;
  for (int rank = 0; rank + 1 < setup.schedule().num_ranks(); ++rank) {
    const TransferTime time = setup.cost().transfer(rank, rank + 1, bytes);
    if (time.occupied_s + time.latency_s <= most) continue;
    most = time.occupied_s + time.latency_s;
    slowest = rank;
  }
  return slowest;
}

// Evaluates all times once.
SliceTimes tabulated(const SliceTimes& times) {
  std::vector<std::vector<Duration>> rows(static_cast<std::size_t>(times.granules()));
  for (std::int64_t begin = 0; begin < times.granules(); ++begin) {
    auto& row = rows[begin];
    row.resize(times.granules() - begin);
    times.row(begin * times.granularity, row);
  }
  return tabulated_times(times.tokens, times.granularity, std::move(rows));
}

}  // namespace

std::vector<std::int64_t> terapipe_cut(const Setup& setup, std::int64_t granularity) {
  const Schedule& schedule = setup.schedule();
  const int sequences = schedule.shape(0).sequences;
  const std::int64_t tokens = schedule.shape(0).tokens();
  const int stage = slowest_stage(setup);
  std::int64_t bytes = 0;  // of a whole microbatch, per transfer
  for (int slice = 0; slice < schedule.shape(0).num_slices(); ++slice) {
    bytes += setup.graph().slice_bytes(0, 0, slice).transfer_forward;
  }
  const bool waits = setup.scenario().blocks_transfers() && schedule.num_ranks() > 1;
  const int sender = slowest_sender(setup, bytes);
  const auto times = [&](OpKind kind) {
    return slice_times(tokens, granularity, [&, kind](std::int64_t length, std::int64_t context) {
      // The whole sequence, as some costs depend on the slice's fraction of it.
      MicrobatchShape shape{sequences, {length}};
      if (context > 0) shape.slice_lengths.insert(shape.slice_lengths.begin(), context);
      const int slice = shape.num_slices() - 1;
      if (context + length < tokens) shape.slice_lengths.push_back(tokens - context - length);
      double seconds = setup.cost().compute_s(kind, stage, shape, slice);
      if (kind == OpKind::B) seconds += setup.cost().recompute_s(stage, shape, slice);
      if (waits) {
        const TransferTime time = setup.cost().transfer(sender, sender + 1, bytes * length / tokens);
        seconds += time.occupied_s + time.latency_s;
      }
      return from_seconds(seconds, "a slice");
    });
  };
  const SliceTimes forward = tabulated(times(OpKind::F));
  const SliceTimes backward = tabulated(times(OpKind::B));

  const int microbatches = schedule.num_microbatches();
  const int others = schedule.num_ranks() - 1;
  std::vector<std::int64_t> best;
  Duration least = Duration::max();
  for (const int cells : {others / microbatches + 1, (others + microbatches - 1) / microbatches + 1}) {
    const SlicingProblem problem{.forward = forward, .backward = backward, .num_cells = cells};
    std::vector<std::int64_t> lengths = best_slices(problem).lengths;
    // The latency is linear in the number of cells: two points yield the sum and the maximum.
    SlicingProblem one = problem;
    one.num_cells = 1;
    SlicingProblem two = problem;
    two.num_cells = 2;
    const Duration sum = pipeline_latency(one, lengths);
    const Duration greatest = pipeline_latency(two, lengths) - sum;
    const Duration all = microbatches * sum + others * greatest;
    if (all >= least) continue;
    least = all;
    best = std::move(lengths);
  }
  return best;
}

}  // namespace sluice::sim
