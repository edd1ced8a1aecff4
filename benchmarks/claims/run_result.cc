#include "benchmarks/claims/run_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "sim/planner/terapipe_cut.h"
#include "model/errors.h"
#include "model/scenario/setup.h"
#include "sim/engine/parallel.h"
#include "sim/engine/predict.h"

namespace sluice::bench::claims {
namespace {

std::string source_of(const Claim& claim, std::size_t run) {
  return fmt::format("{}: run \"{}\"", claim.file, claim.runs[run].name);
}

Scenario read(const Json& document, const Claim& claim, std::size_t run) {
  return scenario_from_json(document, source_of(claim, run), std::filesystem::path(claim.file).parent_path().string());
}

std::size_t count_combinations(const Run& run) {
  std::size_t count = 1;
  for (const auto& choices : run.fastest_of) count *= choices.size();
  return count;
}

// The scenario of one combination; the last list varies fastest.
Json combined(const Claim& claim, const Run& run, std::size_t combination) {
  Json out = claim.scenario;
  out.merge_patch(run.changes);
  std::vector<const Json*> chosen;
  for (auto choices = run.fastest_of.rbegin(); choices != run.fastest_of.rend(); ++choices) {
    chosen.push_back(&(*choices)[combination % choices->size()]);
    combination /= choices->size();
  }
  for (auto change = chosen.rbegin(); change != chosen.rend(); ++change) out.merge_patch(**change);
  return out;
}

double op_seconds(const Setup& setup, OpKind kind, int stage, int slice) {
  const MicrobatchShape& shape = setup.schedule().shape(0);
  const double again = kind == OpKind::B ? setup.cost().recompute_s(stage, shape, slice) : 0;
  return again + setup.cost().compute_s(kind, stage, shape, slice);
}

double formula_of(const Setup& setup) {
  double slowest = 0;
  for (int stage = 0; stage < setup.schedule().num_stages(); ++stage) {
    double both = 0;
    for (int slice = 0; slice < setup.schedule().shape(0).num_slices(); ++slice) {
      both += op_seconds(setup, OpKind::F, stage, slice) + op_seconds(setup, OpKind::B, stage, slice);
    }
    slowest = std::max(slowest, both);
  }
  return (setup.schedule().num_microbatches() + setup.schedule().num_ranks() - 1) * slowest;
}

double bytes_between_ranks(const Setup& setup) {
  const OpGraph& graph = setup.graph();
  double bytes = 0;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind == VertexKind::transfer) bytes += static_cast<double>(graph.transfer_bytes(graph[v]));
  }
  // Each tensor rank of each replica sends the same number of bytes.
  const Training& training = setup.scenario().training;
  return bytes * training.tp * training.cp * training.dp / setup.schedule().num_batches();
}

RunResult run_one(const Json& document, const Claim& claim, std::size_t run) {
  const Setup setup(read(document, claim, run));
  const Prediction prediction = predict(setup);
  const Training& training = setup.scenario().training;
  const MicrobatchShape& shape = setup.schedule().shape(0);
  RunResult out{.scenario = document, .slices = shape.slice_lengths};
  out.iteration_s = to_seconds(prediction.iteration);
  out.tokens_per_s = prediction.throughput.tokens_per_s;
  out.model_tflops = prediction.throughput.model_tflops_per_device;
  out.hardware_tflops = prediction.throughput.hardware_tflops_per_device;
  out.devices = static_cast<double>(training.world_size());
  const double sequences = 1.0 * shape.sequences * setup.schedule().num_microbatches() * training.dp;
  out.rate = (out.tokens_per_s > 0 ? out.tokens_per_s : sequences / out.iteration_s) / out.devices;
  for (const RankMemory& rank : prediction.memory) out.peak_bytes = std::max(out.peak_bytes, rank.peak_bytes);
  out.transfer_bytes = bytes_between_ranks(setup);
  out.formula_s = formula_of(setup);
  if (prediction.fit) out.fits = prediction.fit->fits;
  return out;
}

// Applies TeraPipe's optimal slices to the scenario if the run requests them.
void cut(Json& document, const Claim& claim, std::size_t run) {
  const std::int64_t granularity = claim.runs[run].cut_granularity;
  if (granularity == 0) return;
  const Scenario scenario = read(document, claim, run);
  if (!scenario.model || scenario.training.sequence_length == 0) {
    throw InputError(source_of(claim, run) + ": cut requires a model and a sequence length");
  }
  if (granularity > scenario.training.sequence_length) {
    throw InputError(fmt::format("{}: /cut/granularity: expected at most the sequence's {} tokens, got {}",
                                 source_of(claim, run), scenario.training.sequence_length, granularity));
  }
  document["schedule"] = {{"name", scenario.schedule}, {"slice_lengths", sim::terapipe_cut(Setup(scenario), granularity)}};
}

bool better(const RunResult& a, const RunResult& b) {
  const bool a_fits = a.fits.value_or(true);
  const bool b_fits = b.fits.value_or(true);
  return a_fits != b_fits ? a_fits : a.rate > b.rate;
}

}  // namespace

std::vector<std::vector<RunResult>> run_all(std::span<const Claim> claims) {
  struct Task {
    std::size_t claim, run, combination;
  };
  std::vector<Task> tasks;
  for (std::size_t c = 0; c < claims.size(); ++c) {
    for (std::size_t r = 0; r < claims[c].runs.size(); ++r) {
      for (std::size_t i = 0; i < count_combinations(claims[c].runs[r]); ++i) tasks.push_back({c, r, i});
    }
  }
  std::vector<RunResult> results(tasks.size());
  parallel_for(std::ssize(tasks), [&](std::int64_t i) {
    const Task& task = tasks[i];
    const Claim& claim = claims[task.claim];
    Json document = combined(claim, claim.runs[task.run], task.combination);
    cut(document, claim, task.run);
    results[i] = run_one(document, claim, task.run);
  });
  std::vector<std::vector<RunResult>> out(claims.size());
  for (std::size_t c = 0; c < claims.size(); ++c) out[c].resize(claims[c].runs.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    RunResult& best = out[tasks[i].claim][tasks[i].run];
    const int tried = static_cast<int>(tasks[i].combination) + 1;
    if (tried == 1 || better(results[i], best)) best = std::move(results[i]);
    best.combinations = tried;
  }
  return out;
}

double op_seconds(const Claim& claim, std::size_t run, const RunResult& result, const Op& op) {
  const Setup setup(read(result.scenario, claim, run));
  const auto check = [&](int value, int count, const char* what) {
    if (value < count) return;
    throw InputError(fmt::format("{}: op: expected one of {} {}, counted from 0, got {}", source_of(claim, run), count,
                                 what, value));
  };
  check(op.stage, setup.schedule().num_stages(), "stages");
  check(op.slice, setup.schedule().shape(0).num_slices(), "slices");
  return op_seconds(setup, op.kind == "F" ? OpKind::F : OpKind::B, op.stage, op.slice);
}

}  // namespace sluice::bench::claims
