// Public header.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/input/files.h"
#include "model/timeline/memory.h"
#include "model/timeline/timeline.h"
#include "traces/rows/part_rows.h"

namespace sluice::traces {

struct TraceOptions {
  std::vector<int> ranks;        // pipeline ranks to write; empty = all
  std::vector<int> world_ranks;  // by pipeline rank, distinct; empty = the pipeline ranks
  std::string scenario;          // JSON value that describes what was traced, copied verbatim; empty = null
  std::vector<char> ended;       // by vertex, for an aborted run: whether it ended; others are omitted; empty = all
  std::vector<PartRow> parts;  // of layers with experts: slices within their op, and the track of dispatch and combine
  bool idle = false;           // also write a slice with its cause per idle interval of a compute lane
  // Of a measured run: its times include waits of workers for cores, and there were more workers than cores.
  bool waited_for_cores = false;
  bool shared_cores = false;
};

// Tracks (tid) of a rank's process. Peers that are neither the next rank (rank + 1, cyclic) nor the previous one have
// two tracks each, in ascending order of rank: 8 sends to the first such peer, 9 receives from it, 10 sends to the
// second. With two ranks, where next and previous are the same rank, activations use send next and recv previous,
// gradients send previous and recv next.
enum TraceTrack : int {
  kComputeTrack = 1,
  kSendNextTrack = 2,
  kSendPreviousTrack = 3,
  kRecvPreviousTrack = 4,
  kRecvNextTrack = 5,
  kCollectiveTrack = 6,
  kOptimizerTrack = 7,
  kFirstPeerTrack = 8,
  kDispatchTrack = 100000,  // dispatch and combine of experts
  kOffloadTrack = 100001,   // activations to host memory
  kReloadTrack = 100002,    // and back
};

// Writes a Chrome trace (JSON object format, readable by Perfetto) with one process per rank; its pid is the world rank
// + 1. A transfer is a slice at the sender while it occupies its lane, a slice of the same length at the receiver that
// ends when it arrives, and a flow between them. A collective is a slice on each participating rank. TransferDrawing
// defines the times of short transfers. Memory is a counter of bytes per class, if `memory` (by rank, with samples) is
// not empty. A rank filter omits the events of the other ranks and flows to them. Returns the number of events written.
std::int64_t write_chrome_trace(const ByteSink& sink, const OpGraph& graph, const Timeline& timeline,
                                std::span<const RankMemory> memory, const TraceOptions& options = {});

// Writes the trace to a file, gzipped if its name ends in ".gz". The file is replaced only when the trace is complete.
// Throws InputError naming `path`.
std::int64_t write_trace_file(const std::string& path, const OpGraph& graph, const Timeline& timeline,
                              std::span<const RankMemory> memory, const TraceOptions& options = {});

// Returns the number of events that the trace will have.
std::int64_t count_trace_events(const OpGraph& graph, const Timeline& timeline, std::span<const RankMemory> memory,
                                const TraceOptions& options = {});

// Returns a warning for the user if a trace has more than a million events, else an empty string.
std::string trace_size_warning(std::int64_t events);

}  // namespace sluice::traces
