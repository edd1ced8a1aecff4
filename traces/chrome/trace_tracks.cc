#include "traces/chrome/trace_tracks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "model/errors.h"
#include "model/to_size.h"
#include "traces/rows/run_rows.h"

namespace sluice::traces {
namespace {

constexpr int kFirstPassTrack = 1 << 20;  // S and T between the ranks of a vocabulary, two per peer

std::size_t use_of(OpKind op) { return of_vocabulary(op) ? 2 : op == OpKind::F ? 0 : 1; }

}  // namespace

// The track of a transfer depends only on its link, direction and purpose, so flags per link record which tracks are in
// use.
struct TraceTracks::Use {
  explicit Use(int num_ranks) : tracks(to_size(num_ranks)) {}

  std::map<std::pair<int, int>, std::array<bool, 3>> links;  // (sender, receiver): activations, gradients, passes
  std::vector<std::set<int>> tracks;                         // by rank, excluding those of links
};

TraceTracks::TraceTracks(const OpGraph& graph, const TraceOptions& options)
    : num_ranks_(graph.schedule().num_ranks()), world_ranks_(options.world_ranks), shown_(to_size(num_ranks_), 0) {
  if (world_ranks_.empty()) {
    world_ranks_.resize(num_ranks_);
    std::iota(world_ranks_.begin(), world_ranks_.end(), 0);
  }
  if (std::ssize(world_ranks_) != num_ranks_) {
    throw InputError(
        fmt::format("trace: expected {} world ranks, one per rank, got {}", num_ranks_, world_ranks_.size()));
  }
  if (options.ranks.empty()) std::fill(shown_.begin(), shown_.end(), char{1});
  for (const int rank : options.ranks) {
    if (rank < 0 || rank >= num_ranks_) {
      throw InputError(fmt::format("trace ranks: expected ranks between 0 and {}, got {}", num_ranks_ - 1, rank));
    }
    shown_[rank] = 1;
  }

  Use use(num_ranks_);
  for (const Lane& lane : graph.lanes()) {
    if (lane.kind == LaneKind::link) use.links[{lane.rank, lane.peer}] = {};
  }
  for (const Vertex& vertex : graph.vertices()) {
    const Lane& lane = graph.lanes()[vertex.lane];
    switch (vertex.kind) {
      case VertexKind::transfer: use.links[{lane.rank, lane.peer}][use_of(vertex.op)] = true; break;
      case VertexKind::collective:
        for (const int rank : graph.collective(vertex).ranks) use.tracks[rank].insert(kCollectiveTrack);
        break;
      case VertexKind::optimizer: use.tracks[lane.rank].insert(kOptimizerTrack); break;
      case VertexKind::offload: use.tracks[lane.rank].insert(copy_track(vertex.op)); break;
      default: use.tracks[lane.rank].insert(kComputeTrack);
    }
  }
  for (const PartRow& part : options.parts) {
    if (communicates(part.part.part)) use.tracks[part.rank].insert(kDispatchTrack);
  }
  if (options.idle) {
    for (auto& tracks : use.tracks) tracks.insert(kComputeTrack);
  }
  name_tracks(use);
}

TraceTracks::TraceTracks(int num_ranks, std::span<const OpRow> rows)
    : num_ranks_(num_ranks), world_ranks_(to_size(num_ranks)), shown_(to_size(num_ranks), 1) {
  std::iota(world_ranks_.begin(), world_ranks_.end(), 0);
  Use use(num_ranks_);
  for (const OpRow& row : rows) {
    switch (row.kind) {
      case RowKind::transfer: use.links[{row.rank, row.peer}][use_of(row.op.kind)] = true; break;
      case RowKind::collective: use.tracks[row.rank].insert(kCollectiveTrack); break;
      case RowKind::optimizer: use.tracks[row.rank].insert(kOptimizerTrack); break;
      case RowKind::offload: use.tracks[row.rank].insert(copy_track(row.op.kind)); break;
      default: use.tracks[row.rank].insert(kComputeTrack);
    }
  }
  name_tracks(use);
}

void TraceTracks::find_far_peers(const Use& use) {
  far_peers_.resize(num_ranks_);
  const auto add = [this](int rank, int peer) {
    if (peer == (rank + 1) % num_ranks_ || rank == (peer + 1) % num_ranks_) return;
    far_peers_[rank].push_back(peer);
  };
  for (const auto& [link, carries] : use.links) {
    add(link.first, link.second);
    add(link.second, link.first);
  }
  for (std::vector<int>& peers : far_peers_) {
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  }
}

void TraceTracks::name_tracks(Use& use) {
  find_far_peers(use);
  for (const auto& [link, carries] : use.links) {
    const Lane lane{.kind = LaneKind::link, .rank = link.first, .peer = link.second};
    for (const OpKind op : {OpKind::F, OpKind::B, OpKind::S}) {
      if (!carries[use_of(op)]) continue;
      use.tracks[lane.rank].insert(send_track(lane, op));
      use.tracks[lane.peer].insert(recv_track(lane, op));
    }
  }
  named_.resize(num_ranks_);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    for (const int track : use.tracks[rank]) named_[rank].emplace_back(track, track_name(rank, track));
  }
}

int TraceTracks::link_track(int rank, int peer, OpKind op, bool send) const {
  if (of_vocabulary(op)) return kFirstPassTrack + 2 * peer + (send ? 0 : 1);
  const bool activation = op == OpKind::F;
  // With two ranks, next and previous are the same rank; the direction selects the track.
  const bool next = num_ranks_ == 2 ? activation == send : peer == (rank + 1) % num_ranks_;
  if (next) return send ? kSendNextTrack : kRecvNextTrack;
  if (num_ranks_ == 2 || rank == (peer + 1) % num_ranks_) return send ? kSendPreviousTrack : kRecvPreviousTrack;
  const std::vector<int>& peers = far_peers_[rank];
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
    case kDispatchTrack: return "dispatch and combine";
    case kOffloadTrack: return "to host";
    case kReloadTrack: return "from host";
    default: break;
  }
  const bool passes = track >= kFirstPassTrack;
  const int peer = passes ? (track - kFirstPassTrack) / 2 : far_peers_[rank][(track - kFirstPeerTrack) / 2];
  if (passes) {
    return fmt::format("{} rank {}, vocabulary", track % 2 == 0 ? "send to" : "recv from", world_ranks_[peer]);
  }
  return fmt::format("{} rank {}", track % 2 == 0 ? "send to" : "recv from", world_ranks_[peer]);
}

}  // namespace sluice::traces
