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

// Which ranks a trace shows, and the tracks that their processes have.
class TraceTracks {
 public:
  TraceTracks(const OpGraph& graph, const TraceOptions& options);
  // Of rows; all ranks are shown.
  TraceTracks(int num_ranks, std::span<const OpRow> rows);

  bool shown(int rank) const { return shown_[rank] != 0; }
  int pid(int rank) const { return world_ranks_[rank] + 1; }

  // Of a transfer: the sender's track, and the receiver's.
  int send_track(const Lane& link, OpKind op) const { return link_track(link.rank, link.peer, op, true); }
  int recv_track(const Lane& link, OpKind op) const { return link_track(link.peer, link.rank, op, false); }

  // Tracks of `rank` that have slices, ascending, with their names.
  const std::vector<std::pair<int, std::string>>& named(int rank) const { return named_[rank]; }

 private:
  struct Use;  // what stands on the tracks

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
