#include "tools/slice_costs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "model/slicing/slice_times_file.h"
#include "sim/parallel.h"

namespace sluice::tools {
namespace {

// One microbatch of whole sequences, each stage on a rank of its own.
Scenario as_cells(nlohmann::json document, const std::string& file) {
  drop_slices(document);
  document["schedule"]["name"] = "terapipe";
  document["schedule"].erase("group");
  document["schedule"].erase("batches");
  if (document.contains("parallelism")) {
    document["parallelism"].erase("vpp");
    document["parallelism"].erase("layers_per_virtual_stage");
  }
  document["batch"]["microbatches"] = 1;
  document["batch"].erase("global_batch");
  return ScenarioFlags::read(document, file);
}

}  // namespace

int asked_slices(const ScenarioFlags& flags) {
  const nlohmann::json document = flags.document("");
  const nlohmann::json::json_pointer place("/schedule/slices");
  if (!document.contains(place) || !document[place].is_number_integer()) return 0;
  const auto slices = document[place].get<std::int64_t>();
  if (slices < 1 || slices > kMaxSlices) {
    throw InputError(fmt::format("--slices: expected 1 to {}, got {}", kMaxSlices, slices));
  }
  return static_cast<int>(slices);
}

void drop_slices(nlohmann::json& document) {
  if (!document.contains("schedule") || !document["schedule"].is_object()) return;
  for (const char* key : {"slices", "slicing", "slice_lengths"}) document["schedule"].erase(key);
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
    throw InputError(
        fmt::format("{}: /batch/sequence_length: required to cut a sequence (--seq-length)", scenario_->source));
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

SliceCosts::~SliceCosts() = default;

SlicingProblem SliceCosts::problem(int sequences) {
  if (table_) {
    if (sequences > 1) throw InputError("--joint: a table of times holds for one number of sequences: give a scenario");
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

Duration SliceCosts::hops() const {
  Duration sum{};
  if (!costs_) return sum;
  for (int rank = 0; rank + 1 < cells_; ++rank) {
    sum += from_seconds(costs_->cost().transfer(rank, rank + 1, 0).latency_s, "latency of a hop");
  }
  return sum;
}

}  // namespace sluice::tools
