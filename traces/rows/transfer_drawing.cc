#include "traces/rows/transfer_drawing.h"

#include <algorithm>

namespace sluice::traces {

TransferDrawing::Drawn TransferDrawing::draw(VertexId transfer) {
  const Vertex& op = graph_[transfer];
  const auto lane = static_cast<std::size_t>(op.lane);
  // Between two ranks a link serves two tracks at each end, one per direction.
  const bool gradient_track = graph_.schedule().num_ranks() == 2 && op.op != OpKind::F;
  Duration& drawn_until = drawn_until_[2 * lane + (gradient_track ? 1 : 0)];
  const Duration start = std::max(timeline_.start[transfer], drawn_until);
  drawn_until = std::max(timeline_.end[transfer], start + Duration{1});
  return {start, drawn_until, start + timeline_.lane_latency[lane]};
}

}  // namespace sluice::traces
