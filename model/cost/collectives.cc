#include "model/cost/collectives.h"

#include <algorithm>
#include <cmath>

namespace sluice::model {

double Collectives::ring_bytes_per_s(const Reach& reach) const {
  const double inside = cluster_.intra_node.ring_bandwidth(reach.per_node);
  if (reach.nodes == 1) return inside;
  const Link& network = cluster_.inter_node;
  double outside = network.bandwidth_bytes_per_s * network.collective_efficiency *
                   std::pow(2.0 / reach.nodes, network.shared_exponent);
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

double Collectives::network_bytes_per_s() const {
  const Link& link = cluster_.inter_node;
  const double card = link.bandwidth_bytes_per_s * link.transfer_efficiency;
  return cluster_.nic_per_gpu ? card : card / placement_.used_per_node();
}

double Collectives::all_to_all_s(const Reach& reach, double bytes) const {
  const double share = bytes / reach.size;
  return exchange_s(reach, (reach.per_node - 1) * share, (reach.size - reach.per_node) * share);
}

double Collectives::exchange_s(const Reach& reach, double near, double far) const {
  if (reach.size <= 1) return 0;
  const Link& inside = cluster_.intra_node;
  const Link& link = reach.nodes == 1 ? inside : cluster_.inter_node;
  const double latency = link.collective_latency_s + (reach.size - 1) * link.collective_step_s;
  const double own = (near + far) / (reach.size - 1);
  const double copied = inside.exchange_copy_rate > 0 ? (near + own) / inside.exchange_copy_rate : 0;
  const double near_s = std::max(near / inside.exchange_efficiency, copied) / inside.bandwidth_bytes_per_s;
  return latency + std::max(near_s, reach.nodes == 1 ? 0 : far / network_bytes_per_s());
}

double Collectives::shift_s(const Reach& reach, double bytes) const {
  if (reach.size <= 1) return 0;
  const Link& inside = cluster_.intra_node;
  if (reach.nodes == 1) {
    return inside.latency_s + bytes / (inside.bandwidth_bytes_per_s * inside.transfer_efficiency);
  }
  return cluster_.inter_node.latency_s + bytes / network_bytes_per_s();
}

}  // namespace sluice::model
