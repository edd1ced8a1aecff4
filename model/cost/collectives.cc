#include "model/cost/collectives.h"

#include <algorithm>

namespace sluice {

double Collectives::ring_bytes_per_s(const Reach& reach) const {
  const double inside = cluster_.intra_node.bandwidth_bytes_per_s * cluster_.intra_node.collective_efficiency;
  if (reach.nodes == 1) return inside;
  double outside = cluster_.inter_node.bandwidth_bytes_per_s * cluster_.inter_node.collective_efficiency;
  if (!cluster_.nic_per_gpu) outside /= placement_.used_per_node();
  outside *= reach.per_node;
  return reach.per_node > 1 ? std::min(inside, outside) : outside;
}

double Collectives::ring_s(const Reach& reach, double bytes, int passes) const {
  if (reach.size <= 1) return 0;
  const Link& link = reach.nodes == 1 ? cluster_.intra_node : cluster_.inter_node;
  const double steps = static_cast<double>(passes) * (reach.size - 1);
  return link.collective_latency_s + steps * link.collective_step_s +
         steps / reach.size * bytes / ring_bytes_per_s(reach);
}

}  // namespace sluice
