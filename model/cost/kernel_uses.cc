#include "model/cost/kernel_uses.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace sluice::model {
namespace {

using OpClass = std::tuple<int, OpKind, int, int>;  // stage, kind, index of the microbatch's shape, slice

std::map<OpClass, std::int64_t> op_classes(const AnalyticCost& cost, const Schedule& schedule) {
  std::map<OpClass, std::int64_t> out;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Op& op : schedule.ops(rank)) {
      ++out[{cost.alike(op.stage), op.kind, schedule.shape_index(op.microbatch), op.slice}];
    }
  }
  return out;
}

class Counting {
 public:
  explicit Counting(const AnalyticCost& cost) : cost_(cost) {}

  void add(const std::vector<KernelPart>& parts, std::int64_t ops) {
    for (const KernelPart& part : parts) {
      for (const KernelCall& call : part.calls) {
        if (!is_collective(call.kind)) add(call, ops * part.repeats);
      }
    }
  }

  KernelUses result() {
    for (const auto& [shape, use] : uses_) out_.shapes.push_back(use);
    return std::move(out_);
  }

 private:
  void add(const KernelCall& call, std::int64_t times) {
    const std::int64_t count = times * call.count;
    const double seconds = cost_.kernel_s(call) / call.count;
    const bool measured = cost_.measured_s(call).has_value();
    out_.kernels += count;
    out_.compute_s += static_cast<double>(count) * seconds;
    if (measured) {
      out_.measured_kernels += count;
      out_.measured_s += static_cast<double>(count) * seconds;
    }
    if (const auto shape = kernel_shape(cost_.training().precision, call)) {
      KernelUse& use = uses_[*shape];
      use.shape = *shape;
      use.count += count;
      use.seconds = seconds;
      use.measured = measured;
    }
  }

  const AnalyticCost& cost_;
  std::map<KernelShape, KernelUse> uses_;
  KernelUses out_;
};

}  // namespace

std::vector<KernelUse> KernelUses::not_measured() const {
  std::vector<KernelUse> out;
  std::copy_if(shapes.begin(), shapes.end(), std::back_inserter(out),
               [](const KernelUse& use) { return !use.measured; });
  const auto total = [](const KernelUse& use) { return static_cast<double>(use.count) * use.seconds; };
  std::stable_sort(out.begin(), out.end(), [&](const KernelUse& a, const KernelUse& b) { return total(a) > total(b); });
  return out;
}

KernelUses kernel_uses(const AnalyticCost& cost, const Schedule& schedule) {
  Counting counting(cost);
  for (const auto& [op, ops] : op_classes(cost, schedule)) {
    const auto [stage, kind, shape, slice] = op;
    const SliceShape size = slice_shape(schedule.shapes()[static_cast<std::size_t>(shape)], slice);
    counting.add(cost.parts(kind, stage, size), ops);
    // Activations are recomputed before the backward.
    if (kind == OpKind::B || kind == OpKind::I) counting.add(cost.recompute_parts(stage, size), ops);
  }
  return counting.result();
}

}  // namespace sluice::model
