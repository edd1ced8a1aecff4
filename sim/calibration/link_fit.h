#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/input/csv.h"
#include "sim/calibration/log_fit.h"

namespace sluice::sim {

// A measured all-reduce within a node.
struct MeasuredAllReduce {
  int gpus = 2;
  double bytes = 0;  // of the whole tensor
  double seconds = 0;
};

// Measurements of one kind of link. The time of a message is latency + bytes / bandwidth; 0: not measured.
struct MeasuredLink {
  std::string origin;  // the column `source` of its first row, or the table's file
  std::vector<MeasuredAllReduce> all_reduces;
  double message_latency_s = 0;
  double message_bytes_per_s = 0;
};

// Whether a table contains links: columns gpu, gpus, bytes, time_us (all-reduces within a node), or network,
// collective, workers, devices_per_node, min_bytes, max_bytes, alpha_us, busbw_GBps (lines fitted to times).
bool has_measured_links(const CsvTable& table);

// Reads links by their name in the catalogue ("nvlink3"); skips rows of other networks. A line fitted to all-reduces is
// sampled at each doubling of the size within its range. Except for messages, only links within nodes are read.
// Throws InputError naming file, row and column, for example for a negative latency.
std::map<std::string, MeasuredLink> read_measured_links(const CsvTable& table);

// Constants of `link` fitted to measurements: collective latency and step, and the ring's bandwidth for each number of
// GPUs, that of the largest number being the link's collective efficiency; and the bandwidth of messages, at most the
// nominal one. With fewer than 6 rows, `all_reduce` has 0 rows and its constants are unchanged.
//
// A piecewise bandwidth for small, medium and large tensors is not used: the held-out error falls from 5.1 to 4.5 % on
// A100 and does not fall on V100. A bandwidth for each number of GPUs matters more.
struct LinkFit {
  Link link;
  std::string origin;
  LogFit all_reduce;
};
LinkFit fit_link(const Link& link, const MeasuredLink& measured);

}  // namespace sluice::sim
