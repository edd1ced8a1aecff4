#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/batches/documents.h"
#include "model/namespaces.h"

namespace sluice::tools {

// What to cut, and how. At most one of `schedule`, `algorithm1_ms`, `balanced` and `joint` is set, of which `balance`
// allows the first.
struct SliceRequest {
  std::string file;                         // of the scenario; may be empty
  std::string times;                        // table of slice times, instead of a scenario
  std::string schedule;                     // search for the lengths that suit this schedule best
  double algorithm1_ms = -1;                // the paper's algorithm, with this step; below 0: not
  bool balanced = false;                    // slices of equal FLOPs
  bool balance = false;                     // documents over microbatches and replicas, instead of a cut
  bool backward = false;                    // forward and backward, not forward alone
  int joint = 0;                            // number of sequences to cut together with their slices
  std::int64_t granularity = 0;             // in tokens; 0: default_granularity
  int max_slices = 0;                       // 0: no limit
  double time_budget_s = -1;                // of the search for a schedule; below 0: the default
  int slices = 0;                           // number of slices; 0: searched
  const std::atomic<bool>* stop = nullptr;  // ends the search for a schedule with the best cut so far
};

struct SliceCut {
  std::string table;                  // for the terminal
  std::string json;                   // sluice.slice/1  (docs/formats.md)
  std::vector<std::int64_t> lengths;  // in tokens; empty for a joint cut
  std::vector<Documents> batch;       // by microbatch, of each number those of all replicas
  std::string schedule;               // that they are for; empty: any
  bool feasible = true;               // false: no cut fits in memory
  std::string assumed;                // assumed_times_line
  bool interrupted = false;           // by `stop`
};

// Searches the cut of a scenario document's sequences. Throws InputError, DoesNotFit.
SliceCut cut_slices(const SliceRequest& request, const nlohmann::json& document);

}  // namespace sluice::tools
