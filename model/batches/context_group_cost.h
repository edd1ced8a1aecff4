#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/batches/context_groups.h"
#include "model/cost/cost_model.h"

namespace sluice::model {

// Prices microbatches that are groups of documents, each on a number of ranks of its own (dynamic context parallelism).
// An op of a group takes as long as on the rank that needs the longest for its documents, one after another; all else
// is as without context parallelism.
class ContextGroupCost : public CostModel {
 public:
  // `costs` on 1, 2, 4, ... ranks per document, up to all `ranks`.
  ContextGroupCost(std::vector<std::unique_ptr<const CostModel>> costs, std::vector<ContextGroup> groups, int ranks);

  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  double recompute_s(int stage, const MicrobatchShape& shape, int slice) const override;
  int alike(int stage) const override { return costs_.front()->alike(stage); }
  TransferTime transfer(int from, int to, std::int64_t bytes) const override {
    return costs_.front()->transfer(from, to, bytes);
  }
  LinkSharing sharing(std::span<const LinkEnds> links) const override { return costs_.front()->sharing(links); }
  double collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const override {
    return costs_.front()->collective_s(kind, stage, bytes);
  }
  double optimizer_s(int stage) const override { return costs_.front()->optimizer_s(stage); }

 private:
  using Price = std::function<double(const CostModel& cost, const MicrobatchShape& shape)>;
  double longest(const MicrobatchShape& shape, const Price& price) const;

  std::vector<std::unique_ptr<const CostModel>> costs_;
  std::vector<ContextGroup> groups_;
  int ranks_;
};

}  // namespace sluice::model
