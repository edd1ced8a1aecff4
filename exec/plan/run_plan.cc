#include "exec/plan/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "exec/plan/message_order.h"
#include "exec/plan/packing.h"
#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/scenario/costs.h"

namespace sluice::exec {
namespace {

// Assigns consecutive aligned offsets.
class Places {
 public:
  std::int64_t next(std::int64_t bytes) {
    const std::int64_t at = end_;
    end_ += aligned(bytes);
    return at;
  }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = 0;
};

}  // namespace

RunPlan::RunPlan(RunSpec spec, Schedule schedule) : spec_(std::move(spec)), schedule_(std::move(schedule)) {
  layout_ = {.pipeline = schedule_.num_ranks(),
             .data = spec_.data_parallel,
             .tensor = spec_.tensor_parallel,
             .expert = spec_.expert_parallel};
  if (layout_.expert > 1 && !has_experts()) {
    throw InputError(
        fmt::format("{}: expert-parallel size {}, but there are no experts", spec_.model.name, layout_.expert));
  }
  if (layout_.data * layout_.tensor % layout_.expert != 0) {
    throw InputError(
        fmt::format("{}: expert-parallel size {}, expected a divisor of {}, the product of the data- and "
                    "tensor-parallel sizes",
                    spec_.model.name, layout_.expert, layout_.data * layout_.tensor));
  }
  refuse_vocabulary(schedule_, "runs do not split embedding and output layer over pipeline ranks");
  for (const MicrobatchShape& shape : schedule_.shapes()) {
    const bool differs = sequence_length_ > 0 && shape.tokens() != sequence_length_;
    if (on_devices() && (differs || !shape.documents.empty() || shape.forward_only)) {
      throw InputError(
          "microbatches of documents of different length and without a backward run on CPUs alone (--backend cpu)");
    }
    sequence_length_ = std::max(sequence_length_, shape.tokens());
    positions_ = std::max(positions_, shape.documents.empty()
                                          ? shape.tokens()
                                          : *std::max_element(shape.documents.begin(), shape.documents.end()));
  }
  const int microbatches = schedule_.num_microbatches();
  for (int mb = 0; mb < schedule_.total_microbatches(); ++mb) {
    const MicrobatchShape& shape = schedule_.shape(mb);
    const MicrobatchShape& of_first_batch = schedule_.shape(mb % microbatches);
    if (mb < microbatches) {
      first_sequences_.push_back(sequences_per_replica_);
      sequences_per_replica_ += shape.sequences;
      tokens_of_.push_back(counts(shape) ? shape.sequences * shape.tokens() * layout_.data : 0);
    } else if (shape.sequences != of_first_batch.sequences || shape.tokens() != of_first_batch.tokens()) {
      throw InputError("batches with different numbers of sequences or tokens: expected equal batches");
    }
  }
  sequences_per_batch_ = sequences_per_replica_ * layout_.data;
  if (spec_.model.positions > 0 && positions_ > spec_.model.positions) {
    throw InputError(fmt::format("{}: {} learned positions, expected at least {}, the sequence length",
                                 spec_.model.name, spec_.model.positions, positions_));
  }
  if (spec_.precision == Precision::float16 && schedule_.weight_policy() != WeightPolicy::flush) {
    throw InputError(
        "float16 detects overflows by the global gradient norm, which a schedule without a flush does not compute: "
        "use bfloat16");
  }
  make_stages();
  footprint_ = std::make_unique<StageFootprint>(stages_[0]);
  LoweringOptions options{.footprint = footprint_.get()};
  // Gradients of experts are reduced over other ranks than the others, in the same collective.
  options.data_parallel =
      has_experts() ? std::max(layout_.data, layout_.data * layout_.tensor / layout_.expert) : layout_.data;
  options.overlap_grad_reduce = spec_.overlap_grad_reduce;
  options.tied_embedding = spec_.model.tied_embeddings;
  options.global_norm = spec_.clip_gradients > 0 || spec_.precision == Precision::float16;
  options.recompute = spec_.recompute;
  graph_ = std::make_unique<OpGraph>(lower(schedule_, options));
  ranks_ = plan_ranks(*graph_);
  for (RankPlan& rank : ranks_) {
    for (PlannedStep& step : rank.steps) step.woven = is_woven(step);
  }
  if (on_devices()) check_message_order(*graph_, ranks_);
  for (const RankPlan& rank : ranks_) {
    arenas_.push_back(plan_arena(rank));
    const auto held = schedule_.stages_of(rank.rank);
    std::int64_t kept = 0;
    for (std::size_t chunk = 0; chunk < held.size(); ++chunk) {
      const StageMemory memory = stages_[0][held[chunk]]->memory();
      kept += aligned(memory.weights) * rank.weight_versions[chunk] +
              aligned(memory.gradients) * rank.gradient_buffers[chunk] + aligned(memory.optimizer_state);
    }
    for (std::size_t chunk = 0; chunk < held.size(); ++chunk) {
      footprint_->set_rank(held[chunk], rank.gradient_buffers[chunk], arenas_.back().standing_bytes - kept);
    }
  }
  graph_->refill(footprint_.get());
}

RunPlan::RunPlan(const RunSpec& spec, const std::vector<Schedule>& replicas) : RunPlan(spec, replicas.front()) {
  if (replicas.size() == 1) return;
  if (has_experts() && layout_.tensor % layout_.expert != 0) {
    throw InputError(
        fmt::format("expert groups over replicas with documents of their own: expected an expert-parallel size that "
                    "divides the tensor-parallel size {}, got {}",
                    layout_.tensor, layout_.expert));
  }
  own_microbatches_ = true;
  std::fill(tokens_of_.begin(), tokens_of_.end(), 0);
  for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
    if (replica > 0) others_.push_back(std::make_unique<RunPlan>(spec, replicas[replica]));
    const RunPlan& one = replica > 0 ? *others_.back() : *this;
    if (on_devices() && one.sequence_length_ != sequence_length_) {
      throw InputError("replicas with documents of different length run on CPUs alone (--backend cpu)");
    }
    sequence_length_ = std::max(sequence_length_, one.sequence_length_);
    for (std::size_t mb = 0; mb < tokens_of_.size(); ++mb) {
      const MicrobatchShape& shape = replicas[replica].shape(static_cast<int>(mb));
      if (counts(shape)) tokens_of_[mb] += shape.sequences * shape.tokens();
    }
  }
  for (const auto& other : others_) {
    other->own_microbatches_ = true;
    other->sequence_length_ = sequence_length_;
    other->tokens_of_ = tokens_of_;
  }
}

void RunPlan::make_stages() {
  if (spec_.model.mtp_layers > 0) throw InputError("the kernels do not support multi-token prediction");
  contents_ =
      split_stages(spec_.model, schedule_, spec_.stage_layers, spec_.first_stage_layers, spec_.last_stage_layers);
  const int variants = has_experts() ? layout_.data * layout_.tensor : layout_.tensor;
  for (int variant = 0; variant < variants; ++variant) {
    auto& stages = stages_.emplace_back();
    int first_layer = 0;
    for (const StageContents& contents : contents_) {
      const StageSpec spec{.model = spec_.model,
                           .contents = contents,
                           .first_layer = first_layer,
                           .tensor_parallel = layout_.tensor,
                           .tensor_rank = variant % layout_.tensor,
                           .data_rank = variant / layout_.tensor,
                           .expert_parallel = layout_.expert,
                           .recompute = spec_.recompute,
                           .sliced = schedule_.sliced(),
                           .attention = spec_.attention};
      stages.push_back(on_devices() ? spec_.kernels->make_stage(spec, spec_.precision)
                                    : make_cpu_stage(spec, spec_.precision));
      first_layer += contents.layers;
    }
  }
}

// The ops of one microbatch may need each other's results.
bool RunPlan::is_woven(const PlannedStep& step) const {
  if (layout_.expert == 1 || spec_.weave.order.empty()) return false;
  if (step.kind != PlannedStep::Kind::op || step.num_ops < 2 || step.recomputes) return false;
  const auto has_expert_layers = [&](const OpPlan& op) { return contents_[op.op.stage].expert_layers > 0; };
  return step.ops[0].op.microbatch != step.ops[1].op.microbatch &&
         std::any_of(step.ops.begin(), step.ops.end(), has_expert_layers);
}

ArenaPlan RunPlan::plan_arena(const RankPlan& rank) const {
  ArenaPlan plan;
  Places places;
  const auto held = schedule_.stages_of(rank.rank);
  std::int64_t scratch = 0;
  std::int64_t rows = 0;
  std::int64_t tables = 0;
  for (std::size_t chunk = 0; chunk < held.size(); ++chunk) {
    const Stage& stage = *stages_[0][held[chunk]];
    const StageMemory memory = stage.memory();
    auto& weights = plan.weights.emplace_back();
    for (int i = 0; i < rank.weight_versions[chunk]; ++i) weights.push_back(places.next(memory.weights));
    auto& gradients = plan.gradients.emplace_back();
    for (int i = 0; i < rank.gradient_buffers[chunk]; ++i) gradients.push_back(places.next(memory.gradients));
    plan.optimizer_states.push_back(places.next(memory.optimizer_state));
    tables = std::max(tables, stage.table_bytes(sequence_length_));
    for (const MicrobatchShape& shape : schedule_.shapes()) {
      for (int slice = 0; slice < shape.num_slices(); ++slice) {
        const SliceShape of_slice = slice_shape(shape, slice);
        scratch = std::max(scratch, stage.scratch_bytes(of_slice));
        rows = std::max(rows, of_slice.rows());
      }
    }
  }
  plan.scratch = places.next(scratch);
  if (on_devices()) rows = sequences_per_replica_ * sequence_length_ * batches();
  plan.tokens = places.next(rows * static_cast<std::int64_t>(sizeof(std::int32_t)));
  plan.targets = places.next(rows * static_cast<std::int64_t>(sizeof(std::int32_t)));
  if (rank.has_woven_blocks()) {
    // The tokens of all units are on a device.
    plan.second_op = places.next(on_devices() ? scratch : places.end() - plan.scratch) - plan.scratch;
  }
  plan.tables = places.next(tables);
  plan.buffers.resize(rank.buffer_bytes.size());
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (rank.buffer_receives[i] == 0) plan.buffers[i] = places.next(rank.buffer_bytes[i]);
  }
  plan.standing_bytes = places.end();
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (rank.buffer_receives[i] != 0) plan.buffers[i] = places.next(rank.buffer_bytes[i]);
  }
  plan.blocks = places.next(rank.blocks_bytes);
  plan.total_bytes = places.end();
  return plan;
}

int RunPlan::steps_per_run() const {
  return schedule_.weight_policy() == WeightPolicy::stashed ? schedule_.total_microbatches() : batches();
}

double RunPlan::tokens_per_step(int microbatch) const {
  if (schedule_.weight_policy() != WeightPolicy::stashed) return tokens_per_batch();
  return static_cast<double>(tokens_of_[microbatch % schedule_.num_microbatches()]);
}

double RunPlan::tokens_per_batch() const {
  return static_cast<double>(std::accumulate(tokens_of_.begin(), tokens_of_.end(), std::int64_t{0}));
}

int RunPlan::first_sequence(int microbatch, int data_rank) const {
  const int of_batch = microbatch % schedule_.num_microbatches();
  if (own_microbatches_)
    return first_sequences_[of_batch] * layout_.data + data_rank * schedule_.shape(of_batch).sequences;
  return data_rank * sequences_per_replica_ + first_sequences_[of_batch];
}

}  // namespace sluice::exec
