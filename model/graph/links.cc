#include "model/graph/links.h"

#include <algorithm>
#include <utility>

namespace sluice::model {

Links make_links(const Schedule& schedule, LaneId first_lane) {
  const auto stages = static_cast<std::size_t>(schedule.num_stages());
  std::vector<std::pair<int, int>> pairs;
  for (const auto& route : schedule.routes()) {
    for (std::size_t s = 0; s + 1 < stages; ++s) {
      if (route[s] == route[s + 1]) continue;
      pairs.emplace_back(route[s], route[s + 1]);
      pairs.emplace_back(route[s + 1], route[s]);
    }
  }
  const int root = schedule.routes()[0].back();
  const int shards = schedule.vocabulary_barriers() > 0 ? schedule.num_ranks() : 0;
  for (int rank = 0; rank < shards; ++rank) {
    if (rank != root) pairs.insert(pairs.end(), {{rank, root}, {root, rank}});
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  const auto lane = [&](int from, int to) -> LaneId {
    if (from == to) return Links::kSameRank;
    const auto found = std::lower_bound(pairs.begin(), pairs.end(), std::pair(from, to));
    return first_lane + static_cast<LaneId>(found - pairs.begin());
  };
  Links links;
  for (const auto& [from, to] : pairs) links.lanes.push_back({LaneKind::link, from, to});
  for (const auto& route : schedule.routes()) {
    for (std::size_t s = 0; s < stages; ++s) {
      links.forward.push_back(s + 1 < stages ? lane(route[s], route[s + 1]) : Links::kSameRank);
      links.backward.push_back(s > 0 ? lane(route[s], route[s - 1]) : Links::kSameRank);
    }
  }
  for (int rank = 0; rank < shards; ++rank) {
    links.from_root.push_back(lane(root, rank));
    links.to_root.push_back(lane(rank, root));
    links.results.push_back(rank == root ? Links::kSameRank : first_lane + static_cast<LaneId>(links.lanes.size()));
    if (rank != root) links.lanes.push_back({LaneKind::link, root, rank});
  }
  return links;
}

int num_links(const OpGraph& graph) {
  const auto lanes = graph.lanes();
  const int num_ranks = graph.schedule().num_ranks();
  int links = static_cast<int>(lanes.size()) - 2 * num_ranks;
  while (links > 0 && lanes[static_cast<std::size_t>(2 * num_ranks + links - 1)].kind != LaneKind::link) --links;
  return links;
}

bool is_data_collective(const OpGraph& graph, const Vertex& vertex) {
  if (vertex.kind != VertexKind::collective) return false;
  const CollectiveKind kind = graph.collective(vertex).kind;
  return kind == CollectiveKind::gradient_reduce || kind == CollectiveKind::parameter_gather;
}

}  // namespace sluice::model
