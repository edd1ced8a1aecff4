#include "benchmarks/accuracy/replay.h"

#include <algorithm>
#include <vector>

#include "model/errors.h"

namespace sluice::bench::accuracy {
namespace {

constexpr double kNotYet = -1;

class Replay {
 public:
  Replay(const Schedule& schedule, const ReplayCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        forward_end_(
            static_cast<std::size_t>(schedule.num_stages()) * static_cast<std::size_t>(schedule.total_microbatches()),
            kNotYet),
        gradient_end_(forward_end_),
        ranks_(static_cast<std::size_t>(schedule.num_ranks())) {}

  ReplayResult run() {
    std::int64_t left = schedule_.num_ops();
    while (left > 0) {
      const std::int64_t before = left;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (run_next(rank)) --left;
      }
      if (left == before) throw ScheduleError("replay: the schedule deadlocks");
    }
    ReplayResult result;
    for (const Rank& rank : ranks_) {
      result.makespan = std::max(result.makespan, rank.last_end);
      result.span = std::max(result.span, rank.last_end - rank.first_start);
    }
    return result;
  }

 private:
  struct Rank {
    std::size_t next = 0;
    double free = 0;
    double first_start = 0;
    double last_end = 0;
  };

  double& end(std::vector<double>& ends, int stage, int microbatch) const {
    return ends[static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.total_microbatches()) +
                static_cast<std::size_t>(microbatch)];
  }

  // Arrival on `rank` of the result of stage `source` that `op` depends on; kNotYet if that has not run.
  double arrival(std::vector<double>& ends, int source, const Op& op, int rank) const {
    const int from = schedule_.rank_of(source, op.microbatch);
    const bool wraps = op.kind == OpKind::F ? from > rank : from < rank;
    if (wraps && !costs_.every_wrap_waits && op.microbatch % schedule_.num_ranks() != 0) return 0;
    const double sent = end(ends, source, op.microbatch);
    return sent == kNotYet ? kNotYet : sent + costs_.hop(from, rank);
  }

  bool run_next(int index) {
    Rank& rank = ranks_[index];
    const auto ops = schedule_.ops(index);
    if (rank.next == ops.size()) return false;
    const Op& op = ops[rank.next];
    const bool forward = op.kind == OpKind::F;
    const int target = op.stage + (forward ? 1 : -1);
    double ready = 0;
    if (forward && op.stage > 0) {
      ready = arrival(forward_end_, op.stage - 1, op, index);
    } else if ((op.kind == OpKind::B || op.kind == OpKind::I) && op.stage + 1 < schedule_.num_stages()) {
      ready = arrival(gradient_end_, op.stage + 1, op, index);
    }
    if (ready == kNotYet) return false;
    const double start = std::max(rank.free, ready);
    if (rank.next == 0) rank.first_start = start;
    rank.last_end = start + costs_.op(op);
    rank.free = rank.last_end;
    ++rank.next;
    if (op.kind == OpKind::W) return true;
    end(forward ? forward_end_ : gradient_end_, op.stage, op.microbatch) = rank.last_end;
    if (target >= 0 && target < schedule_.num_stages()) {
      rank.free += costs_.blocked * costs_.hop(index, schedule_.rank_of(target, op.microbatch));
    }
    return true;
  }

  const Schedule& schedule_;
  const ReplayCosts& costs_;
  std::vector<double> forward_end_;
  std::vector<double> gradient_end_;
  std::vector<Rank> ranks_;
};

}  // namespace

ReplayResult replay(const Schedule& schedule, const ReplayCosts& costs) { return Replay(schedule, costs).run(); }

}  // namespace sluice::bench::accuracy
