#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/input/csv.h"
#include "sim/calibration/log_fit.h"

namespace sluice::sim {

// A measured collective within a node.
struct MeasuredCollective {
  int gpus = 2;
  double bytes = 0;  // of the whole tensor
  double seconds = 0;
};

// Measurements of one kind of link. The time of a message is latency + bytes / bandwidth; 0: not measured.
struct MeasuredLink {
  std::string origin;  // the column `source` of its first row, or the table's file
  std::vector<MeasuredCollective> all_reduces;
  std::vector<MeasuredCollective> all_to_alls;
  double message_latency_s = 0;
  double message_bytes_per_s = 0;
};

// Whether a table contains links: columns gpu, gpus, bytes, time_us (all-reduces within a node), gpu, op, gpus,
// elements_fp16, latency_us (of these all_reduce of a MiB and more, and alltoall of 16 MiB and more), or network,
// collective, workers, devices_per_node, min_bytes, max_bytes, alpha_us, busbw_GBps (lines fitted to times).
bool has_measured_links(const CsvTable& table);

// Reads links by their name in the catalogue ("nvlink3"); skips rows of other networks. A line fitted to all-reduces is
// sampled at each doubling of the size within its range. Except for messages, only links within nodes are read.
// Throws InputError naming file, row and column, for example for a negative latency.
std::map<std::string, MeasuredLink> read_measured_links(const CsvTable& table);

// Constants of `link` fitted to measurements: collective latency and step, and the ring's bandwidth for each number of
// GPUs, that of the largest number being the link's collective efficiency; and the bandwidth of messages, at most the
// nominal one; and the bandwidth of all-to-alls, with the link's latencies. With fewer than 6 rows, a fit has 0 rows
// and its constants are unchanged.
//
// A piecewise bandwidth for small, medium and large tensors is not used: the held-out error falls from 5.1 to 4.5 % on
// A100 and does not fall on V100. A bandwidth for each number of GPUs matters more.
struct LinkFit {
  Link link;
  std::string origin;
  LogFit all_reduce;
  LogFit all_to_all;
};
LinkFit fit_link(const Link& link, const MeasuredLink& measured);

}  // namespace sluice::sim
