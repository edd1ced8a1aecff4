#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "model/blocks/stage.h"
#include "model/blocks/stage_kernels.h"
#include "model/cluster/placement.h"
#include "model/cost/collectives.h"
#include "model/cost/contention.h"
#include "model/cost/cost_model.h"
#include "model/cost/kept_prices.h"
#include "model/cost/kernel_times.h"
#include "model/cost/sharded_units.h"
#include "model/weave/weave.h"

namespace sluice::model {

// A part of a stage and the number of times it occurs.
struct KernelPart {
  enum class Kind : std::uint8_t { embedding, layer, mtp_layer, head, sharding };
  Kind kind = Kind::layer;
  int repeats = 1;
  std::vector<KernelCall> calls;
  int layer = 0;          // of a layer: the index of its kind in the model
  std::string name = {};  // "embedding", "layer" or the name of another kind, "MTP layer", "head", "sharding"

  bool is_layer() const { return kind == Kind::layer || kind == Kind::mtp_layer; }
};

// Predicts the times of a transformer on a cluster from its kernels and the catalogue's constants. Kernels with a
// measured time take that time instead.
//   GEMM            gemm_time: tiles on multiprocessors, or bytes / memory bandwidth, and a launch
//   attention       attention_time: FLOPs at its own efficiency, or bytes, and kernel_s
//   memory-bound    bytes / memory bandwidth, and kernel_s
// An op takes at least as long as the host needs to launch its kernels. Tensor-parallel collectives are part of an op
// and do not overlap with its kernels. See Collectives for collectives, StageContents for the contents of an op. A
// transfer takes the latency, and its bytes over the bandwidth of the slowest link that a replica crosses; with
// scatter/gather also an all-gather of the received shards, which delays the next transfer. GPUs of a node that share a
// network card and send concurrently share its bandwidth. Where parameters or gradients are sharded and an op gathers
// or reduces them (Training::gathers_per_op, reduces_per_op), it takes longer by what sharding_time returns.
class AnalyticCost : public CostModel {
 public:
  // Throws InputError if training and model do not fit (check_training), the cluster is too small (Placement), or its
  // GPUs lack the training's precision. `measured` times must be of the cluster's GPU.
  AnalyticCost(Model model, const Training& training, std::vector<StageContents> stages, Cluster cluster,
               Software software, KernelTimes measured = {});

  // Takes times from those of other configurations of the same model, cluster, software and measured times, and adds
  // to them.
  void keep_in(PriceStore& store);

  // Shapes are in tokens.
  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                 int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override;
  // The parts of an op, or of a joint block, on the compute and communication lanes of its rank: an op without a
  // partner runs them one after another. Times are from its start. In a joint block the kernels of the compute lane are
  // slower while the other lane runs (contention_of).
  WovenBlock woven_op(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  WovenBlock woven_recompute(int stage, const MicrobatchShape& shape, int slice) const override;
  WovenBlock woven_joint(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                         int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override;
  // Full: another forward of the layers, including its collectives. Selective without flash attention: the attention
  // core.
  double recompute_s(int stage, const MicrobatchShape& shape, int slice) const override;
  // The first stage with the same contents.
  int alike(int stage) const override { return alike_[stage]; }
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;
  double host_copy_s(int /*stage*/, const MicrobatchShape& /*shape*/, int /*slice*/,
                     std::int64_t bytes) const override {
    return static_cast<double>(bytes) / cluster_.host_link_bytes_per_s;
  }
  // As specified by the cluster file. The all-gather after a transfer occupies its lane, but no shared resource.
  LinkSharing sharing(std::span<const LinkEnds> links) const override;
  double collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const override;
  // Reads and writes the master weights, Adam moments and weights, and reads the gradients.
  double optimizer_s(int stage) const override;

  // The kernel tables behind compute_s and recompute_s, for explanations. An op takes the sum of its parts; each
  // repetition of a part takes part_s.
  std::vector<KernelPart> parts(OpKind kind, int stage, const SliceShape& slice) const;
  std::vector<KernelPart> recompute_parts(int stage, const SliceShape& slice) const;
  // The longer of the device's time for the kernels of a part and the host's to launch them. Where the host reads the
  // numbers of rows that dispatch has counted, it has launched nothing that follows: from one dispatch, or its end, to
  // that of the next layer, every kernel also waits for its own launch.
  double part_s(const KernelPart& part) const;
  // Time of one call of a table, for all of its `count` kernels.
  double kernel_s(const KernelCall& call) const;
  // Time of one kernel of a call that is not a collective.
  KernelTime kernel_time(const KernelCall& call) const;
  // The measured time of one kernel of a call. Attention backward is measured with its row sums, which are therefore 0.
  std::optional<double> measured_s(const KernelCall& call) const;
  // Number of times that the host launches kernels for this part of a stage. The kernels of a CUDA graph count once.
  int launches(const std::vector<KernelCall>& calls) const;
  // The host's time to launch a call.
  double issue_s(const KernelCall& call) const;
  double launch_s() const { return software_.issue_s / cluster_.host_speed; }
  double with_offload_s(double on_gpu, double offloaded, int adam) const;

  const StageContents& contents(int stage) const { return stages_[stage]; }
  const Training& training() const { return training_; }
  const Cluster& cluster() const { return cluster_; }
  const Placement& placement() const { return placement_; }

 private:
  // Whether some of these kernels are a graph of their own, which one launch replays.
  bool replays_graph(const std::vector<KernelCall>& calls) const;
  // A transfer, without the all-gather that may follow it.
  TransferTime wire_time(int from, int to, std::int64_t bytes) const;
  KernelTime predicted_time(const KernelCall& call) const;
  double sum_s(const std::vector<KernelPart>& parts) const;
  // Adds the collectives of sharded parameters and gradients to the parts of an op that has them, and the copies
  // before and after them.
  void add_sharding(OpKind kind, int stage, const SliceShape& slice, std::vector<KernelPart>& parts) const;
  void add_encoder(OpKind kind, const StageContents& held, const SliceShape& slice,
                   std::vector<KernelPart>& parts) const;
  ShardedUnit sharded_unit(const StageContents& unit, bool gathers, bool reduces) const;
  double gather_s(const StageContents& held, double bytes) const;
  // The bytes that a rank sends to others of its node and to other nodes.
  struct SentBytes {
    double near = 0;
    double far = 0;
  };
  SentBytes dispatched(double bytes) const;
  double dispatch_s(const KernelCall& call) const;
  // The kernels of an op by pass: F, I or W.
  using PassKernels = std::vector<std::pair<OpKind, std::vector<KernelPart>>>;
  PassKernels pass_kernels(OpKind kind, int stage, const SliceShape& slice) const;
  // Of the dispatch and combine of both ops of a block, on average: the multiprocessors that they occupy, unless these
  // are 0, which switches contention off, and the memory bandwidth. Each byte that crosses a link is read from memory
  // and written to it; buffers between are reused soon and stay in the cache. The copies in order of HybridEP count
  // too. Memory serves both lanes fairly: dispatch and combine have at most half of its bandwidth, and below that are
  // not slowed.
  Contention contention_of(const PassKernels& forward, const PassKernels& backward) const;
  // The layers of an op in the order in which it runs them, and the time of its other kernels before and after them.
  struct LayersOfOp {
    std::vector<LayerTimes> layers;  // on the device
    std::vector<double> wait_s;      // of the device for the host, of each on its own
    double before_s = 0;
    double after_s = 0;
  };
  // With the delays of its kernels.
  LayersOfOp layers_of(const PassKernels& kernels, const Contention& contention = {}) const;
  // The same, where every layer takes at least the host's time: the rest of it is added to its attention.
  LayersOfOp layers_with_waits(const PassKernels& kernels) const;
  // Adds what the host needs for each part of an overlapped block, unless one graph has the whole iteration.
  void add_part_calls(OpKind pass, std::vector<LayerTimes>& layers) const;
  double reduce_s(const StageContents& held, double bytes) const;
  // When the host reads what this kernel counts: the rows of each expert, of dispatch in a forward.
  LayerTimes::Counts counts_of(const KernelCall& call) const;
  std::vector<KernelPart> parts_of(OpKind kind, int stage, const SliceShape& slice, bool layers) const;
  Kernels recomputed_kernels(const SliceShape& slice, int layer) const;
  // Time of one layer of a kind in F, I, W or B, or of its recomputation.
  double layer_s(OpKind kind, bool again, int layer, const SliceShape& slice) const;
  double computed_layer_s(OpKind kind, bool again, int layer, const SliceShape& slice) const;
  double layers_s(OpKind kind, bool again, const StageContents& held, const SliceShape& slice) const;
  double computed_s(OpKind kind, int stage, const SliceShape& slice) const;
  double computed_recompute_s(int stage, const SliceShape& slice) const;
  double computed_joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                          int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const;
  // Stages of a model of several kinds of layers differ, but have the same layers, whose times are added.
  bool adds_layers() const { return !model_.flat && kept_ != nullptr; }
  // The fraction of routed experts in the parameters on one device.
  double expert_share(const StageContents& held) const;

  Model model_;
  Training training_;
  std::vector<StageContents> stages_;
  std::vector<int> alike_;
  std::vector<StageContents> priced_;  // of the stages, in an order of layers that those with equal times share
  Cluster cluster_;
  Software software_;
  KernelTimes measured_;
  Placement placement_;
  Collectives collectives_;
  Weave weave_;
  double ranks_of_token_ = 1;  // of its expert group, that a token is sent to; expected
  double nodes_of_token_ = 1;
  // Of ops and of recomputations; null where ops gather or reduce.
  std::shared_ptr<KeptPrices> kept_;
  std::shared_ptr<KeptPrices> kept_again_;
};

}  // namespace sluice::model
