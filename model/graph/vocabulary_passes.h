#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/graph/links.h"

namespace sluice::model {

// What lowering does for schedules with vocabulary passes (Schedule::vocabulary_barriers). The rank of the last layers
// is the root: its last forward is sent to all ranks, which S needs; S sends to the root the statistics of the softmax
// and, with one barrier, the input gradient of its shard; the root returns the statistics of all shards, which T needs;
// with two barriers T sends the input gradient. The backward of the last stage needs the gradients of all shards. So a
// reduction takes as long as one transfer to the root: a ring or tree that is pipelined moves as many bytes per rank.
class VocabularyPasses {
 public:
  VocabularyPasses(const Schedule& schedule, const Links& links);

  // Appends what an S, a T, or the backward of the last stage needs; returns false where some of it is still missing.
  bool collect(const Op& op, int rank, std::vector<VertexId>& needs, int& num_needs) const;
  // Emits the transfers of the result of an S, a T, or the last forward, vertex `id`. Returns whether another rank may
  // wait for it.
  using Emit = std::function<VertexId(const Vertex& vertex, std::span<const VertexId> needs)>;
  bool hand_over(const Op& op, int rank, VertexId id, const Emit& emit);

  std::int64_t num_transfers() const { return std::int64_t{2 + barriers_} * (ranks_ - 1) * microbatches_; }

 private:
  // The vertices that pass a result of each microbatch between the root and every rank; of the root, its own op.
  using Passed = std::vector<VertexId>;
  std::size_t at(int microbatch, int rank) const;
  std::span<const VertexId> all(const Passed& passed, int microbatch) const;

  int ranks_;
  int root_;
  std::int16_t root_stage_;  // of its S
  int microbatches_;
  int barriers_;
  std::vector<LaneId> from_root_;  // by rank
  std::vector<LaneId> to_root_;
  std::vector<LaneId> result_lanes_;
  Passed inputs_;                      // of S
  Passed statistics_;                  // from S
  Passed results_;                     // of all S
  Passed gradients_;                   // from T, with two barriers
  std::vector<int> statistics_count_;  // by microbatch
  std::vector<int> gradients_count_;
};

}  // namespace sluice::model
