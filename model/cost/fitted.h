#pragma once

#include <memory>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/cost/cost_table.h"
#include "model/workload/training.h"

namespace sluice::model {

// How many parameters passes go over, on one device.
struct ParameterCounts {
  std::vector<std::int64_t> of_stage;
  std::int64_t most_on_a_rank = 0;
};

// Prices ops from measured times: a stage takes layers x a layer, the embedding and the head where it has them, and
// what there is around them.
class FittedCost : public CostModel {
 public:
  // `rest`, if any, prices what the table does not hold, without it they take no time: transfers unless the table has
  // exactly one link, which then every hop crosses; the optimizer unless it has that pass and there are `parameters`;
  // collectives unless it has sums over that many ranks (else the next larger number that it has, or the largest).
  // Throws InputError if the table was measured with another tensor-parallel size, lacks a part that a stage holds,
  // or has several links and no `rest`.
  FittedCost(CostTable table, Training training, std::vector<StageContents> stages,
             std::unique_ptr<const CostModel> rest = nullptr, ParameterCounts parameters = {});

  // Throws InputError if `shape` has another number of sequences than was measured, or the kind is not in the table.
  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  // Full: what was measured of it, else another forward of the layers. Selective: none, what was measured holds.
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
