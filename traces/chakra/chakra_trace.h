#pragma once

#include <cstdint>
#include <string>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

struct ChakraOptions {
  int replicas = 1;               // data-parallel; NPU = pipeline rank * replicas + replica
  bool shards_optimizer = false;  // gradients are reduce-scattered, not all-reduced
  std::string scenario;           // JSON, into the metadata; empty: none
};

// The most files of one export.
inline constexpr std::int64_t kMostChakraFiles = 100'000;

// Whether this build has protobuf, which the export needs.
bool has_chakra_traces();

// Writes a schedule as execution traces of MLCommons' Chakra, which ASTRA-sim and SimAI run: `prefix.N.et` of each NPU,
// and `prefix.comm_groups.json`. An NPU is a pipeline rank of one replica; tensor, context and expert parallelism are
// within the times of its ops.
//
// Ops, joint blocks, recomputation and optimizer steps are COMP_NODEs; a transfer is a COMM_SEND_NODE at the sender and
// a COMM_RECV_NODE at the receiver (with the id of the transfer plus the size of the graph), matched by comm_src,
// comm_dst and comm_tag; collectives are COMM_COLL_NODEs of the group pg_name. What an op waits for on its own rank,
// also for the order of its lane, are data_deps; a receive has none. Times are those of `timeline`: start_time_micros
// and duration_micros, and exactly in the attributes start_ns and duration_ns. A transfer of unknown size has
// comm_size 1. The files are replaced when all are complete. Returns the number of files. Throws InputError naming the
// file; if more than kMostChakraFiles would be written, or without protobuf.
std::int64_t write_chakra_traces(const std::string& prefix, const OpGraph& graph, const Timeline& timeline,
                                 const ChakraOptions& options);

}  // namespace sluice::traces
