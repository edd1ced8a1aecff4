// Public header.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/schedule/schedule.h"

namespace sluice::model {

// Parameters of a schedule. Zero selects the family's default.
struct FamilyParams {
  int ranks = 1;
  int chunks = 0;
  int microbatches = 1;   // of one batch
  int batches = 0;        // only for families without a flush
  int group = 0;          // group size of the interleaved families, in units (microbatches, or slices where sliced)
  MicrobatchShape shape;  // of every microbatch

  int slices() const { return shape.num_slices(); }
};

// A schedule family: how to generate its schedules, and its properties. Each is defined in a file of families/ and
// listed in families/registry.cc.
struct Family {
  std::string_view name;
  std::vector<std::string_view> aliases;  // names in PyTorch and in papers, matched in any case
  std::string_view summary;               // one line
  std::string_view source;
  int fixed_chunks = 1;             // chunks per rank where the placement determines them; 0: free
  int default_chunks = 1;           // where free
  std::string_view with_one_chunk;  // where free: the family that this one equals with one chunk per rank, if any
  bool sliced = false;
  bool split_backward = false;  // has I and W instead of B, at least in places
  bool grouped = false;         // takes `group`
  bool asynchronous = false;    // no flush; the schedule spans `batches`
  int replicas = 1;             // number of ranks that have a copy of each stage
  int vocabulary_barriers = 0;  // ScheduleParts::vocabulary_barriers
  bool in_megatron_lm = false;  // available in Megatron-LM
  // Exists to hide the communication of experts: without expert parallelism, plans leave it out.
  bool for_expert_parallelism = false;
  // Names of other families: the same order on slices of sequences ("" if there is none), and those that need less
  // memory but more time, fastest first.
  std::string_view sliced_variant;
  std::vector<std::string_view> leaner;
  // Generates the schedule for params that `make_schedule` has completed and checked. Throws InputError with the reason
  // if the family does not support them.
  ScheduleParts (*make)(const FamilyParams&) = nullptr;
};

// Returns all families, in the order of `sluice schedules`.
std::span<const Family> all_families();

// Finds a family by name or alias, in any case. Throws InputError that starts with `place`, if there is one, and
// suggests the nearest name.
const Family& find_family(std::string_view name, std::string_view place = "");

// Fills in defaults, checks ranges and the number of ops (before it allocates anything), generates the schedule and
// checks it. Throws InputError naming the parameter, the family and the reason.
Schedule make_schedule(const Family& family, FamilyParams params);

// The same without the final check of the schedule.
ScheduleParts make_parts(const Family& family, FamilyParams params);

// Returns the number of ops that the schedule has, without making any.
double num_ops(const Family& family, const FamilyParams& params);

}  // namespace sluice::model
