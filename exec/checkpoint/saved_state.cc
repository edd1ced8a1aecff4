#include "exec/checkpoint/saved_state.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr std::string_view kFirstMoment = ".exp_avg";
constexpr std::string_view kSecondMoment = ".exp_avg_sq";
constexpr const char* kOptimizerSteps = "optimizer_steps";

bool has_moments(const RunPlan& plan) { return plan.spec().optimizer.kind == OptimizerStep::Kind::adam; }

// Returns the state of one worker for the root: weights and then optimizer state of each chunk.
std::vector<std::byte> state_of(Worker& worker, const RunPlan& plan) {
  std::vector<std::byte> state;
  const auto chunks = static_cast<int>(plan.schedule().stages_of(worker.pipeline_rank()).size());
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const ChunkState of = worker.state(chunk);
    state.insert(state.end(), of.weights.begin(), of.weights.end());
    state.insert(state.end(), of.optimizer_state.begin(), of.optimizer_state.end());
  }
  return state;
}

}  // namespace

CheckpointMetadata run_metadata(const RunPlan& plan, const std::string& data) {
  const RunSpec& spec = plan.spec();
  return {{"seed", std::to_string(spec.seed)},
          {"optimizer", has_moments(plan) ? "adam" : "sgd"},
          {"data", data},
          {"sequence_length", std::to_string(plan.sequence_length())},
          {"sequences_per_step", std::to_string(plan.sequences_per_batch())}};
}

void save_state(Worker& worker, Transport& transport, const RunPlan& plan, const std::string& path, std::int64_t step,
                const std::string& data) {
  const RunLayout& layout = plan.layout();
  const bool holds = layout.data_rank(transport.rank()) == 0;
  const auto all = transport.gather(holds ? state_of(worker, plan) : std::vector<std::byte>());
  if (transport.rank() != Transport::kRoot) return;
  CheckpointMetadata metadata = run_metadata(plan, data);
  metadata[kOptimizerSteps] = std::to_string(worker.steps_done());
  CheckpointWriter writer(plan.spec().model.name, step, std::move(metadata));
  const Precision precision = plan.checkpoint_precision();
  const std::int64_t element = precision == Precision::float64 ? 8 : 4;
  for (int rank = 0; rank < layout.size(); ++rank) {
    if (layout.data_rank(rank) != 0) continue;
    const std::byte* at = all[rank].data();
    for (const int stage : plan.schedule().stages_of(layout.pipeline_rank(rank))) {
      const Stage& of = plan.stage(layout.tensor_rank(rank), stage);
      const std::int64_t bytes = of.memory().weights / plan.element_bytes() * element;
      const std::byte* const moments = at + bytes;
      for (const Parameter& parameter : of.parameters()) {
        if (parameter.size() == 0) continue;  // only padding
        writer.add(parameter, "", precision, at + parameter.offset * element);
        if (!has_moments(plan)) continue;
        writer.add(parameter, kFirstMoment, precision, moments + parameter.offset * element);
        writer.add(parameter, kSecondMoment, precision, moments + bytes + parameter.offset * element);
      }
      at += 3 * bytes;
    }
  }
  writer.write(path);
}

void load_state(Worker& worker, const RunPlan& plan, const CheckpointReader& checkpoint) {
  const Precision precision = plan.checkpoint_precision();
  const std::int64_t element = precision == Precision::float64 ? 8 : 4;
  worker.set_steps_done(std::stoll(checkpoint.metadata().at(kOptimizerSteps)));
  const auto chunks = static_cast<int>(plan.schedule().stages_of(worker.pipeline_rank()).size());
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Stage& stage = worker.stage_of(chunk);
    const std::int64_t bytes = stage.memory().weights / plan.element_bytes() * element;
    ChunkState state{std::vector<std::byte>(to_size(bytes)), std::vector<std::byte>(to_size(2 * bytes))};
    for (const Parameter& parameter : stage.parameters()) {
      if (parameter.size() == 0) continue;
      const std::int64_t at = parameter.offset * element;
      checkpoint.read(parameter, "", precision, state.weights.data() + at);
      if (!has_moments(plan)) continue;
      checkpoint.read(parameter, kFirstMoment, precision, state.optimizer_state.data() + at);
      checkpoint.read(parameter, kSecondMoment, precision, state.optimizer_state.data() + bytes + at);
    }
    worker.set_state(chunk, state);
  }
}

void check_resumes(const CheckpointReader& checkpoint, const RunPlan& plan, const std::string& data) {
  CheckpointMetadata expected = run_metadata(plan, data);
  expected["model"] = plan.spec().model.name;
  for (const auto& [key, value] : expected) {
    const auto found = checkpoint.metadata().find(key);
    const std::string has = found == checkpoint.metadata().end() ? "" : found->second;
    if (has == value) continue;
    throw InputError(
        fmt::format("{}: was written by a run with {} '{}', this run has '{}'", checkpoint.path(), key, has, value));
  }
  const auto steps = checkpoint.metadata().find(kOptimizerSteps);
  if (steps == checkpoint.metadata().end() || steps->second.find_first_not_of("0123456789") != std::string::npos ||
      steps->second.empty() || steps->second.size() > 18) {
    throw InputError(fmt::format("{}: metadata has no {}", checkpoint.path(), kOptimizerSteps));
  }
}

}  // namespace sluice::exec
