#pragma once

#include <cstddef>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/transport/device_transport.h"

namespace sluice::exec {

// Who must reach whom in a run on devices: an edge for each lane of the graph between two ranks, of each replica and
// tensor share; and the groups that sum.
class RunLinks {
 public:
  explicit RunLinks(const RunPlan& plan);

  static constexpr std::size_t kAlone = ~std::size_t{0};  // nobody to sum with

  const DeviceLinks& links() const { return links_; }
  std::size_t edge_of(VertexId transfer, int world_rank) const;
  // That of the tensor ranks of one stage; and of a collective, as its member `world_rank` sees it.
  std::size_t tensor_group(int world_rank) const;
  std::size_t group_of(VertexId collective, int world_rank) const;

 private:
  enum class Purpose : std::uint8_t { tensor, data, shared };
  std::vector<int> members(VertexId collective, int world_rank) const;
  void add_group(Purpose purpose, const std::vector<int>& members);
  std::size_t find_group(Purpose purpose, const std::vector<int>& members) const;
  static Purpose purpose_of(const Collective& collective);

  const RunPlan& plan_;
  DeviceLinks links_;
  std::vector<Purpose> purposes_;        // by group
  std::vector<std::size_t> lane_edges_;  // by lane: its first edge
};

}  // namespace sluice::exec
