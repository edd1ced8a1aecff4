#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/input/csv.h"
#include "sim/calibration/log_fit.h"

namespace sluice::sim {

// An all-reduce that somebody timed inside a node.
struct MeasuredAllReduce {
  int gpus = 2;
  double bytes = 0;  // of the whole tensor
  double seconds = 0;
};

// What was timed on one kind of link. A message is latency and bytes / bandwidth, 0 where not measured.
struct MeasuredLink {
  std::string origin;  // the column `source` of its first row, or the table's file
  std::vector<MeasuredAllReduce> all_reduces;
  double message_latency_s = 0;
  double message_bytes_per_s = 0;
};

// What a table of links is known by: columns gpu, gpus, bytes, time_us (all-reduces inside a node), or network,
// collective, workers, devices_per_node, min_bytes, max_bytes, alpha_us, busbw_GBps (lines fitted to times).
bool has_measured_links(const CsvTable& table);

// By name of the catalogue ("nvlink3"); rows of networks that the catalogue does not hold are left out. Of lines fitted
// to all-reduces the table's range of sizes is read off at each doubling. Inside nodes only, but for messages.
// Throws InputError naming file, row and column, for one for a latency below 0.
std::map<std::string, MeasuredLink> read_measured_links(const CsvTable& table);

// The constants of `link` that these times decide: collective latency and step, and the ring's bandwidth for each
// number of GPUs (the largest number's is the link's collective efficiency); and of messages, at most the nominal
// bandwidth. `all_reduce` has 0 rows, and its constants stay, if there are fewer than 6.
//
// Three pieces, a share of the bandwidth for small, middle and large tensors, were tried and are not here: on A100 the
// held-out error falls from 5.1 to 4.5 %, on V100 it does not fall. What matters is a bandwidth for each number of
// GPUs.
struct LinkFit {
  Link link;
  std::string origin;
  LogFit all_reduce;
};
LinkFit fit_link(const Link& link, const MeasuredLink& measured);

}  // namespace sluice::sim
