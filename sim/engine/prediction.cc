#include "sim/engine/prediction.h"

#include <algorithm>

#include "model/to_size.h"

namespace sluice::sim {

std::size_t path_length(const Prediction& prediction) {
  if (!prediction.repetition) return prediction.critical_path.vertices.size();
  std::size_t length = 0;
  for (const PathPiece& piece : prediction.repetition->path) length += (piece.end - piece.begin) * to_size(piece.times);
  return length;
}

PathStep path_step(const Prediction& prediction, std::size_t index) {
  const std::vector<VertexId>& path = prediction.critical_path.vertices;
  if (!prediction.repetition) return {.vertex = path[index]};
  for (const PathPiece& piece : prediction.repetition->path) {
    const std::size_t size = piece.end - piece.begin;
    if (index < size * to_size(piece.times)) {
      const auto time = static_cast<int>(index / size);
      return {.vertex = path[piece.begin + index % size],
              .later = piece.later + time * piece.more,
              .microbatches = piece.microbatches + time * piece.more_microbatches};
    }
    index -= size * to_size(piece.times);
  }
  return {};
}

int times_on_path(const Prediction& prediction, std::size_t index) {
  if (!prediction.repetition) return 1;
  int times = 0;
  for (const PathPiece& piece : prediction.repetition->path) {
    if (index >= piece.begin && index < piece.end) times += piece.times;
  }
  return times;
}

int later_microbatch(const Schedule& simulated, int num_microbatches, int microbatch, int later) {
  const auto& route_of = simulated.parts().route_of;
  if (!std::is_sorted(route_of.begin(), route_of.end())) return microbatch + later;
  // The microbatches of each route follow those of the one before.
  const int left_out = num_microbatches - simulated.num_microbatches();
  return microbatch + (simulated.route(microbatch) * left_out + later) / simulated.num_routes();
}

}  // namespace sluice::sim
