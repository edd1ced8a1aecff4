#include "sim/engine/prediction.h"

#include <algorithm>

#include "model/to_size.h"

namespace sluice::sim {

std::size_t path_length(const Prediction& prediction) {
  const std::size_t once = prediction.critical_path.vertices.size();
  if (!prediction.repetition) return once;
  const RepeatedPart& of = *prediction.repetition;
  return once + (of.path_end - of.path_begin) * to_size(of.times);
}

PathStep path_step(const Prediction& prediction, std::size_t index) {
  const std::vector<VertexId>& path = prediction.critical_path.vertices;
  if (!prediction.repetition || index < prediction.repetition->path_end) return {.vertex = path[index]};
  const RepeatedPart& of = *prediction.repetition;
  const std::size_t part = of.path_end - of.path_begin;
  const auto later = static_cast<int>(std::min((index - of.path_end) / part + 1, to_size(of.times)));
  return {
      .vertex = path[index - part * to_size(later)], .later = later * of.time, .microbatches = later * of.microbatches};
}

int times_on_path(const Prediction& prediction, std::size_t index) {
  const auto& of = prediction.repetition;
  return of && index >= of->path_begin && index < of->path_end ? of->times + 1 : 1;
}

int later_microbatch(const Schedule& simulated, int num_microbatches, int microbatch, int later) {
  const auto& route_of = simulated.parts().route_of;
  if (!std::is_sorted(route_of.begin(), route_of.end())) return microbatch + later;
  // The microbatches of each route follow those of the one before.
  const int left_out = num_microbatches - simulated.num_microbatches();
  return microbatch + (simulated.route(microbatch) * left_out + later) / simulated.num_routes();
}

}  // namespace sluice::sim
