// Public header.
#pragma once

#include <deque>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/cost/op_classes.h"
#include "model/graph/op_graph.h"

namespace sluice::model {

// The parts within the ops and joint blocks of a graph, queried once per class of equal ones. Both arguments must
// outlive it.
class WovenBlocks {
 public:
  WovenBlocks(const OpGraph& graph, const CostModel& cost);

  // Returns the parts of a vertex; none unless it is an op, a joint block or a recomputation that communicates.
  const WovenBlock& of(VertexId v);

  // Dispatch and combine of all ops of one rank, in seconds.
  struct Communication {
    double seconds = 0;
    double exposed_s = 0;  // during which the rank does not compute
  };
  std::vector<Communication> by_rank();

 private:
  WovenBlock query(const Vertex& vertex) const;

  const OpGraph& graph_;
  const CostModel& cost_;
  OpClasses classes_;
  std::deque<WovenBlock> blocks_;  // which stay where they are
  ClassPairs<const WovenBlock*> known_;
};

}  // namespace sluice::model
