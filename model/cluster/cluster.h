// Public header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

class JsonReader;

// Matrix products: see gemm_time (model/cost/gemm.h).
struct GemmConstants {
  double peak_fraction = 1;      // of the peak, in a tile without edges
  double operand_edge = 0;       // elements: what loading a tile's operands costs, as a length beside its edges
  double exposed_write = 0;      // of the time to write a tile's result, what no arithmetic hides
  double memory_efficiency = 1;  // of the memory bandwidth
  double launch_s = 0;
  double group_s = 0;  // more for each product of a group that is launched one by one
};

// Fused attention: see attention_time (model/cost/gemm.h).
struct AttentionConstants {
  double peak_fraction = 1;  // of the peak, of executed FLOPs, large heads and many rows
  double tail_rows = 0;      // query rows for which multiprocessors wait at the end
  double softmax_size = 0;   // elements of a head that take as long as the exponentials of its scores
};

// One GPU type.
struct Gpu {
  std::string name;
  double peak_flops_per_s = 0;  // dense, 16-bit inputs
  std::int64_t memory_bytes = 0;
  double memory_bandwidth_bytes_per_s = 0;
  int num_sms = 0;

  GemmConstants gemm;
  AttentionConstants attention_forward;
  AttentionConstants attention_backward;
  double memory_efficiency = 1;     // of the memory bandwidth, for kernels that only move data
  double kernel_s = 0;              // start and tail of one kernel, during which the GPU does nothing else
  double overlap_slowdown = 1;      // of compute while communication runs beside it
  std::int64_t reserved_bytes = 0;  // context and communication buffers, not for tensors
  double fragmentation = 0;         // what the allocator reserves above what is allocated, as a fraction
};

// What becomes of transfers that go through one port or card at once.
enum class Sharing : std::uint8_t {
  none,   // each at full speed
  fair,   // they share its bandwidth
  queue,  // one after the other
};

// One kind of connection. Bandwidths are of one GPU in one direction (of a node, where its GPUs share the link).
struct Link {
  std::string name;
  double latency_s = 0;              // of one message
  double bandwidth_bytes_per_s = 0;  // nominal
  double transfer_efficiency = 1;    // of the bandwidth, sending one large message
  Sharing sharing = Sharing::none;   // of a GPU's port, or the node's card, in one direction
  double collective_efficiency = 1;  // of the bandwidth, in a ring of large messages
  double collective_latency_s = 0;   // fixed, of one collective
  double collective_step_s = 0;      // of each step of its ring
  // Ring bandwidth of groups of 2, 3, ... GPUs, where a topology gives small groups less than the link's collective
  // bandwidth; larger groups than listed have that.
  std::vector<double> ring_bytes_per_s;

  // Of a ring of `gpus`.
  double ring_bandwidth(int gpus) const;
};

// What the program that trains adds to the work of the GPUs.
struct Software {
  std::string name;
  double issue_s = 0;               // host time to issue one kernel of the table: the floor of a chain of short ones
  double gemm_speed = 1;            // of matrix products against 16-bit ones: above 1 with 8-bit operands
  bool blocking_transfers = false;  // a rank computes nothing while it sends
  double step_s = 0;  // of an iteration: what is not the optimizer's kernels (overflow checks, logging, next batch)
};

// Nodes of one kind. GPU i of node j has device number gpus_per_node * j + i.
struct Cluster {
  std::string name;
  Gpu gpu;
  int gpus_per_node = 1;
  int nodes = 1;
  Link intra_node;
  Link inter_node;
  bool nic_per_gpu = true;  // inter_node is of each GPU; otherwise the node's GPUs share it
  double host_speed = 1;    // of its hosts in issuing kernels, against a DGX A100's

  std::int64_t num_gpus() const { return std::int64_t{gpus_per_node} * nodes; }
};

// Names of the catalogue's nodes, sorted.
std::vector<std::string> catalogue_nodes();

// Of the catalogue, by the name of its file ("a100-80gb"). Throws InputError with the names there are.
std::vector<std::string> catalogue_gpus();
Gpu catalogue_gpu(const std::string& name);
Link catalogue_link(const std::string& name);

// A node of the catalogue by name, or a file that holds a node ("sluice.node/1") or a cluster ("sluice.cluster/1").
// `nodes` above 0 is the number of nodes; 0 takes the file's, or 1.
// Throws InputError, for an unknown name with the nearest known one.
Cluster load_cluster(const std::string& name_or_path, int nodes);

// Names of the catalogue's programs, sorted.
std::vector<std::string> catalogue_software();

// A program of the catalogue by name, a "sluice.software/1" file, or such an object.
// Throws InputError, for an unknown name with the nearest known one.
Software load_software(const std::string& name_or_path);
Software software_from_json(JsonReader reader);

// An object {"node": name or object, "nodes": n}. A node is {"gpu": .., "gpus": n, "intra_node": .., "inter_node": ..,
// "nic_per_gpu": bool}; gpu and links are names of the catalogue or objects (docs/formats.md).
Cluster cluster_from_json(JsonReader reader);

}  // namespace sluice::model
