// Public header.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/schedule/schedule.h"

namespace sluice::model {

// What a person asks of a family. Zero means: the family's default.
struct FamilyParams {
  int ranks = 1;
  int chunks = 0;
  int microbatches = 1;   // of one batch
  int batches = 0;        // for families without a flush
  int group = 0;          // G of the interleaved families, in units (microbatches, or slices where sliced)
  MicrobatchShape shape;  // of every microbatch

  int slices() const { return shape.num_slices(); }
};

// One schedule family: its rule and what it can do. Defined in one file of families/, listed in one row of registry.cc.
struct Family {
  std::string_view name;
  std::vector<std::string_view> aliases;  // PyTorch's and the papers' names, matched in any case
  std::string_view summary;               // one line: what it is for
  std::string_view source;
  int fixed_chunks = 1;    // chunks where the placement fixes them; 0: `chunks` is free
  int default_chunks = 1;  // where free
  bool sliced = false;
  bool split_backward = false;  // I and W instead of B, at least in places
  bool grouped = false;         // takes `group`
  bool asynchronous = false;    // no flush: spans `batches`
  int replicas = 1;             // ranks that hold a stage
  bool megatron = false;        // Megatron-LM has this schedule
  // Makes the schedule's parts for params that `make_schedule` has completed and checked. Throws InputError
  // with the reason for what the family cannot do.
  ScheduleParts (*make)(const FamilyParams&) = nullptr;
};

// All families, in the order in which `sluice schedules` lists them.
std::span<const Family> all_families();

// By name or alias, in any case. Throws InputError naming the nearest one.
const Family& find_family(std::string_view name);

// Fills defaults, checks ranges and size (ops are counted before anything is allocated), makes and checks the
// schedule. Throws InputError naming the parameter, the family and the reason.
Schedule make_schedule(const Family& family, FamilyParams params);

// The same without the last check: what the family says.
ScheduleParts make_parts(const Family& family, FamilyParams params);

}  // namespace sluice::model
