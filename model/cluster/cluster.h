// Public header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

class JsonReader;

// GEMMs: see gemm_time (model/cost/gemm.h).
struct GemmConstants {
  double peak_fraction = 1;       // of the peak, in a tile without edges, in timings of a few repetitions
  double sustained_fraction = 1;  // of that rate, over iterations, whose power lowers the clock
  double operand_edge = 0;        // elements: the cost of loading a tile's operands, as a length added to its edges
  double exposed_write = 0;       // fraction of the time to write a tile's result that no arithmetic hides
  double memory_efficiency = 1;   // of the memory bandwidth
  double launch_s = 0;
  double group_s = 0;  // additional time per GEMM of a group that is launched one by one
};

// What a GEMM's tiles cost besides their arithmetic. The members are those of GemmConstants.
struct TileConstants {
  double operand_edge = 0;
  double exposed_write = 0;
  double memory_efficiency = 1;
  double launch_s = 0;
};

// GEMMs with narrow operands, in place of the peak and its fraction for 16 bits.
struct NarrowGemmConstants {
  double peak_flops_per_s = 0;  // dense; 0: the GPU has no such units
  double peak_fraction = 1;
  double sustained_fraction = 1;       // as GemmConstants has it
  bool block_scales = false;           // multiplies operands with one scale per block of elements
  std::optional<TileConstants> tiles;  // nothing: as with 16 bits
};

// The fused attention kernel for heads of one size: see AttentionConstants.
struct HeadConstants {
  double head_size = 0;      // mean over the GEMMs: 160 forward of keys of 192 and values of 128
  double peak_fraction = 1;  // of executed FLOPs, exponentials included
  double tail_rows = 0;
  double overhead_keys = 0;
  double window_keys = 0;  // as overhead_keys, additionally with a window, whose mask has two edges
};

// Fused attention: see attention_time (model/cost/gemm.h).
struct AttentionConstants {
  double peak_fraction = 1;   // of the peak, for executed FLOPs, large heads and many rows
  double tail_rows = 0;       // query rows of idle multiprocessors at the end
  double softmax_size = 0;    // elements of a head that take as long as the exponentials of its scores
  double overhead_keys = 0;   // keys that take as long as what a query row needs besides its keys: start and end of its
                              // tile, and the masked part of it
  bool padded_values = true;  // tiles of heads whose values are smaller than their keys are padded
  std::vector<HeadConstants> heads;  // of sizes that have a kernel of their own
};

// A GPU type.
struct Gpu {
  std::string name;
  std::string architecture;     // "Hopper": predictions of GPUs of one architecture err alike; empty: unknown
  double peak_flops_per_s = 0;  // dense, 16-bit inputs
  std::int64_t memory_bytes = 0;
  double memory_bandwidth_bytes_per_s = 0;
  int num_sms = 0;

  GemmConstants gemm;
  NarrowGemmConstants gemm_8bit;
  NarrowGemmConstants gemm_4bit;
  AttentionConstants attention_forward;
  AttentionConstants attention_backward;
  // With operands of 8 bits, as fractions of gemm_8bit's peak. Without them there is no such attention.
  std::optional<AttentionConstants> attention_8bit_forward;
  std::optional<AttentionConstants> attention_8bit_backward;
  double memory_efficiency = 1;              // of the memory bandwidth, for kernels that only move data
  double cast_efficiency = 1;                // of the memory bandwidth, for casts to narrow formats
  double kernel_s = 0;                       // launch latency of one kernel, during which the GPU is idle
  double overlap_slowdown = 1;               // of compute while communication runs concurrently
  std::int64_t workspace_bytes = 0;          // of the GEMM libraries, allocated as tensors for the whole run
  std::int64_t grouped_workspace_bytes = 0;  // the same for grouped GEMMs, besides
  std::int64_t reserved_bytes = 0;           // context and communication buffers, not for tensors
  double fragmentation = 0;  // memory that the allocator reserves beyond the allocated bytes, as a fraction of these
  double memory_margin = 0;  // by which the needed memory may be predicted too low, as a fraction of the device's
  // Of attention with operands of 8 bits where `narrow`, which the GPU must then have.
  const AttentionConstants& attention(bool backward, bool narrow) const {
    if (narrow) return (backward ? attention_8bit_backward : attention_8bit_forward).value();
    return backward ? attention_backward : attention_forward;
  }
  // The peak of GEMMs whose operands have 16, 8 or 4 bits; 0 without such units.
  double peak_of(int bits) const {
    return bits == 16 ? peak_flops_per_s : bits == 8 ? gemm_8bit.peak_flops_per_s : gemm_4bit.peak_flops_per_s;
  }
  // The part of it that a tile without edges reaches.
  double gemm_flops_per_s(int bits) const {
    return peak_of(bits) * (bits == 16  ? gemm.peak_fraction * gemm.sustained_fraction
                            : bits == 8 ? gemm_8bit.peak_fraction * gemm_8bit.sustained_fraction
                                        : gemm_4bit.peak_fraction * gemm_4bit.sustained_fraction);
  }
  TileConstants tile_constants(int bits) const {
    const std::optional<TileConstants>& own = bits == 8 ? gemm_8bit.tiles : gemm_4bit.tiles;
    if (bits != 16 && own) return *own;
    return {gemm.operand_edge, gemm.exposed_write, gemm.memory_efficiency, gemm.launch_s};
  }
  // Whether these bytes are within the margin of the capacity, or above it.
  bool within_margin(std::int64_t needed) const {
    return static_cast<double>(needed) > static_cast<double>(memory_bytes) * (1 - memory_margin);
  }
};

// The speed of concurrent transfers through one port or card.
enum class Sharing : std::uint8_t {
  none,   // each at full speed
  fair,   // they share the bandwidth
  queue,  // one after another
};

// A type of link. Bandwidths are per GPU and direction (per node and direction, where its GPUs share the link).
struct Link {
  std::string name;
  double latency_s = 0;              // per message
  double bandwidth_bytes_per_s = 0;  // nominal
  double transfer_efficiency = 1;    // of the bandwidth, for one large message
  Sharing sharing = Sharing::none;   // of a GPU's port, or of the node's card, in one direction
  double collective_efficiency = 1;  // of the bandwidth, for a ring collective of large messages
  double collective_latency_s = 0;   // fixed, per collective
  double collective_step_s = 0;      // per step of its ring
  double exchange_efficiency = 1;    // of the bandwidth, for an all-to-all of large messages
  // In an all-to-all, of all that a GPU copies, its own part, which crosses no link, included: relative to the
  // bandwidth; 0: not a limit.
  double exchange_copy_rate = 0;
  double shared_exponent = 0;  // of (2 / nodes), by which rings over more than two nodes have less bandwidth
  // Ring bandwidth of groups of 2, 3, ... GPUs, where the topology limits small groups below the link's collective
  // bandwidth; larger groups have that one.
  std::vector<double> ring_bytes_per_s;

  // Bandwidth of a ring of `gpus` GPUs.
  double ring_bandwidth(int gpus) const;
};

// The overheads of a training framework on top of the GPUs' work.
struct Software {
  std::string name;
  std::string code_base;      // whose layers and schedules it has: "Megatron"; else its name
  double issue_s = 0;         // host time to launch one kernel of the table: a lower bound for chains of short kernels
  double expert_issue_s = 0;  // the same for one expert's kernel, where those of a layer are launched one by one
  double dispatch_issue_s = 0;  // the same for a dispatch or combine, of runs without CUDA graphs
  double part_issue_s = 0;      // additional host time per part of a layer in F and B of an overlapped block
  // Speed of its kernels relative to the GPU's constants: below 1 with older libraries. memory_speed is that of kernels
  // that only move data: below 1 where they are not fused.
  double gemm_speed = 1;
  double attention_speed = 1;
  double memory_speed = 1;
  bool blocking_transfers = false;   // a rank does not compute while it sends
  bool grouped_kernels = false;      // the GEMMs of all experts of a layer are one launch; else a GEMM and a cast each
  bool fused_host_adam = true;       // Adam on the host passes over its tensors once; else as PyTorch's, op by op
  bool fused_latent_rotary = false;  // see Training
  double step_s = 0;  // per iteration, outside the optimizer's kernels (overflow checks, logging, next batch)
};

// Nodes of one type. GPU i of node j has device number gpus_per_node * j + i.
struct Cluster {
  std::string name;
  Gpu gpu;
  int gpus_per_node = 1;
  bool gpus_per_node_specified = false;  // otherwise `use_for` may choose it
  int nodes = 1;
  bool nodes_specified = false;  // otherwise a scenario has as many as it needs
  Link intra_node;
  Link inter_node;
  bool nic_per_gpu = true;  // inter_node is per GPU; otherwise the node's GPUs share it
  // Per GPU while all of the node are busy; 0: not specified. Between a GPU and the memory of its host, in each
  // direction, and of that memory, reads and writes together.
  double host_link_bytes_per_s = 0;
  double host_memory_bytes_per_s = 0;
  double host_speed = 1;  // of its hosts in launching kernels, relative to a DGX A100

  std::int64_t num_gpus() const { return std::int64_t{gpus_per_node} * nodes; }
  // Unless the numbers are specified, sets the number of nodes to what `gpus` GPUs need. If they do not fill whole
  // nodes, but nodes of the largest power of two in a node, only that number is used of each (64 of an NVL72 domain),
  // so that groups of ranks do not straddle two nodes.
  void use_for(std::int64_t gpus);
};

// Returns the names of the catalogue's nodes, or of its models (examples/models/), sorted.
std::vector<std::string> catalogue_nodes();
std::vector<std::string> catalogue_models();

// Returns a GPU of the catalogue by the name of its file ("a100-80gb"). Throws InputError that lists the names.
std::vector<std::string> catalogue_gpus();
Gpu catalogue_gpu(const std::string& name);
Link catalogue_link(const std::string& name);

// Returns a node of the catalogue by name, or reads a file with a node ("sluice.node/1") or a cluster
// ("sluice.cluster/1"). `nodes` above 0 is the number of nodes; 0 selects the file's, or 1. Throws InputError, for an
// unknown name with the nearest known one.
Cluster load_cluster(const std::string& name_or_path, int nodes);

// Returns the names of the catalogue's frameworks, sorted.
std::vector<std::string> catalogue_software();

// Returns a framework of the catalogue by name, or reads a "sluice.software/1" file, or such an object. Throws
// InputError, for an unknown name with the nearest known one.
Software load_software(const std::string& name_or_path);
Software software_from_json(JsonReader reader);

// An object {"node": name or object, "nodes": n}. A node is {"gpu": .., "gpus": n, "intra_node": .., "inter_node": ..,
// "nic_per_gpu": bool}; gpu and links are names of the catalogue or objects (docs/formats.md).
Cluster cluster_from_json(JsonReader reader);

}  // namespace sluice::model
