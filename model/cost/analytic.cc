#include "model/cost/analytic.h"

#include <algorithm>
#include <utility>

#include "model/cost/expert_kernels.h"

namespace sluice::model {
namespace {

AttentionWork attention_work(const KernelCall& call) {
  return {.flops = call.flops,
          .row_flops = call.row_flops,
          .head_size = call.head_size,
          .tile_size = call.tile_size,
          .backward = call.kind == KernelClass::attention_backward};
}

const Training& checked(const Transformer& model, const Training& training) {
  check_training(model, training);
  return training;
}

}  // namespace

AnalyticCost::AnalyticCost(Transformer model, Training training, std::vector<StageContents> stages, Cluster cluster,
                           Software software)
    : model_(std::move(model)),
      training_(checked(model_, training)),
      stages_(std::move(stages)),
      cluster_(std::move(cluster)),
      software_(std::move(software)),
      placement_(training_, cluster_),
      collectives_(cluster_, placement_) {
  for (auto stage = stages_.begin(); stage != stages_.end(); ++stage) {
    alike_.push_back(static_cast<int>(std::find(stages_.begin(), stage, *stage) - stages_.begin()));
  }
}

KernelTime AnalyticCost::kernel_time(const KernelCall& call) const {
  const Gpu& gpu = cluster_.gpu;
  switch (call.kind) {
    case KernelClass::gemm: {
      KernelTime time = gemm_time(gpu, call.gemm, call.bytes);
      time.compute_s /= software_.gemm_speed;
      return time;
    }
    case KernelClass::attention_forward:
    case KernelClass::attention_backward: return attention_time(gpu, attention_work(call), call.bytes);
    default: break;
  }
  return {.compute_s = 0,
          .memory_s = call.bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency),
          .launch_s = gpu.kernel_s};
}

double AnalyticCost::kernel_s(const KernelCall& call) const {
  double seconds = 0;
  switch (call.kind) {
    case KernelClass::all_reduce: seconds = collectives_.all_reduce_s(placement_.tensor_group(), call.bytes); break;
    case KernelClass::all_gather: seconds = collectives_.all_gather_s(placement_.tensor_group(), call.bytes); break;
    case KernelClass::expert_all_to_all:
      seconds = collectives_.all_to_all_s(placement_.expert_group(), call.bytes);
      break;
    case KernelClass::context_all_to_all:
      seconds = collectives_.all_to_all_s(placement_.context_group(), call.bytes);
      break;
    case KernelClass::context_ring: {
      KernelCall attention = call;
      attention.kind = call.overlapped_with;
      attention.flops = call.overlapped_flops;
      attention.bytes = call.overlapped_bytes;
      const double exchange = collectives_.shift_s(placement_.context_group(), call.bytes);
      seconds = std::max(0.0, exchange - kernel_time(attention).seconds());
      break;
    }
    default: seconds = kernel_time(call).seconds();
  }
  return seconds * call.count;
}

double AnalyticCost::host_s(int kernels) const { return kernels * software_.issue_s / cluster_.host_speed; }

double AnalyticCost::sum_s(const std::vector<KernelPart>& parts) const {
  double seconds = 0;
  for (const KernelPart& part : parts) {
    double device = 0;
    int issued = 0;
    for (const KernelCall& call : part.calls) {
      device += kernel_s(call);
      issued += call.count;
    }
    seconds += part.repeats * std::max(device, host_s(issued));
  }
  return seconds;
}

double AnalyticCost::compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  return sum_s(parts(kind, stage, slice_shape(shape, slice)));
}

double AnalyticCost::joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice,
                             OpKind backward, int backward_stage, const MicrobatchShape& backward_shape,
                             int backward_slice) const {
  const double apart = compute_s(OpKind::F, forward_stage, forward_shape, forward_slice) +
                       compute_s(backward, backward_stage, backward_shape, backward_slice);
  using Overlap = Training::JointOverlap;
  const bool all = training_.joint_overlap == Overlap::all;
  if (training_.joint_overlap == Overlap::none) return apart;
  if (training_.ep == 1 && !(all && (training_.tp > 1 || training_.cp > 1))) return apart;
  // Collectives of each half overlap with the other half's kernels, which they slow down.
  double device = 0;
  double exposed = 0;  // collectives that do not overlap
  double hidden = 0;
  const auto add = [&](OpKind kind, int stage, const SliceShape& size) {
    for (const KernelPart& part : parts(kind, stage, size)) {
      for (const KernelCall& call : part.calls) {
        const bool overlaps = all || call.kind == KernelClass::expert_all_to_all;
        (!is_collective(call.kind) ? device : overlaps ? hidden : exposed) += part.repeats * kernel_s(call);
      }
    }
  };
  add(OpKind::F, forward_stage, slice_shape(forward_shape, forward_slice));
  add(backward, backward_stage, slice_shape(backward_shape, backward_slice));
  const bool host_bound = apart > 1.0001 * (device + exposed + hidden);
  if (host_bound) return apart;
  return apart - std::min(hidden, device) * std::max(0.0, 2 - cluster_.gpu.overlap_slowdown);
}

double AnalyticCost::recompute_s(int stage, const MicrobatchShape& shape, int slice) const {
  return sum_s(recompute_parts(stage, slice_shape(shape, slice)));
}

TransferTime AnalyticCost::wire_time(int from, int to, std::int64_t bytes) const {
  const bool inside = placement_.pair(from, to).nodes == 1;
  const Link& link = inside ? cluster_.intra_node : cluster_.inter_node;
  double bandwidth = link.bandwidth_bytes_per_s * link.transfer_efficiency;
  if (!inside && !cluster_.nic_per_gpu) bandwidth /= placement_.senders_per_node(from, to);
  return {.occupied_s = static_cast<double>(bytes) / bandwidth, .latency_s = link.latency_s};
}

TransferTime AnalyticCost::transfer(int from, int to, std::int64_t bytes) const {
  if (from == to) return {};
  TransferTime time = wire_time(from, to, bytes);
  if (training_.tp > 1 && training_.scatter_gather && !training_.sequence_parallel) {
    const Reach group = placement_.tensor_group();
    const double latency = collectives_.all_gather_s(group, 0);
    time.latency_s += latency;
    time.occupied_s += collectives_.all_gather_s(group, static_cast<double>(bytes) * training_.tp) - latency;
  }
  return time;
}

LinkSharing AnalyticCost::sharing(std::span<const LinkEnds> links) const {
  LinkSharing out = link_sharing(links, cluster_, placement_);
  // Wire time and all-gather are both proportional to the bytes, so any number gives their ratio.
  constexpr std::int64_t kBytes = 1 << 30;
  for (std::size_t i = 0; i < out.links.size(); ++i) {
    const double occupied = transfer(links[i].from, links[i].to, kBytes).occupied_s;
    out.links[i].wire_fraction = wire_time(links[i].from, links[i].to, kBytes).occupied_s / occupied;
  }
  return out;
}

double AnalyticCost::collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const {
  const auto size = static_cast<double>(bytes);
  // Routed experts have fewer replicas than the rest of a stage.
  const auto over_replicas = [&](const auto& collective_of) {
    const double experts = expert_share(stage);
    double seconds = 0;
    if (experts < 1) seconds += collective_of(placement_.data_group(), (1 - experts) * size);
    if (experts > 0) seconds += collective_of(placement_.expert_data_group(), experts * size);
    return seconds;
  };
  switch (kind) {
    case CollectiveKind::gradient_reduce:
      return over_replicas([&](const Reach& group, double share) {
        return training_.distributed_optimizer ? collectives_.reduce_scatter_s(group, share)
                                               : collectives_.all_reduce_s(group, share);
      });
    case CollectiveKind::parameter_gather:
      return over_replicas([&](const Reach& group, double share) { return collectives_.all_gather_s(group, share); });
    case CollectiveKind::replica_reduce:
    case CollectiveKind::tied_embedding:
      if (training_.pp == 1) return 0;
      return collectives_.all_reduce_s(placement_.pair(0, training_.pp - 1), size);
    case CollectiveKind::global_norm: return collectives_.all_reduce_s(placement_.world_group(), size);
  }
  return 0;
}

double AnalyticCost::expert_share(int stage) const {
  const StageContents& held = contents(stage);
  if (held.expert_layers == 0) return 0;
  return static_cast<double>(stage_expert_parameters_per_device(model_, held, training_.ep)) /
         static_cast<double>(stage_parameters_per_device(model_, training_.tp, held, training_.ep));
}

double AnalyticCost::optimizer_s(int stage) const {
  const auto count =
      static_cast<double>(stage_parameters_per_device(model_, training_.tp, contents(stage), training_.ep));
  const double experts = expert_share(stage) * count;
  const double sharded = (count - experts) / training_.data_ranks() + experts / training_.expert_data_ranks();
  const double mine = training_.distributed_optimizer ? sharded : count;
  // Adam reads and writes 12 bytes of state per parameter, reads the gradient and writes the 16-bit weight. Before that
  // the norm reads all gradients, and after it they are zeroed.
  const double bytes = mine * (24 + training_.gradient_bytes + 2) + 2.0 * training_.gradient_bytes * count;
  const Gpu& gpu = cluster_.gpu;
  constexpr int kKernels = 3;
  const double chunks = static_cast<double>(stages_.size()) / training_.pp;  // per rank
  return software_.step_s / chunks + bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency) +
         kKernels * std::max(gpu.kernel_s, host_s(1));
}

std::vector<KernelPart> AnalyticCost::parts(OpKind kind, int stage, const SliceShape& slice) const {
  const StageContents& held = contents(stage);
  std::vector<KernelPart> out;
  if (held.embedding) out.push_back({"embedding", 1, embedding_kernels(model_, training_, kind, slice)});
  for (const auto& [layer, count] : held.by_kind()) {
    if (count > 0) out.push_back({name_of(layer), count, layer_kernels(model_, training_, kind, slice, layer)});
  }
  if (held.head) out.push_back({"head", 1, head_kernels(model_, training_, kind, slice)});
  return out;
}

std::vector<KernelPart> AnalyticCost::recompute_parts(int stage, const SliceShape& slice) const {
  const bool full = training_.recompute == Training::Recompute::full;
  const bool selective = training_.recompute == Training::Recompute::selective && !training_.flash_attention;
  std::vector<KernelPart> out;
  const StageContents again = full ? recomputed_layers(training_, contents(stage)) : contents(stage);
  for (const auto& [layer, count] : again.by_kind()) {
    if (count == 0 || !(full || selective)) continue;
    out.push_back({name_of(layer), count,
                   full ? layer_kernels(model_, training_, OpKind::F, slice, layer)
                        : attention_kernels(model_, training_, OpKind::F, slice)});
  }
  return out;
}

}  // namespace sluice::model
