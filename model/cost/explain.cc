#include "model/cost/explain.h"

#include <algorithm>
#include <array>

#include "model/schedule/op.h"

namespace sluice::model {
namespace {

Limit limit_of(const AnalyticCost& cost, const KernelCall& call) {
  if (is_collective(call.kind)) return Limit::link;
  const KernelTime time = cost.kernel_time(call);
  if (time.launch_s > std::max(time.compute_s, time.memory_s)) return Limit::launch;
  return time.compute_s > time.memory_s ? Limit::tensor_cores : Limit::memory;
}

ExplainedOp explained(const AnalyticCost& cost, std::string op, const std::vector<KernelPart>& parts) {
  ExplainedOp out;
  out.op = std::move(op);
  for (const KernelPart& part : parts) {
    double device = 0;
    for (const KernelCall& call : part.calls) {
      const double seconds = cost.kernel_s(call);
      const int count = call.count * part.repeats;
      out.kernels.push_back({.part = part.name,
                             .name = std::string(call.name),
                             .count = count,
                             .flops = call.flops * count,
                             .bytes = call.bytes * count,
                             .seconds = part.repeats * seconds,
                             .limit = limit_of(cost, call),
                             .measured = cost.measured_s(call).has_value()});
      device += seconds;
    }
    const double whole = cost.part_s(part);
    if (whole > device) {
      out.kernels.push_back({.part = part.name,
                             .name = "waiting for the host",
                             .count = cost.launches(part.calls) * part.repeats,
                             .seconds = part.repeats * (whole - device),
                             .limit = Limit::host});
    }
  }
  for (const ExplainedKernel& kernel : out.kernels) out.seconds += kernel.seconds;
  return out;
}

bool has_kind(const Schedule& schedule, int stage, OpKind kind) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Op& op : schedule.ops(rank)) {
      if (op.stage == stage && op.kind == kind) return true;
    }
  }
  return false;
}

}  // namespace

std::string_view name_of(Limit limit) {
  static constexpr std::array<std::string_view, 5> kNames = {"tensor cores", "memory", "launch", "host", "link"};
  return kNames[static_cast<std::size_t>(limit)];
}

std::vector<int> distinct_stages(const AnalyticCost& cost, int num_stages) {
  std::vector<int> out;
  for (int stage = 0; stage < num_stages; ++stage) {
    if (cost.alike(stage) == stage) out.push_back(stage);
  }
  return out;
}

std::vector<ExplainedOp> explain_stage(const AnalyticCost& cost, const Schedule& schedule, int stage,
                                       const MicrobatchShape& shape) {
  std::vector<ExplainedOp> out;
  for (int slice = 0; slice < shape.num_slices(); ++slice) {
    const SliceShape size = slice_shape(shape, slice);
    const auto add = [&](ExplainedOp op) {
      op.stage = stage;
      op.slice = slice;
      op.size = size;
      out.push_back(std::move(op));
    };
    for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W, OpKind::B, OpKind::S, OpKind::T}) {
      if (!has_kind(schedule, stage, kind)) continue;
      add(explained(cost, std::string(1, letter(kind)), cost.parts(kind, stage, size)));
    }
    const std::vector<KernelPart> again = cost.recompute_parts(stage, size);
    if (!again.empty()) add(explained(cost, "recompute", again));
  }
  return out;
}

}  // namespace sluice::model
