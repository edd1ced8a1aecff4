#pragma once

#include <cstdint>
#include <vector>

#include "model/blocks/stage.h"
#include "model/cost/cost_table.h"
#include "model/graph/footprint.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// Returns whether the executor's memory in a cost file holds for a training: none of its layers has experts, optimizer
// states are not sharded, and layers are recomputed as a whole or not at all.
bool has_run_memory(const CostTable& table, const Model& model, const Training& training);

// The bytes of stages as the executor laid them out when it measured the times of a cost file, for other stages and
// slices of the same model.
class RunFootprint : public Footprint {
 public:
  // Precondition: has_run_memory.
  RunFootprint(RunMemory memory, const Model& model, const Training& training, const std::vector<StageContents>& stages,
               const Schedule& schedule);

  StageBytes stage(int stage) const override { return stages_[static_cast<std::size_t>(stage)].bytes; }
  SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const override;
  std::int64_t tied_embedding_bytes() const override { return tied_embedding_bytes_; }

 private:
  struct StageParts {
    StageContents contents;
    StageBytes bytes;
  };
  // Bytes of a field of a slice of `tokens` tokens.
  std::int64_t of_stage(const StageContents& contents, PartMemory::Field field, std::int64_t tokens) const;
  std::int64_t of_part(PartKind part, PartMemory::Field field, std::int64_t tokens) const;
  std::int64_t scratch(const StageContents& contents, const Schedule& schedule, int num_buffers) const;

  RunMemory memory_;  // with the parts that apply only
  std::vector<StageParts> stages_;
  std::int64_t tied_embedding_bytes_ = 0;
};

}  // namespace sluice::model
