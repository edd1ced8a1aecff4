#pragma once

#include <memory>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/cost/cost_table.h"
#include "model/workload/training.h"

namespace sluice::model {

// Numbers of parameters that passes go over, on one device.
struct ParameterCounts {
  std::vector<std::int64_t> of_stage;
  std::vector<std::int64_t> experts_of_stage;  // those of them of routed experts; empty: none
  std::int64_t most_on_a_rank = 0;
};

// Prices ops from measured times: the time of a stage is that of its layers, of the embedding and the head if it has
// them, and of the stage itself. A layer with experts takes the sum of its parts; in joint blocks with expert
// parallelism and without recomputation the parts of both ops interleave by the weave of the training, unless its
// joint_overlap is `none`, at full speed of both lanes.
class FittedCost : public CostModel {
 public:
  // `rest`, if any, prices what the table does not contain; without it that takes no time. It prices transfers, unless
  // the table has exactly one link, which every transfer then crosses; the optimizer, unless the table has that pass
  // and there are `parameters`; and collectives, unless the table has all-reduces over that number of ranks (or the
  // next larger number, or the largest). Throws InputError if the table was measured with another tensor-parallel size,
  // lacks a part of some stage, or has several links and there is no `rest`.
  FittedCost(CostTable table, Training training, std::vector<StageContents> stages,
             std::unique_ptr<const CostModel> rest = nullptr, ParameterCounts parameters = {});

  double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                 int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override;
  WovenBlock woven_op(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  WovenBlock woven_joint(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                         int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override;
  // Throws InputError if `shape` has another number of sequences than the measurements, or the table lacks the kind.
  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  // Full: its measured time, otherwise another forward of the layers, as of those with experts. Selective: none, since
  // measurements include it.
  double recompute_s(int stage, const MicrobatchShape& shape, int slice) const override;
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;
  LinkSharing sharing(std::span<const LinkEnds> links) const override;
  double collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const override;
  double optimizer_s(int stage) const override;
  double host_copy_s(int stage, const MicrobatchShape& shape, int slice, std::int64_t bytes) const override {
    return rest_->host_copy_s(stage, shape, slice, bytes);
  }

  const CostTable& table() const { return table_; }

 private:
  double part_s(PartKind part, OpKind kind, const MicrobatchShape& shape, int slice) const;

  // The times of one layer of an op, by pass: all of a dense layer is its attention.
  LayerTimes layer_times(LayerKind layer, OpKind kind, const MicrobatchShape& shape, int slice) const;
  // The layers of an op in the order in which it runs them, and the time of its other parts before and after them.
  struct LayersOfOp {
    std::vector<LayerTimes> layers;
    double before_s = 0;
    double after_s = 0;
  };
  LayersOfOp layers_of(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const;
  bool has_experts(int stage) const { return stages_[static_cast<std::size_t>(stage)].expert_layers > 0; }
  bool weaves(int forward_stage, int backward_stage) const;
  void check_parts() const;

  const SumTime* sum_over(int ranks) const;
  double all_reduce_s(int ranks, double bytes) const;  // precondition: the table has all-reduces
  double reduce_s(int stage, double bytes) const;

  CostTable table_;
  Training training_;
  std::vector<StageContents> stages_;
  std::unique_ptr<const CostModel> rest_;
  ParameterCounts parameters_;
  Weave weave_;  // without parts: the fastest of each block
};

}  // namespace sluice::model
