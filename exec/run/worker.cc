#include "exec/run/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <thread>

#include "exec/run/device_worker.h"
#include "exec/run/host_worker.h"
#include "exec/run/op_outcome.h"
#include "exec/steady_clock.h"
#include "exec/watch/failure.h"
#include "model/to_size.h"

namespace sluice::exec {
Worker::Worker(const RunPlan& plan, int world_rank, const WorkerServices& services)
    : plan_(plan),
      world_rank_(world_rank),
      pipeline_rank_(plan.layout().pipeline_rank(world_rank)),
      data_rank_(plan.layout().data_rank(world_rank)),
      tensor_rank_(plan.layout().tensor_rank(world_rank)),
      rank_(plan.rank(pipeline_rank_)),
      arena_plan_(plan.arena(pipeline_rank_)),
      services_(services),
      unit_losses_(to_size(plan.schedule().num_units()), 0.0),
      losses_(to_size(plan.batches()), 0.0),
      starts_(plan.graph().size(), 0),
      ends_(plan.graph().size(), 0) {
  make_programs();
}

void Worker::make_programs() {
  program_of_.assign(rank_.steps.size(), kNone);
  std::map<std::array<int, 4>, int> known;  // by stages and kinds of both ops
  for (std::size_t i = 0; i < rank_.steps.size(); ++i) {
    const PlannedStep& step = rank_.steps[i];
    if (!step.woven) continue;
    const auto& [first, second] = step.ops;
    const auto block_op = [&](const OpPlan& op) { return BlockOp{op.op.op, plan_.contents()[op.op.stage]}; };
    const auto [found, added] = known.try_emplace(
        {first.op.stage, static_cast<int>(first.op.op), second.op.stage, static_cast<int>(second.op.op)},
        static_cast<int>(programs_.size()));
    if (added) programs_.push_back(woven_steps(plan_.spec().weave, {block_op(first), block_op(second)}));
    program_of_[i] = found->second;
  }
}

std::span<const WovenStep> Worker::program_of(std::size_t step) const {
  return program_of_[step] == kNone ? std::span<const WovenStep>() : programs_[to_size(program_of_[step])];
}

const Stage& Worker::stage_of(int chunk) const {
  return plan_.stage(plan_.layout().group_rank(world_rank_), plan_.schedule().stages_of(pipeline_rank_)[chunk]);
}

std::byte* Worker::weights(int chunk, std::int64_t version) const {
  const auto& buffers = arena_plan_.weights[chunk];
  const auto count = static_cast<std::int64_t>(buffers.size());
  return arena_ + buffers[(version % count + count) % count];
}

std::byte* Worker::gradients(int chunk, int buffer) const { return arena_ + arena_plan_.gradients[chunk][buffer]; }

SliceCall Worker::slice_call(const OpPlan& op, int place) const {
  const Schedule& schedule = plan_.schedule();
  const Stage& stage = stage_of(op.chunk);
  const MicrobatchShape& shape = schedule.shape(op.op.microbatch);
  const bool forward = op.op.op == OpKind::F;
  SliceCall call;
  call.shape = slice_shape(shape, op.op.slice);
  const std::int64_t version = version_base_ + op.weight_version;
  call.weights = weights(op.chunk, version);
  call.gradients = forward ? nullptr : gradients(op.chunk, op.gradient_buffer);
  if (stage.spec().head_is_embedding()) {
    // Chunk 0 has the embedding: stages are listed in model order.
    const std::int64_t element = word_embedding_offset(stage_of(0));
    call.embedding = weights(0, version) + element * plan_.element_bytes();
    if (!forward) {
      call.embedding_gradient =
          gradients(0, op.chunk == 0 ? op.gradient_buffer : 0) + element * plan_.gradient_element_bytes();
    }
  }
  call.scratch = arena_ + arena_plan_.scratch + place * arena_plan_.second_op;

  std::byte* const blocks = arena_ + arena_plan_.blocks;
  const std::int64_t units = schedule.num_units();
  const UnitBlocks& own = rank_.blocks_of(op.chunk, op.unit, units);
  call.to_input_gradient = blocks + own.to_input_gradient;
  call.to_weight_gradient = blocks + own.to_weight_gradient;
  if (op.op.op == OpKind::I || op.op.op == OpKind::W) call.output_gradients = blocks + own.output_gradients;
  const UnitBlocks& first = rank_.blocks_of(op.chunk, op.unit - op.op.slice, units);
  call.keys_values = blocks + first.keys_values;
  if (op.op.op == OpKind::B || op.op.op == OpKind::I) call.keys_values_gradient = blocks + first.keys_values_gradient;
  call.sequence_tokens = shape.tokens();
  const std::byte* const in = op.input_buffer == kNone ? nullptr : buffer(op.input_buffer);
  std::byte* const out = op.output_buffer == kNone ? nullptr : buffer(op.output_buffer);
  (forward ? call.input : call.output_gradient) = in;
  (forward ? call.output : call.input_gradient) = out;
  call.loss_scale = 1.0 / plan_.tokens_per_step(op.op.microbatch);
  return call;
}

std::int64_t Worker::keys_gradient_bytes(const OpPlan& op) const {
  return plan_.graph().slice_bytes(op.op.stage, op.op.microbatch, 0).keys_values_gradient;
}

bool Worker::begins_backward(const OpPlan& op) const {
  return (op.op.op == OpKind::B || op.op.op == OpKind::I) &&
         op.op.slice + 1 == plan_.schedule().shape(op.op.microbatch).num_slices();
}

bool Worker::needs_tokens(const OpPlan& op) const {
  const StageContents& contents = stage_of(op.chunk).spec().contents;
  return op.op.op != OpKind::W && (contents.embedding || (contents.head && op.op.op == OpKind::F));
}

OptimizerStep Worker::update_of(const PlannedStep& step, std::span<const double> learning_rates) const {
  OptimizerStep update = plan_.spec().optimizer;
  update.learning_rate = learning_rates[step.step];
  update.number = version_base_ + step.step + 1;
  return update;
}

void Worker::doing(WorkerThread thread, Activity activity, VertexId vertex, VertexId waits_for) {
  if (services_.recorder == nullptr) return;
  services_.recorder->doing(thread, activity, static_cast<int>(first_step_), vertex, waits_for);
}

FaultAction Worker::fault_at(VertexId vertex) const {
  if (services_.faults == nullptr || services_.faults->empty()) return {};
  return services_.faults->at(world_rank_, static_cast<int>(first_step_), vertex);
}

FaultAction Worker::inject(VertexId vertex, const Transport& transport, const std::function<void()>& meanwhile) const {
  const FaultAction action = fault_at(vertex);
  if (action.kill) services_.faults->kill(world_rank_, static_cast<int>(first_step_), vertex);
  const std::int64_t until = action.stop ? std::numeric_limits<std::int64_t>::max() : now_ns() + action.delay.count();
  while (now_ns() < until && (action.stop || action.delay.count() > 0)) {
    if (transport.stopped()) throw Stopped("stopped");
    if (meanwhile) meanwhile();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return action;
}

void Worker::fail_not_finite(VertexId vertex, int microbatch) const {
  throw RunFailure(
      FailureKind::non_finite, world_rank_,
      fmt::format("{} of step {} on rank {} produced a value that is not finite", plan_.graph().name(vertex),
                  first_step_ + 1 + microbatch / plan_.schedule().num_microbatches(), world_rank_));
}

void Worker::fail_gradients(VertexId vertex) const {
  throw RunFailure(FailureKind::non_finite, world_rank_,
                   fmt::format("the gradients of rank {} are not finite in step {}, before {}", world_rank_,
                               first_step_ + 1, plan_.graph().name(vertex)));
}

bool Worker::optimizer_reads_first() const {
  return std::none_of(rank_.collectives.begin(), rank_.collectives.end(), [](const PlannedCollective& collective) {
    return collective.kind == CollectiveKind::gradient_reduce || collective.kind == CollectiveKind::global_norm;
  });
}

bool Worker::counts_in_norm(int chunk) const {
  const Schedule& schedule = plan_.schedule();
  const int stage = schedule.stages_of(pipeline_rank_)[chunk];
  int first = schedule.num_ranks();
  for (const auto& route : schedule.routes()) first = std::min(first, route[stage]);
  return first == pipeline_rank_;
}

int Worker::embedding_chunk() const {
  // The embedding of the first stage, or its copy in the last stage.
  const auto held = plan_.schedule().stages_of(pipeline_rank_);
  return held.front() == 0 ? 0 : static_cast<int>(held.size()) - 1;
}

void Worker::add_up_losses() {
  const Schedule& schedule = plan_.schedule();
  std::fill(losses_.begin(), losses_.end(), 0.0);
  for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
    if (!plan_.counts(schedule.shape(mb))) continue;
    for (int slice = 0; slice < schedule.num_slices(mb); ++slice) {
      losses_[mb / schedule.num_microbatches()] += unit_losses_[schedule.first_unit(mb) + slice];
    }
  }
}

std::unique_ptr<Worker> make_worker(const RunPlan& plan, int world_rank, Transport& transport,
                                    const WorkerServices& services) {
  if (plan.on_devices()) return std::make_unique<DeviceWorker>(plan, world_rank, transport, services);
  const RunPlan& of_replica = plan.of_replica(plan.layout().data_rank(world_rank));
  return std::make_unique<HostWorker>(of_replica, world_rank, transport, services);
}

}  // namespace sluice::exec
