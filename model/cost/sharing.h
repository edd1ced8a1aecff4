// Public header.
#pragma once

#include <span>
#include <vector>

#include "model/cluster/cluster.h"

namespace sluice::model {

class Placement;

// The pipeline ranks at the ends of a link lane. Equal ends: the data-parallel collectives of that rank.
struct LinkEnds {
  int from = 0;
  int to = 0;
};

// The use of a resource that several links share: a GPU's port or a node's network card, in one direction.
struct ResourceUse {
  int resource = 0;
  double share = 1;  // fraction of the resource's capacity that a transfer of the link uses at full speed, in (0, 1]
};

// The resources of a link. All replicas of a pipeline send concurrently, so a transfer of a link consists of that many
// equal flows; at its full, priced speed each moves `speed` of a resource's bandwidth.
struct SharedLink {
  Sharing policy = Sharing::none;
  double speed = 1;               // in (0, 1]
  double wire_fraction = 1;       // fraction of the time on its lane that a transfer is on the wire
  std::vector<ResourceUse> uses;  // empty: no contention
};

// The contention between links. `fair`: the flows of a resource have equal rates, except for those that are limited
// further by another resource or by their own full speed (max-min fairness). `queue`: a transfer has its resources
// exclusively, first come first served; collectives, which send in chunks, do not queue and share nothing.
struct LinkSharing {
  int num_resources = 0;
  std::vector<SharedLink> links;

  // No contention between any links: transfers take their priced time.
  bool empty() const { return num_resources == 0; }
};

// Returns the resources that `links` share in a cluster: within a node, each GPU's port in each direction; between
// nodes, each GPU's network card in each direction or, without nic_per_gpu, the node's. The kind of a link is that of
// its slowest replica, and only replicas of that kind load it. Resources that the same links use equally are merged,
// and those that cannot delay any transfer are omitted. A link whose own replicas alone would overload a resource (more
// of them arrive at a node than any node sends, which prices do not consider) uses all of it. `wire_fraction` is left
// at 1. The ring of a data-parallel collective, which all replicas of its rank run concurrently, takes the fraction of
// each of their ports or cards, in both directions, that its bandwidth is of a transfer's.
LinkSharing link_sharing(std::span<const LinkEnds> links, const Cluster& cluster, const Placement& placement);

}  // namespace sluice::model
