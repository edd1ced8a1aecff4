#include "tests/support/measured_pipeline.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace sluice::test {
namespace {

using traces::MeasuredKind;
using traces::RawMeasuredOp;

class Executor {
 public:
  explicit Executor(const MeasuredPipeline& pipeline) : p_(pipeline), random_(pipeline.seed) {}

  std::deque<RawMeasuredOp> run() {
    for (int step = 0; step < p_.steps; ++step) {
      std::vector<std::vector<double>> last;
      for (int replica = 0; replica < p_.replicas; ++replica) last.push_back(run_replica(step, replica));
      // One reduction per rank, which starts on all replicas when the last one is ready, then the optimizer.
      for (int rank = 0; rank < p_.ranks; ++rank) {
        double reduced = 0;
        for (const auto& ends : last) reduced = std::max(reduced, ends[static_cast<std::size_t>(rank)]);
        for (int replica = 0; replica < p_.replicas; ++replica) {
          const double own = last[static_cast<std::size_t>(replica)][static_cast<std::size_t>(rank)];
          const MeasuredPipeline::Pass at{.step = step, .replica = replica, .rank = rank, .microbatch = -1};
          add(at, MeasuredKind::gradient_scatter, own, reduced + p_.reduce_ms);
          add(at, MeasuredKind::optimizer, reduced + p_.reduce_ms, reduced + p_.reduce_ms + 5);
        }
      }
    }
    return std::move(ops_);
  }

 private:
  double noisy(double ms) {
    if (p_.noise == 0) return ms;
    return ms * std::max(0.1, 1 + p_.noise * std::normal_distribution<double>()(random_));
  }

  void add(const MeasuredPipeline::Pass& at, MeasuredKind kind, double start, double end) {
    RawMeasuredOp raw{.step = 100 + at.step, .replica = at.replica, .rank = at.rank};
    raw.op.kind = kind;
    raw.op.microbatch = traces::is_pass(kind) ? at.microbatch : -1;
    raw.op.start = Duration{std::llround(start * 1e6)};
    raw.op.end = Duration{std::llround(end * 1e6)};
    ops_.push_back(raw);
  }

  // Returns the last end of each rank. Transfers do not occupy a rank; a receive waits from the end of the pass before.
  std::vector<double> run_replica(int step, int replica) {
    const auto ranks = static_cast<std::size_t>(p_.ranks);
    const auto microbatches = static_cast<std::size_t>(p_.microbatches);
    std::vector<std::vector<double>> arrival[2];  // forward, backward: when the input of a pass is there
    for (auto& each : arrival) each.assign(ranks, std::vector<double>(microbatches, -1));
    std::fill(arrival[0][0].begin(), arrival[0][0].end(), 0.0);
    std::vector<double> free(ranks, 0);
    std::vector<int> forwards(ranks, 0);
    std::vector<int> backwards(ranks, 0);
    for (int left = 2 * p_.ranks * p_.microbatches; left > 0;) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const int warm_up = std::min(p_.microbatches, p_.ranks - static_cast<int>(rank));
        if (backwards[rank] == p_.microbatches) continue;
        const bool forward = forwards[rank] < p_.microbatches && forwards[rank] - backwards[rank] < warm_up;
        const int microbatch = forward ? forwards[rank] : backwards[rank];
        const double there = arrival[forward ? 0 : 1][rank][static_cast<std::size_t>(microbatch)];
        if (there < 0) continue;
        const MeasuredPipeline::Pass at{step, replica, static_cast<int>(rank), microbatch, forward};
        const double start = std::max(free[rank], there);
        const double end = start + p_.pass(at, noisy(forward ? p_.forward_ms : p_.backward_ms));
        add(at, forward ? MeasuredKind::forward : MeasuredKind::backward, start, end);
        (forward ? forwards : backwards)[rank] += 1;
        free[rank] = end;
        --left;
        if (forward && rank + 1 == ranks) {
          arrival[1][rank][static_cast<std::size_t>(microbatch)] = end;
        } else if (forward || rank > 0) {
          const std::size_t to = forward ? rank + 1 : rank - 1;
          const double time = p_.transfer(at, noisy(p_.transfer_ms));
          arrival[forward ? 0 : 1][to][static_cast<std::size_t>(microbatch)] = end + time;
          if (p_.transfers) {
            add(at, forward ? MeasuredKind::forward_send : MeasuredKind::backward_send, end, end + time);
            MeasuredPipeline::Pass receiver = at;
            receiver.rank = static_cast<int>(to);
            add(receiver, forward ? MeasuredKind::forward_receive : MeasuredKind::backward_receive, end, end + time);
          }
        }
      }
    }
    return free;
  }

  const MeasuredPipeline& p_;
  std::mt19937_64 random_;
  std::deque<RawMeasuredOp> ops_;
};

}  // namespace

std::deque<traces::RawMeasuredOp> measured_pipeline(const MeasuredPipeline& pipeline) {
  return Executor(pipeline).run();
}

}  // namespace sluice::test
