#include "traces/trace_tracks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "model/errors.h"

namespace sluice {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace

TraceTracks::TraceTracks(const OpGraph& graph, const TraceOptions& options)
    : num_ranks_(graph.schedule().num_ranks()), world_ranks_(options.world_ranks), shown_(index(num_ranks_), 0) {
  if (world_ranks_.empty()) {
    world_ranks_.resize(index(num_ranks_));
    std::iota(world_ranks_.begin(), world_ranks_.end(), 0);
  }
  if (std::ssize(world_ranks_) != num_ranks_) {
    throw InputError(fmt::format("trace: {} world ranks for {} ranks", world_ranks_.size(), num_ranks_));
  }
  if (options.ranks.empty()) std::fill(shown_.begin(), shown_.end(), char{1});
  for (const int rank : options.ranks) {
    if (rank < 0 || rank >= num_ranks_) {
      throw InputError(fmt::format("trace ranks: expected ranks between 0 and {}, got {}", num_ranks_ - 1, rank));
    }
    shown_[index(rank)] = 1;
  }

  far_peers_.resize(index(num_ranks_));
  const auto add_far_peer = [this](int rank, int peer) {
    if (peer == (rank + 1) % num_ranks_ || rank == (peer + 1) % num_ranks_) return;
    far_peers_[index(rank)].push_back(peer);
  };
  for (const Lane& lane : graph.lanes()) {
    if (lane.kind != LaneKind::link) continue;
    add_far_peer(lane.rank, lane.peer);
    add_far_peer(lane.peer, lane.rank);
  }
  for (std::vector<int>& peers : far_peers_) {
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  }

  // Transfers of one lane differ in their track only by direction, so two marks a lane tell which tracks are in use.
  std::vector<std::set<int>> used(index(num_ranks_));
  std::vector<char> carries(2 * graph.lanes().size(), 0);
  for (const Vertex& vertex : graph.vertices()) {
    switch (vertex.kind) {
      case VertexKind::transfer: carries[2 * index(vertex.lane) + (vertex.op == OpKind::F ? 0 : 1)] = 1; break;
      case VertexKind::collective:
        for (const int rank : graph.collective(vertex).ranks) used[index(rank)].insert(kCollectiveTrack);
        break;
      case VertexKind::optimizer: used[index(graph.lanes()[index(vertex.lane)].rank)].insert(kOptimizerTrack); break;
      default: used[index(graph.lanes()[index(vertex.lane)].rank)].insert(kComputeTrack);
    }
  }
  for (std::size_t mark = 0; mark < carries.size(); ++mark) {
    if (carries[mark] == 0) continue;
    const Lane& link = graph.lanes()[mark / 2];
    const OpKind op = mark % 2 == 0 ? OpKind::F : OpKind::B;
    used[index(link.rank)].insert(send_track(link, op));
    used[index(link.peer)].insert(recv_track(link, op));
  }
  named_.resize(index(num_ranks_));
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (options.idle) used[index(rank)].insert(kComputeTrack);
    for (const int track : used[index(rank)]) named_[index(rank)].emplace_back(track, track_name(rank, track));
  }
}

int TraceTracks::link_track(int rank, int peer, OpKind op, bool send) const {
  const bool activation = op == OpKind::F;
  // Activations go to the next rank and come from the previous one: this alone tells two ranks' tracks apart.
  const bool next = num_ranks_ == 2 ? activation == send : peer == (rank + 1) % num_ranks_;
  if (next) return send ? kSendNextTrack : kRecvNextTrack;
  if (num_ranks_ == 2 || rank == (peer + 1) % num_ranks_) return send ? kSendPreviousTrack : kRecvPreviousTrack;
  const std::vector<int>& peers = far_peers_[index(rank)];
  const auto at = std::lower_bound(peers.begin(), peers.end(), peer) - peers.begin();
  return kFirstPeerTrack + 2 * static_cast<int>(at) + (send ? 0 : 1);
}

std::string TraceTracks::track_name(int rank, int track) const {
  switch (track) {
    case kComputeTrack: return "compute";
    case kSendNextTrack: return "send next";
    case kSendPreviousTrack: return "send previous";
    case kRecvPreviousTrack: return "recv previous";
    case kRecvNextTrack: return "recv next";
    case kCollectiveTrack: return "collective";
    case kOptimizerTrack: return "optimizer";
    default: break;
  }
  const int peer = far_peers_[index(rank)][index((track - kFirstPeerTrack) / 2)];
  return fmt::format("{} rank {}", track % 2 == 0 ? "send to" : "recv from", world_ranks_[index(peer)]);
}

}  // namespace sluice
