#include "exec/checkpoint/saved_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr std::string_view kFirstMoment = ".exp_avg";
constexpr std::string_view kSecondMoment = ".exp_avg_sq";
constexpr const char* kOptimizerSteps = "optimizer_steps";

bool has_moments(const RunPlan& plan) { return plan.spec().optimizer.kind == OptimizerStep::Kind::adam; }

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;  // of a block, in memory at a time

// Bytes of a number in a checkpoint.
std::int64_t element_bytes(const RunPlan& plan) { return plan.checkpoint_precision() == Precision::float64 ? 8 : 4; }

std::string_view suffix_of(StatePart part) {
  switch (part) {
    case StatePart::weights: return "";
    case StatePart::first_moment: return kFirstMoment;
    case StatePart::second_moment: return kSecondMoment;
  }
  return "";
}

// Whether a checkpoint has this rank's blocks of experts, or of everything else. Other ranks hold copies of them.
bool saves(const RunLayout& layout, int world_rank, bool experts) {
  return experts ? layout.group_rank(world_rank) < layout.expert : layout.data_rank(world_rank) == 0;
}

// Calls `visit(chunk, parameter, part)` for all blocks of a rank that a checkpoint has.
template <typename Visit>
void for_each_block(const RunPlan& plan, int world_rank, const Visit& visit) {
  const RunLayout& layout = plan.layout();
  int chunk = 0;
  for (const int stage : plan.schedule().stages_of(layout.pipeline_rank(world_rank))) {
    for (const Parameter& parameter : plan.stage(layout.group_rank(world_rank), stage).parameters()) {
      if (parameter.size() == 0) continue;  // only padding
      if (!saves(layout, world_rank, parameter.expert)) continue;
      visit(chunk, parameter, StatePart::weights);
      if (!has_moments(plan)) continue;
      visit(chunk, parameter, StatePart::first_moment);
      visit(chunk, parameter, StatePart::second_moment);
    }
    ++chunk;
  }
}

// Calls `visit(world rank)` for the ranks of the first replica, and of the first expert group.
template <typename Visit>
void for_each_holder(const RunLayout& layout, const Visit& visit) {
  for (int rank = 0; rank < layout.size(); ++rank) {
    if (saves(layout, rank, false) || saves(layout, rank, true)) visit(rank);
  }
}

// Tells all ranks whether the root has failed. Throws SharedError with the text of its error.
void agree(Transport& transport, const std::exception_ptr& failure,
           const std::function<void(const std::string& error)>& report) {
  std::array<char, 1024> text{};
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      const std::string_view what = *error.what() == '\0' ? "unknown error" : error.what();
      std::copy_n(what.begin(), std::min(what.size(), text.size() - 1), text.begin());
      if (report) report(text.data());
    }
  }
  transport.broadcast(std::as_writable_bytes(std::span(text)));
  if (text[0] != '\0') throw SharedError(text.data());
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
                const std::string& data, const std::function<void(const std::string& error)>& report) {
  const bool root = transport.rank() == Transport::kRoot;
  CheckpointMetadata metadata = run_metadata(plan, data);
  metadata[kOptimizerSteps] = std::to_string(worker.steps_done());
  CheckpointWriter writer(plan.spec().model.name, step, std::move(metadata));
  // An error of the root is kept until the others can be told: they may be sending.
  std::exception_ptr failure;
  const auto on_root = [&](const auto& act) {
    if (!root || failure) return;
    try {
      act();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  on_root([&] {
    for_each_holder(plan.layout(), [&](int rank) {
      for_each_block(plan, rank, [&](int, const Parameter& parameter, StatePart part) {
        writer.declare(parameter, suffix_of(part), plan.checkpoint_precision());
      });
    });
    writer.open(path);
  });
  agree(transport, failure, report);

  const std::int64_t element = element_bytes(plan);
  std::vector<std::byte> buffer(to_size(kPieceBytes));
  for_each_holder(plan.layout(), [&](int rank) {
    const bool mine = rank == transport.rank();
    if (!mine && !root) return;
    for_each_block(plan, rank, [&](int chunk, const Parameter& parameter, StatePart part) {
      const std::int64_t bytes = parameter.size() * element;
      for (std::int64_t first = 0; first < bytes; first += kPieceBytes) {
        const std::span piece(buffer.data(), to_size(std::min(kPieceBytes, bytes - first)));
        if (mine) worker.read_state(chunk, part, parameter.offset * element + first, piece);
        if (mine && !root) transport.send(Transport::kRoot, piece);
        if (!mine) transport.receive(rank, piece);
        on_root([&] { writer.add(parameter, suffix_of(part), first, piece); });
      }
    });
  });
  on_root([&] { writer.commit(); });
  agree(transport, failure, report);
}

void load_state(Worker& worker, const RunPlan& plan, const CheckpointReader& checkpoint) {
  const Precision precision = plan.checkpoint_precision();
  const std::int64_t element = element_bytes(plan);
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
