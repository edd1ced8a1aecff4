#include "tools/slice/slice_costs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "model/slicing/slice_times_file.h"
#include "sim/engine/parallel.h"

namespace sluice::tools {
namespace {

// Returns an object of a scenario document, which is added if it is missing. Null if the value is not an object:
// reading the document then throws.
nlohmann::json* part_of(nlohmann::json& document, const char* key) {
  nlohmann::json& part = document[key];
  if (part.is_null()) part = nlohmann::json::object();
  return part.is_object() ? &part : nullptr;
}

// Returns a scenario with one microbatch of whole sequences and each stage on its own rank.
Scenario as_cells(nlohmann::json document, const std::string& file) {
  set_schedule(document, "terapipe");
  if (nlohmann::json* schedule = part_of(document, "schedule")) {
    schedule->erase("group");
    schedule->erase("batches");
  }
  if (nlohmann::json* parallelism = part_of(document, "parallelism")) {
    parallelism->erase("vpp");
    parallelism->erase("layers_per_virtual_stage");
    // Layers of more stages than ranks describe chunks.
    if (parallelism->contains("stage_layers") && parallelism->contains("pp") && (*parallelism)["pp"] != nullptr &&
        (*parallelism)["pp"] != (*parallelism)["stage_layers"].size()) {
      parallelism->erase("stage_layers");
    }
  }
  if (nlohmann::json* batch = part_of(document, "batch")) {
    (*batch)["microbatches"] = 1;
    batch->erase("global_batch");
  }
  return ScenarioFlags::read(document, file);
}

}  // namespace

void set_schedule(nlohmann::json& document, const std::string& name) {
  nlohmann::json* schedule = part_of(document, "schedule");
  if (schedule == nullptr) return;
  for (const char* key : {"slices", "slicing", "slice_lengths"}) schedule->erase(key);
  (*schedule)["name"] = name;
}

std::int64_t default_granularity(std::int64_t tokens) {
  constexpr std::int64_t kGranules = 256;
  std::int64_t granularity = 1;
  while (granularity * kGranules < tokens) granularity *= 2;
  return granularity;
}

SliceCosts::SliceCosts(const nlohmann::json& document, const std::string& file, std::int64_t granularity, bool backward)
    : scenario_(as_cells(document, file)), backward_(backward) {
  if (scenario_->training.sequence_length < 1) {
    throw InputError(fmt::format("{}: /batch/sequence_length: required (--seq-length)", scenario_->source));
  }
  schedule_.emplace(make_schedule(*scenario_));
  costs_ = std::make_unique<ScenarioCosts>(*scenario_, *schedule_);
  tokens_ = scenario_->training.sequence_length;
  granularity_ = granularity > 0 ? granularity : default_granularity(tokens_);
  cells_ = schedule_->num_ranks();
  sequences_ = scenario_->shape.sequences;
}

SliceCosts::SliceCosts(const std::string& times_file, int cells, bool backward) : backward_(backward), cells_(cells) {
  SliceTimesTable table = read_slice_times(times_file);
  if (backward && !table.backward) {
    throw InputError(fmt::format("{}: /backward: required key is missing (--backward)", times_file));
  }
  if (!backward) table.backward.reset();
  table_ =
      SlicingProblem{.forward = std::move(table.forward), .backward = std::move(table.backward), .num_cells = cells};
  tokens_ = table_->forward.tokens;
  granularity_ = table_->forward.granularity;
}

SliceCosts::SliceCosts(const ChunkTimes& times, int cells, std::int64_t tokens, std::int64_t granularity)
    : backward_(false), tokens_(tokens > 0 ? tokens : times.longest), cells_(cells) {
  granularity_ = granularity > 0 ? granularity : default_granularity(tokens_);
  const auto time = [times](std::int64_t chunk, std::int64_t context) {
    return from_seconds(times.seconds(chunk, context), "time of a slice");
  };
  table_ = SlicingProblem{.forward = slice_times(tokens_, granularity_, time), .num_cells = cells};
}

SliceCosts::~SliceCosts() = default;

SlicingProblem SliceCosts::problem(int sequences) {
  if (table_) {
    if (sequences > 1) throw InputError("--joint: excludes --times: a table of times is for one number of sequences");
    return *table_;
  }
  times_.push_back(std::make_unique<StageTimes>(costs_->cost(), schedule_->num_stages(), costs_->stages(),
                                                SequenceCut{.tokens = tokens_,
                                                            .granularity = granularity_,
                                                            .sequences = sequences > 0 ? sequences : sequences_,
                                                            .forward_only = !backward_},
                                                parallel_for));
  SlicingProblem problem{.forward = times_.back()->slowest_forward(), .num_cells = cells_};
  if (backward_) problem.backward = times_.back()->slowest_backward();
  return problem;
}

Duration SliceCosts::latency(std::span<const std::int64_t> lengths) const {
  const SequenceCut cut{.tokens = tokens_, .sequences = sequences_, .forward_only = !backward_};
  std::vector<Duration> forward, backward;
  for (std::int64_t begin = 0; const std::int64_t length : lengths) {
    const SlowestTimes times = slowest_times(costs_->cost(), schedule_->num_stages(), cut, begin, begin + length);
    forward.push_back(times.forward);
    if (backward_) backward.push_back(times.backward);
    begin += length;
  }
  return pipeline_latency(forward, backward, cells_);
}

Duration SliceCosts::total_hop_latency() const {
  Duration sum{};
  if (!costs_) return sum;
  for (int rank = 0; rank + 1 < cells_; ++rank) {
    sum += from_seconds(costs_->cost().transfer(rank, rank + 1, 0).latency_s, "transfer latency");
  }
  return sum;
}

}  // namespace sluice::tools
