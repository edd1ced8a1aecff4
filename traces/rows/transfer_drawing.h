#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

// Places the transfers of a graph as traces show them. A transfer shorter than 1 ns is drawn 1 ns long; transfers that
// would then overlap on a track are drawn one after another. Both ends of a transfer are drawn with the same length.
class TransferDrawing {
 public:
  TransferDrawing(const OpGraph& graph, const Timeline& timeline)
      : graph_(graph), timeline_(timeline), drawn_until_(2 * graph.lanes().size(), Duration::zero()) {}

  struct Drawn {
    Duration start{};    // at the sender
    Duration end{};      // at the sender
    Duration arrives{};  // start at the receiver, where it is as long
  };
  // To be called once per transfer, in the order of their ids.
  Drawn draw(VertexId transfer);

 private:
  const OpGraph& graph_;
  const Timeline& timeline_;
  std::vector<Duration> drawn_until_;  // by link, one for each of the two tracks that it may use between two ranks
};

}  // namespace sluice::traces
