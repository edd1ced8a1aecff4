// Public header.
#pragma once

#include <span>
#include <vector>

#include "model/cluster/cluster.h"

namespace sluice::model {

class Placement;

// The two pipeline ranks of a link lane.
struct LinkEnds {
  int from = 0;
  int to = 0;
};

// A resource is what several links go through: a GPU's port or a node's card, in one direction.
struct ResourceUse {
  int resource = 0;
  double share = 1;  // of the resource's capacity that a transfer of the link takes at full speed, in (0, 1]
};

// What a link shares. All replicas of a pipeline send at once, so a transfer of a link is as many equal flows; at its
// full, priced speed each moves `speed` of what one resource carries.
struct SharedLink {
  Sharing policy = Sharing::none;
  double speed = 1;               // in (0, 1]
  double wire_fraction = 1;       // of the time that a transfer occupies its lane; the rest is not on the wire
  std::vector<ResourceUse> uses;  // empty: nobody is ever in its way
};

// Which links get in each other's way. `fair`: the flows of a resource move bytes at the same pace, but for those that
// another resource or their own full speed holds back further (max-min). `queue`: a transfer has its resources for
// itself, first come first served.
struct LinkSharing {
  int num_resources = 0;
  std::vector<SharedLink> links;

  // No two links are ever in each other's way: transfers take what they are priced at.
  bool empty() const { return num_resources == 0; }
};

// What `links` share in a cluster: inside a node, each GPU's port in each direction; between nodes, each GPU's card in
// each direction or, without nic_per_gpu, the node's. A link has the kind that its slowest replica crosses, and only
// replicas that cross that kind load it. Resources that the same links use alike are one, and those that cannot hold
// up anyone are left out. A link whose own replicas alone would overload a resource (more of them arrive at a node
// than any node sends, which prices do not count) takes all of it. `wire_fraction` is left at 1.
LinkSharing link_sharing(std::span<const LinkEnds> links, const Cluster& cluster, const Placement& placement);

}  // namespace sluice::model
