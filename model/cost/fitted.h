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
  std::int64_t most_on_a_rank = 0;
};

// Prices ops from measured times: the time of a stage is that of its layers, of the embedding and the head if it has
// them, and of the stage itself.
class FittedCost : public CostModel {
 public:
  // `rest`, if any, prices what the table does not contain; without it that takes no time. It prices transfers, unless
  // the table has exactly one link, which every transfer then crosses; the optimizer, unless the table has that pass
  // and there are `parameters`; and collectives, unless the table has all-reduces over that number of ranks (or the
  // next larger number, or the largest). Throws InputError if the table was measured with another tensor-parallel size,
  // lacks a part of some stage, or has several links and there is no `rest`.
  FittedCost(CostTable table, Training training, std::vector<StageContents> stages,
             std::unique_ptr<const CostModel> rest = nullptr, ParameterCounts parameters = {});

  // Throws InputError if `shape` has another number of sequences than the measurements, or the table lacks the kind.
  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  // Full: its measured time, otherwise another forward of the layers. Selective: none, since measurements include it.
  double recompute_s(int stage, const MicrobatchShape& shape, int slice) const override;
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;
  LinkSharing sharing(std::span<const LinkEnds> links) const override;
  double collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const override;
  double optimizer_s(int stage) const override;

  const CostTable& table() const { return table_; }

 private:
  double part_s(PartKind part, OpKind kind, const MicrobatchShape& shape, int slice) const;

  const SumTime* sum_over(int ranks) const;

  CostTable table_;
  Training training_;
  std::vector<StageContents> stages_;
  std::unique_ptr<const CostModel> rest_;
  ParameterCounts parameters_;
};

}  // namespace sluice::model
