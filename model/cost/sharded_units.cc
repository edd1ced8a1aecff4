#include "model/cost/sharded_units.h"

#include <algorithm>

namespace sluice::model {

ShardingTime sharding_time(std::span<const ShardedUnit> units, double slowdown) {
  ShardingTime out;
  if (units.empty()) return out;
  double end = 0;                            // of compute
  double gathered = units.front().gather_s;  // parameters of the next unit
  double stream = gathered;                  // end of the last collective
  for (std::size_t i = 0; i < units.size(); ++i) {
    const double start = std::max(end, gathered);
    out.gather_s += start - end;
    gathered = 0;
    if (i + 1 < units.size() && units[i + 1].gather_s > 0) {
      gathered = stream = std::max(stream, start) + units[i + 1].gather_s;
    }
    // Collectives occupy the stream from `start` without a pause.
    const double beside = std::min(std::max(0.0, stream - start), units[i].compute_s * slowdown);
    const double slower = beside * (1 - 1 / slowdown);
    out.slowdown_s += slower;
    end = start + units[i].compute_s + slower;
    if (units[i].reduce_s > 0) stream = std::max(stream, end) + units[i].reduce_s;
  }
  out.reduce_s = std::max(0.0, stream - end);
  return out;
}

}  // namespace sluice::model
