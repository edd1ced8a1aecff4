#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/input/files.h"
#include "model/timeline/memory.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

struct TraceOptions {
  std::vector<int> ranks;        // pipeline ranks to write; empty: all
  std::vector<int> world_ranks;  // by pipeline rank, distinct; empty: the pipeline rank itself
  std::string scenario;          // a JSON value that says what was traced, copied as it stands; empty: null
  std::vector<char> ended;       // by vertex, of a run that broke: the others are left out; empty: all ended
  bool idle = false;             // also a slice for every idle stretch of a compute lane, with its cause
};

// Tracks (tid) of a rank's process. Tracks to and from a rank that is neither next (rank + 1, cyclic) nor previous
// follow in ascending order of that rank: 8 sends to the first of them, 9 receives from it, 10 sends to the second.
// With two ranks, where next and previous are the same rank, activations go by send next and recv previous, gradients
// by send previous and recv next.
enum TraceTrack : int {
  kComputeTrack = 1,
  kSendNextTrack = 2,
  kSendPreviousTrack = 3,
  kRecvPreviousTrack = 4,
  kRecvNextTrack = 5,
  kCollectiveTrack = 6,
  kOptimizerTrack = 7,
  kFirstPeerTrack = 8,
};

// Writes a Chrome trace (JSON object format, as Perfetto reads it): a process for each rank, its pid the world rank
// + 1. A transfer is a slice at the sender while it occupies its lane, one as long at the receiver that ends when it
// arrives, and a flow between the two; a collective is a slice on each rank that takes part. A transfer shorter than
// 1 ns is drawn as 1 ns; transfers that would then overlap on a lane are drawn one after the other, both ends alike.
// Memory is a counter of the classes in bytes, where `memory` (by rank, with samples) is not empty. A rank filter
// leaves out the other ranks' events and the flows that lead to them. Returns the number of events written.
std::int64_t write_chrome_trace(const ByteSink& sink, const OpGraph& graph, const Timeline& timeline,
                                std::span<const RankMemory> memory, const TraceOptions& options = {});

// The same into a file, gzipped where its name ends in ".gz": afterwards it holds the whole trace, or what it held
// before. Throws InputError naming `path`.
std::int64_t write_trace_file(const std::string& path, const OpGraph& graph, const Timeline& timeline,
                              std::span<const RankMemory> memory, const TraceOptions& options = {});

// How many events the trace will have.
std::int64_t count_trace_events(const OpGraph& graph, const Timeline& timeline, std::span<const RankMemory> memory,
                                const TraceOptions& options = {});

// What to tell the user before a trace of so many events is written; empty up to a million.
std::string trace_size_warning(std::int64_t events);

}  // namespace sluice::traces
