#include "tools/slice/slice_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"
#include "model/slicing/algorithm1.h"
#include "model/slicing/balanced.h"
#include "model/slicing/slice_times_file.h"
#include "sim/engine/parallel.h"
#include "sim/planner/slices_for_schedule.h"
#include "tools/command/assumptions.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/scenario_flags.h"
#include "tools/slice/slice_balance.h"
#include "tools/slice/slice_output.h"

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

// The fastest cut, which --equal-flops is compared with, has at least this many positions and fewer than twice as many.
constexpr int kFewestPositions = 256;
constexpr std::int64_t kMostChunkTokens = 1 << 30;

bool measures_chunks(const SliceRequest& request) { return request.times.ends_with(".csv"); }

// Returns the number of cells. Measured times replace a scenario: of its keys only this one, and for chunks the
// sequence length, are read.
int cells_of(const SliceRequest& request, const nlohmann::json& document) {
  const nlohmann::json keys = document.flatten();
  for (const auto& [pointer, value] : keys.items()) {
    if (value.empty() || pointer == "/schema" || pointer == "/parallelism/pp") continue;
    if (measures_chunks(request) && pointer == "/batch/sequence_length") continue;
    throw InputError(fmt::format("command line: {}: has no effect on the times of --times", pointer));
  }
  const nlohmann::json::json_pointer place("/parallelism/pp");
  if (!document.contains(place) || !document[place].is_number_integer())
    throw InputError("slice: --times needs --pp, the number of cells");
  const auto cells = document[place].get<std::int64_t>();
  if (cells < 1 || cells > kMaxRanks) {
    throw InputError(fmt::format("--pp: expected a whole number of cells from 1 to {}, got {}", kMaxRanks, cells));
  }
  return static_cast<int>(cells);
}

ChunkTimes chunk_times_of(const SliceRequest& request, int cells) {
  return fit_chunk_times(parse_chunks(read_file(request.times), request.times, cells), request.times);
}

SliceCosts costs_of(const SliceRequest& request, const nlohmann::json& document, std::int64_t granularity) {
  if (request.times.empty()) return SliceCosts(document, request.file, granularity, request.backward);
  const int cells = cells_of(request, document);
  if (!measures_chunks(request)) return SliceCosts(request.times, cells, request.backward);
  if (request.backward) throw InputError("slice: --backward: measured chunks have forwards alone");
  const nlohmann::json::json_pointer length("/batch/sequence_length");
  const bool given = document.contains(length) && document[length].is_number_integer();
  const std::int64_t tokens = given ? document[length].get<std::int64_t>() : 0;
  if (given && (tokens < 1 || tokens > kMostChunkTokens)) {
    throw InputError(fmt::format("--seq-length: expected 1 to {}, got {}", kMostChunkTokens, tokens));
  }
  return SliceCosts(chunk_times_of(request, cells), cells, tokens, granularity);
}

// Returns the largest FLOPs of the layers in these slices divided by the smallest, minus 1.
double flops_spread(const Model& model, const std::vector<std::int64_t>& lengths) {
  double least = std::numeric_limits<double>::max();
  double most = 0;
  for (std::int64_t context = 0; const std::int64_t length : lengths) {
    const double flops = slice_flops(model, length, context).forward();
    least = std::min(least, flops);
    most = std::max(most, flops);
    context += length;
  }
  return most / least - 1;
}

CutReport frame_of(const std::string& method, const SliceRequest& request, const SliceCosts& costs) {
  return {.method = method,
          .tokens = costs.tokens(),
          .granularity = costs.granularity(),
          .cells = costs.cells(),
          .sequences = costs.sequences(),
          .backward = request.backward,
          .hop_latency = costs.total_hop_latency(),
          .assumed = costs.scenario() == nullptr ? "" : assumed_times_line(*costs.scenario())};
}

// Computes the times of even slices and of no slicing, for comparison with the plan.
void compare(const SlicingProblem& problem, CutReport& report) {
  constexpr std::int64_t kMostEven = 512;
  const std::int64_t granularity = problem.forward.granularity;
  const std::int64_t most = std::min(problem.forward.granules(), kMostEven);
  report.best_even_time = Duration::max();
  for (std::int64_t count = 1; count <= most; ++count) {
    const Duration time = pipeline_latency(problem, even_slices(report.tokens, granularity, count));
    if (count == 1) report.whole = time;
    if (count == std::ssize(report.plan.lengths)) report.even = time;
    if (time >= report.best_even_time) continue;
    report.best_even_time = time;
    report.best_even = count;
  }
  if (std::ssize(report.plan.lengths) > most && std::ssize(report.plan.lengths) <= problem.forward.granules()) {
    report.even = pipeline_latency(problem, even_slices(report.tokens, granularity, std::ssize(report.plan.lengths)));
  }
}

SliceCut cut_of(const CutReport& report, const SliceCosts& costs, const nlohmann::json& document) {
  SliceCut cut{
      .table = cut_table(report), .json = cut_json(report), .lengths = report.plan.lengths, .assumed = report.assumed};
  if (costs.scenario() != nullptr) add_assumptions(cut.json, cut.table, {*costs.scenario(), document, kSlice});
  return cut;
}

SliceCut terapipe(const SliceRequest& request, const nlohmann::json& document) {
  SliceCosts costs = costs_of(request, document, request.granularity);
  SlicingProblem problem = costs.problem();
  const int slices = request.slices;
  const bool algorithm1 = request.algorithm1_ms >= 0;
  if (algorithm1 && (slices > 0 || request.max_slices > 0)) {
    throw InputError(
        "slice: --algorithm1 excludes --slices and --max-slices: Algorithm 1 has no limit on the number of slices");
  }
  if (slices > 0) problem.min_slices = problem.max_slices = slices;
  if (request.max_slices > 0) problem.max_slices = request.max_slices;
  CutReport report = frame_of(algorithm1 ? "algorithm1" : "terapipe", request, costs);
  report.proven = true;
  report.plan = algorithm1 ? algorithm1_slices(problem, from_seconds(request.algorithm1_ms / 1e3, "--algorithm1"))
                           : best_slices(problem);
  compare(problem, report);
  if (measures_chunks(request)) {
    report.chunks = chunk_times_of(request, costs.cells());
    if (report.chunks->one_size) {
      report.assumed = fmt::format(
          "{}: all chunks have one size, which does not tell what each costs whatever its size: "
          "none is assumed, and shorter chunks may be slower",
          request.times);
    }
  }
  return cut_of(report, costs, document);
}

// Cuts into slices of equal FLOPs, and compares their time with the fastest cut. That one is searched at a granularity
// with few positions: the time of each pair of positions is needed.
SliceCut balanced(const SliceRequest& request, const nlohmann::json& document) {
  const int slices = request.slices;
  if (slices == 0) throw InputError("slice: --equal-flops needs --slices, the number of slices");
  if (!request.times.empty()) throw InputError("slice: --equal-flops needs a model: it excludes --times");
  const nlohmann::json::json_pointer place("/batch/sequence_length");
  std::int64_t granularity = request.granularity;
  if (granularity == 0 && document.contains(place) && document[place].is_number_integer()) {
    granularity = balanced_multiple(document[place].get<std::int64_t>(), slices);
  }
  const SliceCosts fine = costs_of(request, document, granularity);
  if (!fine.scenario()->model) throw InputError("slice: --equal-flops needs a model (--model)");
  if (fine.tokens() % fine.granularity() != 0) {
    throw InputError(fmt::format("slice: --equal-flops: expected a granularity that divides {} tokens, got {}",
                                 fine.tokens(), fine.granularity()));
  }
  CutReport report = frame_of("balanced", request, fine);
  report.plan.lengths = balanced_slices(*fine.scenario()->model, fine.tokens(), slices, fine.granularity());
  report.plan.latency = fine.latency(report.plan.lengths);
  report.flops_spread = flops_spread(*fine.scenario()->model, report.plan.lengths);
  report.best_granularity = fine.granularity();
  const int positions = std::clamp(slices, kFewestPositions, 2 * kFewestPositions);
  while (fine.tokens() / (2 * report.best_granularity) >= positions) report.best_granularity *= 2;
  SliceCosts coarse = costs_of(request, document, report.best_granularity);
  const SlicingProblem problem = coarse.problem();
  report.plan.lower_bound = best_slices(problem).latency;
  report.proven = report.best_granularity == report.granularity;
  compare(problem, report);
  report.even = fine.latency(even_slices(fine.tokens(), fine.granularity(), slices));
  return cut_of(report, fine, document);
}

SliceCut joint(const SliceRequest& request, const nlohmann::json& document) {
  SliceCosts costs = costs_of(request, document, request.granularity);
  const int slices = request.slices;
  const auto problem_of = [&](int sequences) {
    SlicingProblem problem = costs.problem(sequences);
    if (slices > 0) problem.min_slices = problem.max_slices = slices;
    if (request.max_slices > 0) problem.max_slices = request.max_slices;
    return problem;
  };
  JointReport report{.frame = frame_of("joint", request, costs)};
  report.frame.sequences = request.joint;
  report.plan = best_joint_slices(request.joint, problem_of);
  report.together = best_slices(problem_of(request.joint)).latency;
  report.apart = request.joint * best_slices(problem_of(1)).latency;
  SliceCut cut{.table = joint_table(report), .json = joint_json(report), .assumed = report.frame.assumed};
  if (costs.scenario() != nullptr) add_assumptions(cut.json, cut.table, {*costs.scenario(), document, kSlice});
  return cut;
}

// Errors about the schedule name the flag that sets it.
ScheduleSlices slices_naming_for(const SlicesRequest& request) {
  try {
    return slices_for_schedule(request);
  } catch (const DoesNotFit&) {
    throw;
  } catch (const InputError& error) {
    const std::string what = error.what();
    const std::string place = request.scenario.source + ": /schedule/name";
    if (!what.starts_with(place)) throw;
    throw InputError("--for" + what.substr(place.size()));
  }
}

SliceCut for_schedule(const SliceRequest& request, nlohmann::json document) {
  if (!request.times.empty()) throw InputError("slice: --for needs a scenario: it excludes --times");
  const int slices = request.slices;
  set_schedule(document, request.schedule);
  SlicesRequest search{.scenario = ScenarioFlags::read(document, request.file), .slices = slices, .stop = request.stop};
  if (search.scenario.documents)
    throw InputError("slice: --for cuts sequences of one length: --lengths needs --balance");
  search.granularity =
      request.granularity > 0 ? request.granularity : default_granularity(search.scenario.training.sequence_length);
  if (request.max_slices > 0) search.max_slices = request.max_slices;
  if (request.time_budget_s >= 0) search.time_budget_s = request.time_budget_s;
  if (!names_file(search.scenario.schedule)) {
    search.scenario.schedule = find_family(search.scenario.schedule, "--for").name;
  }
  const ScheduleSlices found = slices_naming_for(search);
  SliceCut cut{.table = schedule_table(search, found),
               .json = schedule_json(search, found),
               .schedule = search.scenario.schedule,
               .feasible = found.best.has_value(),
               .assumed = assumed_times_line(search.scenario),
               .interrupted = found.interrupted};
  add_assumptions(cut.json, cut.table, {search.scenario, document});
  if (found.best) cut.lengths = found.candidates[*found.best].lengths;
  return cut;
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
  if (backward && scenario_->training.forward_only()) {
    throw InputError(fmt::format("{}: /schedule/forward_only: excludes --backward", scenario_->source));
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

SliceCut cut_slices(const SliceRequest& request, const nlohmann::json& document) {
  const auto refuse = [](bool given, const char* rule) {
    if (given) throw InputError(fmt::format("slice: {}", rule));
  };
  const bool algorithm1 = request.algorithm1_ms >= 0;
  refuse((request.schedule.empty() ? 0 : 1) + (algorithm1 ? 1 : 0) + (request.balanced ? 1 : 0) +
                 (request.joint > 0 ? 1 : 0) >
             1,
         "--for, --algorithm1, --equal-flops and --joint exclude each other");
  refuse(
      request.balance && (algorithm1 || request.balanced || request.joint > 0 || !request.times.empty() ||
                          request.backward || request.granularity > 0 || request.slices > 0 || request.max_slices > 0),
      "--balance takes --for, --time-budget and flags of the scenario alone");
  if (request.balance) return balance_batch(request, document);
  refuse(!request.schedule.empty() && request.backward,
         "--for excludes --backward: it always simulates forward and backward");
  refuse(request.balanced && request.max_slices > 0,
         "--equal-flops needs --slices, the number of slices, not --max-slices");
  refuse(request.schedule.empty() && request.time_budget_s >= 0, "--time-budget needs --for or --balance");
  refuse(!request.times.empty() && !measures_chunks(request) && request.granularity > 0,
         "--times excludes --granularity: the table has its own");
  refuse(!request.times.empty() && !request.file.empty(), "--times excludes a scenario file");
  if (!request.schedule.empty()) return for_schedule(request, document);
  if (request.balanced) return balanced(request, document);
  if (request.joint > 0) return joint(request, document);
  return terapipe(request, document);
}

}  // namespace sluice::tools
