#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/batches/documents.h"
#include "model/namespaces.h"
#include "model/scenario/costs.h"
#include "model/slicing/chunk_times.h"
#include "model/slicing/stage_times.h"
#include "model/slicing/terapipe.h"
#include "tools/command/document.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {

// The sequence that `slice` cuts, with the times of its slices: from a scenario, or from a table of times.
class SliceCosts {
 public:
  // From a scenario document: its stages are the cells of a pipeline, independent of its schedule. `granularity` 0
  // selects default_granularity. Throws InputError.
  SliceCosts(const nlohmann::json& document, const std::string& file, std::int64_t granularity, bool backward);
  // From a table of times for `cells` cells.
  SliceCosts(const std::string& times_file, int cells, bool backward);
  // The same from times of measured chunks, fitted. `tokens` 0: up to the end of the last one.
  SliceCosts(const ChunkTimes& times, int cells, std::int64_t tokens, std::int64_t granularity);
  ~SliceCosts();

  // Returns the problem for microbatches of `sequences` (0: the scenario's), without limits on the number of slices.
  // Refers to this object. Throws InputError for a table of times and more than one sequence.
  SlicingProblem problem(int sequences = 0);

  // Returns the time of one cut of the scenario's microbatches, at any positions.
  Duration latency(std::span<const std::int64_t> lengths) const;

  std::int64_t tokens() const { return tokens_; }
  std::int64_t granularity() const { return granularity_; }
  int cells() const { return cells_; }
  int sequences() const { return sequences_; }
  const Scenario* scenario() const { return scenario_ ? &*scenario_ : nullptr; }
  // Returns the latency of all transfers from the first cell to the last, which is the same for every cut.
  Duration total_hop_latency() const;

 private:
  std::optional<Scenario> scenario_;
  std::optional<Schedule> schedule_;
  std::unique_ptr<ScenarioCosts> costs_;
  std::vector<std::unique_ptr<StageTimes>> times_;  // problems refer to them
  std::optional<SlicingProblem> table_;
  bool backward_;
  std::int64_t tokens_ = 0;
  std::int64_t granularity_ = 1;
  int cells_ = 1;
  int sequences_ = 1;
};

// Sets the schedule of a scenario document and removes its keys about slices.
void set_schedule(nlohmann::json& document, const std::string& name);

// Returns the default of --granularity: the smallest power of two with at most 256 multiples in `tokens`.
std::int64_t default_granularity(std::int64_t tokens);

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
  OrderedJson json;                   // sluice.slice/1  (docs/formats.md)
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
