#pragma once

#include <cstddef>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/transport/device_transport.h"

namespace sluice::exec {

// The connections of a run on devices: an edge per lane between two ranks of the graph, for each replica and tensor
// rank, and the groups of its collectives.
class RunLinks {
 public:
  explicit RunLinks(const RunPlan& plan);

  static constexpr std::size_t kAlone = ~std::size_t{0};  // no other member

  const DeviceLinks& links() const { return links_; }
  // Returns the edge of a transfer that `world_rank` sends or receives.
  std::size_t edge_of(VertexId transfer, int world_rank) const;
  // Return the group of the tensor-parallel ranks of a stage, and of a collective as seen by its member `world_rank`.
  std::size_t tensor_group(int world_rank) const;
  std::size_t group_of(VertexId collective, int world_rank) const;
  // The ranks over which the experts of `world_rank` are distributed: for woven blocks a group of its own, as it works
  // on another stream; and the ranks with the same experts.
  std::size_t expert_group(int world_rank, bool woven) const;
  std::size_t expert_data_group(int world_rank) const;

 private:
  enum class Purpose : std::uint8_t { tensor, data, shared, experts, woven_experts, expert_data };
  std::vector<int> members(VertexId collective, int world_rank) const;
  std::vector<int> expert_members(int world_rank) const;
  std::vector<int> expert_data_members(int world_rank) const;
  void add_expert_groups();
  void add_group(Purpose purpose, const std::vector<int>& members);
  std::size_t find_group(Purpose purpose, const std::vector<int>& members) const;
  static Purpose purpose_of(const Collective& collective);

  const RunPlan& plan_;
  DeviceLinks links_;
  std::vector<Purpose> purposes_;        // by group
  std::vector<std::size_t> lane_edges_;  // by lane: index of its first edge
};

}  // namespace sluice::exec
