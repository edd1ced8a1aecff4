#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/graph/op_graph.h"
#include "traces/chrome/chrome_trace.h"

namespace sluice::traces {

struct OpRow;

// The track of copies to the host (op F) or back (op B).
constexpr int copy_track(OpKind op) { return op == OpKind::F ? kOffloadTrack : kReloadTrack; }

// Selects the ranks that a trace shows and assigns the tracks of their processes.
class TraceTracks {
 public:
  TraceTracks(const OpGraph& graph, const TraceOptions& options);
  // For a run given as rows. All ranks are shown.
  TraceTracks(int num_ranks, std::span<const OpRow> rows);

  bool shown(int rank) const { return shown_[rank] != 0; }
  int pid(int rank) const { return world_ranks_[rank] + 1; }

  // The tracks of a transfer: at the sender and at the receiver.
  int send_track(const Lane& link, OpKind op) const { return link_track(link.rank, link.peer, op, true); }
  int recv_track(const Lane& link, OpKind op) const { return link_track(link.peer, link.rank, op, false); }

  // The tracks of `rank` that have slices, in ascending order, with their names.
  const std::vector<std::pair<int, std::string>>& named(int rank) const { return named_[rank]; }

 private:
  struct Use;  // the links and tracks in use

  void find_far_peers(const Use& use);
  void name_tracks(Use& use);
  int link_track(int rank, int peer, OpKind op, bool send) const;
  std::string track_name(int rank, int track) const;

  int num_ranks_;
  std::vector<int> world_ranks_;
  std::vector<char> shown_;
  std::vector<std::vector<int>> far_peers_;  // by rank, ascending
  std::vector<std::vector<std::pair<int, std::string>>> named_;
};

}  // namespace sluice::traces
