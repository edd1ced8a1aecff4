#pragma once

#include <string_view>
#include <vector>

#include "model/cluster/placement.h"
#include "model/cost/collectives.h"
#include "model/cost/cost_model.h"
#include "model/cost/stage_kernels.h"

namespace sluice::model {

// A part of a stage, and how often it is there: "embedding", "layer", "head".
struct KernelPart {
  std::string_view name;
  int repeats = 1;
  std::vector<KernelCall> calls;
};

// Prices a transformer on a cluster from its kernels and the catalogue's constants; nothing is measured.
//   GEMM            gemm_time: tiles on multiprocessors, or bytes / memory bandwidth, and a launch
//   attention       attention_time: FLOPs at its own efficiency, or bytes, and kernel_s
//   memory-bound    bytes / memory bandwidth, and kernel_s
// An op is never shorter than its kernels take the host to issue. Tensor-parallel collectives
// are part of an op and do not overlap with its kernels. See Collectives for rings, StageContents for what an op holds.
// A transfer is latency and bytes over the bandwidth of the worst link that a replica crosses, and with scatter/gather
// an all-gather of the received shares, which holds up the next transfer. GPUs of a node that share a network card and
// send at once share its bandwidth.
class AnalyticCost : public CostModel {
 public:
  // Throws InputError if training and model do not fit (check_training), or the cluster is too small (Placement).
  AnalyticCost(Transformer model, Training training, std::vector<StageContents> stages, Cluster cluster,
               Software software);

  // Shapes are in tokens.
  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                 int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override;
  // Full: another forward of the layers, their collectives included. Selective without flash attention: the attention
  // core.
  double recompute_s(int stage, const MicrobatchShape& shape, int slice) const override;
  // The first stage of the same contents.
  int alike(int stage) const override { return alike_[stage]; }
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;
  // As the cluster file says. The all-gather after a transfer occupies its lane, but nothing that is shared.
  LinkSharing sharing(std::span<const LinkEnds> links) const override;
  double collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const override;
  // Reads and writes of the master weights, moments and weights, and a read of the gradients.
  double optimizer_s(int stage) const override;

  // The tables behind compute_s and recompute_s, for explanations. An op takes the sum of its parts; a part takes as
  // often as it repeats the longer of its kernels' kernel_s and the host's time to issue them.
  std::vector<KernelPart> parts(OpKind kind, int stage, const SliceSize& slice) const;
  std::vector<KernelPart> recompute_parts(int stage, const SliceSize& slice) const;
  // One call of a table, all `count` of it.
  double kernel_s(const KernelCall& call) const;
  // One kernel of a call that is no collective.
  KernelTime kernel_time(const KernelCall& call) const;
  // The host's time to issue so many kernels.
  double host_s(int kernels) const;

  const StageContents& contents(int stage) const { return stages_[stage]; }
  const Cluster& cluster() const { return cluster_; }
  const Placement& placement() const { return placement_; }

 private:
  // Of a transfer, without the all-gather that may follow it.
  TransferTime wire_time(int from, int to, std::int64_t bytes) const;
  double sum_s(const std::vector<KernelPart>& parts) const;
  // Of a stage's parameters on one device, the fraction that are routed experts'.
  double expert_share(int stage) const;

  Transformer model_;
  Training training_;
  std::vector<StageContents> stages_;
  std::vector<int> alike_;
  Cluster cluster_;
  Software software_;
  Placement placement_;
  Collectives collectives_;
};

}  // namespace sluice::model
