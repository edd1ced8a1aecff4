#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "exec/plan/stage_footprint.h"
#include "exec/run/device_worker.h"
#include "model/to_size.h"

namespace sluice::exec {
// Runs every kind of op on every shape once, on zeros and without messages, and the kernels of collectives, so that no
// kernel is loaded, and no plan of a library is built, during a run: the first launch of a kernel waits for an idle
// device, which one that waits for another worker is not.
void DeviceWorker::rehearse() {
  const std::vector<double> no_rates(to_size(plan_.steps_per_run()), 0.0);
  learning_rates_ = no_rates;
  rehearsing_ = true;
  std::set<std::tuple<OpKind, int, int, std::int64_t, std::int64_t>> done;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].collective) continue;
    const PlannedStep& step = rank_.steps[items_[i].index];
    if (step.kind == PlannedStep::Kind::optimizer) issue_optimizer(step, i);
    bool fresh = false;
    for (int half = 0; step.kind == PlannedStep::Kind::op && half < step.num_ops; ++half) {
      const OpPlan& op = step.ops[half];
      const SliceShape shape = slice_shape(plan_.schedule().shape(op.op.microbatch), op.op.slice);
      fresh = done.insert({op.op.op, op.chunk, shape.sequences, shape.tokens, shape.context}).second || fresh;
    }
    if (!fresh) continue;
    const std::span<const WovenStep> woven = program_of(items_[i].index);
    woven.empty() ? issue_ops(step, i) : issue_woven(step, woven, i);
  }
  for (std::size_t chunk = 0; chunk < arena_plan_.gradients.size() && !items_.empty(); ++chunk) {
    check_gradients(static_cast<int>(chunk), gradients(static_cast<int>(chunk), 0), 0, *compute_);
  }
  if (has_norm()) {
    for (std::size_t chunk = 0; chunk < arena_plan_.gradients.size(); ++chunk) {
      const int at = static_cast<int>(chunk);
      stage_of(at).add_squared_norm(gradients(at, 0), on_device_.squares, *compute_);
    }
    kernels_.gradient_scale(*compute_, on_device_.squares, 0, 1, on_device_.scales, on_device_.norms);
  }
  device_.zero(arena_, std::max<std::int64_t>(arena_plan_.total_bytes, kBufferAlignment), *compute_);
  device_.zero(small_device_, small_bytes_, *compute_);
  device_.copy(small_host_, small_device_, small_bytes_, *compute_);
  device_.synchronize(*compute_);
  learning_rates_ = {};
  rehearsing_ = false;
}

}  // namespace sluice::exec
