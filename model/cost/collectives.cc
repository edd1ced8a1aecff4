#include "model/cost/collectives.h"

#include <algorithm>
#include <cmath>

namespace sluice {

double Collectives::ring_bytes_per_s(const Reach& reach) const {
  const double inside = cluster_.intra_node.ring_bandwidth(reach.per_node);
  if (reach.nodes == 1) return inside;
  double outside = cluster_.inter_node.bandwidth_bytes_per_s * cluster_.inter_node.collective_efficiency;
  if (!cluster_.nic_per_gpu) outside /= placement_.used_per_node();
  outside *= reach.per_node;
  return reach.per_node > 1 ? std::min(inside, outside) : outside;
}

double Collectives::ring_s(const Reach& reach, double bytes, int passes) const {
  if (reach.size <= 1) return 0;
  const Link& inside = cluster_.intra_node;
  const Link& link = reach.nodes == 1 ? inside : cluster_.inter_node;
  const double steps = static_cast<double>(passes) * (reach.size - 1);
  double latency = steps * link.collective_step_s;
  if (passes == 2 && reach.nodes > 1) {
    const double levels = std::ceil(std::log2(reach.nodes));
    latency =
        std::min(latency, 2 * (levels * link.collective_step_s + (reach.per_node - 1) * inside.collective_step_s));
  }
  return link.collective_latency_s + latency + steps / reach.size * bytes / ring_bytes_per_s(reach);
}

}  // namespace sluice
