#include "traces/measured/estimated_transfers.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "model/median.h"
#include "model/to_size.h"
#include "traces/measured/pass_index.h"

namespace sluice::traces {
namespace {

// Rank, kind of a pass, and of the one before on its rank; -1: none.
using GapClass = std::tuple<int, MeasuredKind, int>;

// A pass, the one before on its rank, and the one on the neighbouring stage that it needs; null: none.
struct PassGap {
  const MeasuredOp* pass = nullptr;
  const MeasuredOp* before = nullptr;
  const MeasuredOp* producer = nullptr;
};

template <typename OnGap>
void for_each_gap(const MeasuredRun& run, const OnGap& on_gap) {
  for (int step = 0; step < std::ssize(run.steps); ++step) {
    const std::span<const MeasuredOp> ops = ops_of_step(run, step);
    const PassIndex passes(run, ops);
    const MeasuredOp* before = nullptr;
    for (const MeasuredOp& op : ops) {
      if (!is_pass(op.kind)) continue;
      if (before != nullptr && before->worker != op.worker) before = nullptr;
      const std::int32_t producer = op.kind == MeasuredKind::weight_gradient ? kNoOp : passes.before(op);
      on_gap(PassGap{&op, before, producer == kNoOp ? nullptr : &ops[to_size(producer)]});
      before = &op;
    }
  }
}

class MedianGaps {
 public:
  void add(const GapClass& key, Duration gap) { gaps_[key].push_back(std::max(gap, Duration::zero())); }
  void finish() {
    for (auto& [key, values] : gaps_) median_[key] = upper_median(std::move(values));
  }
  Duration of(const GapClass& key) const {
    const auto found = median_.find(key);
    return found == median_.end() ? Duration::zero() : found->second;
  }

 private:
  std::map<GapClass, std::vector<Duration>> gaps_;
  std::map<GapClass, Duration> median_;
};

}  // namespace

MeasuredRun with_estimated_transfers(MeasuredRun run) {
  if (run.has_transfers || run.stages() == 1) return run;
  const auto class_of = [&](const PassGap& gap) {
    return GapClass{run.rank_of(gap.pass->worker), gap.pass->kind,
                    gap.before != nullptr ? static_cast<int>(gap.before->kind) : -1};
  };
  MedianGaps links;
  MedianGaps calls;
  for_each_gap(run, [&](const PassGap& gap) {
    const bool waits = gap.producer != nullptr && (gap.before == nullptr || gap.producer->end > gap.before->end);
    if (waits) links.add(class_of(gap), gap.pass->start - gap.producer->end);
    if (!waits && gap.before != nullptr) calls.add(class_of(gap), gap.pass->start - gap.before->end);
  });
  links.finish();
  calls.finish();
  std::vector<MeasuredOp> transfers;
  const auto add = [&](MeasuredOp op, MeasuredKind kind, Duration start, Duration time, Duration latest) {
    op.kind = kind;
    op.start = start;
    op.end = std::max(start, std::min(start + time, latest));
    transfers.push_back(op);
  };
  for_each_gap(run, [&](const PassGap& gap) {
    const MeasuredOp& pass = *gap.pass;
    if (gap.producer != nullptr) {
      const bool forward = pass.kind == MeasuredKind::forward;
      add(pass, forward ? MeasuredKind::forward_receive : MeasuredKind::backward_receive, gap.producer->end,
          links.of(class_of(gap)), pass.start);
    }
    if (gap.before != nullptr && gap.before->kind != MeasuredKind::weight_gradient) {
      const bool forward = gap.before->kind == MeasuredKind::forward;
      add(*gap.before, forward ? MeasuredKind::forward_send : MeasuredKind::backward_send, gap.before->end,
          calls.of(class_of(gap)), pass.start);
    }
  });
  run.notes.emplace_back(
      "no sends and receives were recorded: the time of a transfer is the median gap before passes that wait for it");
  run.ops.insert(run.ops.end(), transfers.begin(), transfers.end());
  run.estimated_transfers = true;
  arrange_ops(run);
  return run;
}

}  // namespace sluice::traces
