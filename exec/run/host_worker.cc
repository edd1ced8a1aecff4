#include "exec/run/host_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <utility>

#include "exec/run/op_outcome.h"
#include "exec/steady_clock.h"
#include "exec/watch/failure.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr int kHostTensorGroup = 1;
constexpr int kExpertGroup = 2;  // on the channel of tensor groups; of woven blocks on its own
constexpr int kDataGroup = 1;
constexpr int kExpertDataGroup = 2;
constexpr int kFirstSharedGroup = 3;
constexpr std::size_t kMostParts = 1 << 16;  // of a run

}  // namespace

HostWorker::HostWorker(const RunPlan& plan, int world_rank, Transport& transport, const WorkerServices& services)
    : Worker(plan, world_rank, services),
      transport_(transport),
      sends_(rank_.sends.size()),
      receives_(rank_.receives.size()),
      consumed_(rank_.receives.size(), 0),
      wakes_collectives_(rank_.steps.size(), 0),
      optimizer_reads_first_(optimizer_reads_first()),
      part_log_(plan.has_experts() ? 4 * to_size(plan.spec().model.layers) : 0) {
  if (plan.has_experts()) parts_.reserve(kMostParts);
  awaiting_.reserve(rank_.receives.size());
  for (const PlannedCollective& collective : rank_.collectives) {
    if (!collective.after_any) continue;
    for (std::size_t i = 0; i < rank_.steps.size(); ++i) {
      if (rank_.steps[i].vertex == collective.after) wakes_collectives_[i] = 1;
    }
  }
  make_groups();
  // Touched now, so that running out of memory shows before the first op.
  const std::size_t bytes = std::max<std::size_t>(to_size(arena_plan_.total_bytes), kBufferAlignment);
  arena_ = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kBufferAlignment}));
  std::memset(arena_, 0, bytes);
  if (!rank_.collectives.empty()) collective_thread_ = std::thread([this] { collective_loop(); });
  if (woven_experts_ != nullptr) lane_ = std::make_unique<ExchangeLane>(4 * to_size(plan.spec().model.layers));
}

HostWorker::~HostWorker() {
  lane_.reset();
  leaving_.store(true);
  transport_.wake(Channel::collective);
  if (collective_thread_.joinable()) collective_thread_.join();
  ::operator delete (arena_, std::align_val_t{kBufferAlignment});
}

// Every worker numbers the groups in the order of the graph, which distinguishes their messages.
void HostWorker::make_groups() {
  const RunLayout& layout = plan_.layout();
  // Over the tensor ranks of this replica, or over this tensor rank. The global norm with experts is over all replicas,
  // because they hold different experts.
  const auto members_over = [&](const std::vector<int>& pipeline, bool all_tensor_ranks, bool all_data_ranks = false) {
    std::vector<int> members;
    for (const int rank : pipeline) {
      for (int d = 0; d < layout.data; ++d) {
        for (int t = 0; t < layout.tensor; ++t) {
          if (!all_data_ranks && d != data_rank_) continue;
          if (all_tensor_ranks || t == tensor_rank_) members.push_back(layout.world_rank(rank, d, t));
        }
      }
    }
    return members;
  };
  if (layout.tensor > 1) {
    tensor_ = std::make_unique<AllReduceGroup>(transport_, Channel::tensor, members_over({pipeline_rank_}, true),
                                               kHostTensorGroup);
    tensor_->on_wait([this](bool begins) {
      doing(WorkerThread::compute, begins ? Activity::reducing : Activity::working, running_);
    });
  }
  std::vector<int> data;
  for (int d = 0; d < layout.data; ++d) data.push_back(layout.world_rank(pipeline_rank_, d, tensor_rank_));
  const auto make_group = [&](std::vector<int> members, int number) {
    groups_.push_back(std::make_unique<AllReduceGroup>(transport_, Channel::collective, std::move(members), number));
    groups_.back()->on_wait([this](bool begins) {
      if (begins) doing(WorkerThread::collective, Activity::exchanging, exchanging_);
    });
    return groups_.back().get();
  };
  AllReduceGroup* const data_group = make_group(std::move(data), kDataGroup);
  if (plan_.has_experts()) make_expert_groups(make_group);

  std::map<std::pair<bool, std::vector<int>>, int> numbers;
  std::map<std::pair<bool, std::vector<int>>, AllReduceGroup*> known;
  std::size_t mine = 0;
  const OpGraph& graph = plan_.graph();
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::collective) continue;
    const Collective collective = graph.collective(graph[v]);
    const bool ours = mine < rank_.collectives.size() && rank_.collectives[mine].vertex == v;
    mine += ours ? 1 : 0;
    if (collective.kind == CollectiveKind::gradient_reduce) {
      if (ours) group_of_.push_back(data_group);
      continue;
    }
    const std::pair<bool, std::vector<int>> key{collective.kind == CollectiveKind::global_norm,
                                                {collective.ranks.begin(), collective.ranks.end()}};
    const auto number = numbers.try_emplace(key, kFirstSharedGroup + static_cast<int>(numbers.size())).first->second;
    if (!ours) continue;
    AllReduceGroup*& group = known[key];
    if (group == nullptr) {
      group = make_group(members_over(key.second, key.first, key.first && plan_.has_experts()), number);
    }
    group_of_.push_back(group);
  }
}

template <typename MakeGroup>
void HostWorker::make_expert_groups(const MakeGroup& make_group) {
  const RunLayout& layout = plan_.layout();
  const int in_stage = layout.data * layout.tensor;
  const int mine = layout.group_rank(world_rank_);
  std::vector<int> group;
  std::vector<int> replicas;
  for (int rank = 0; rank < in_stage; ++rank) {
    const int world_rank = world_rank_ - mine + rank;
    if (rank / layout.expert == mine / layout.expert) group.push_back(world_rank);
    if (rank % layout.expert == mine % layout.expert) replicas.push_back(world_rank);
  }
  expert_data_ = make_group(std::move(replicas), kExpertDataGroup);
  if (layout.expert == 1) return;
  // Of each expert at most one block is sent to its rank, and one received from every rank for the experts of this one.
  const std::size_t most = 2 * to_size(plan_.spec().model.experts.count);
  if (!programs_.empty()) {
    woven_experts_ = std::make_unique<ExpertExchange>(transport_, Channel::expert, group, kExpertGroup, most);
  }
  experts_ = std::make_unique<ExpertExchange>(transport_, Channel::tensor, std::move(group), kExpertGroup, most);
  experts_->on_wait([this](bool begins) {
    doing(WorkerThread::compute, begins ? Activity::dispatching : Activity::working, running_);
  });
}

void HostWorker::initialise() {
  for (int chunk = 0; chunk < std::ssize(arena_plan_.weights); ++chunk) {
    stage_of(chunk).initialise(weights(chunk, steps_done_), plan_.spec().seed);
    std::memset(optimizer_state(chunk), 0, to_size(stage_of(chunk).memory().optimizer_state));
  }
}

void HostWorker::read_state(int chunk, StatePart part, std::int64_t first, std::span<std::byte> out) {
  const std::int64_t moment = part == StatePart::second_moment ? stage_of(chunk).memory().weights : 0;
  const std::byte* const from =
      part == StatePart::weights ? weights(chunk, steps_done_) : optimizer_state(chunk) + moment;
  std::copy_n(from + first, out.size(), out.begin());
}

void HostWorker::set_state(int chunk, const ChunkState& state) {
  std::copy(state.weights.begin(), state.weights.end(), weights(chunk, steps_done_));
  std::copy(state.optimizer_state.begin(), state.optimizer_state.end(), optimizer_state(chunk));
}

// --- the compute thread --------------------------------------------------------------------------------------------

void HostWorker::run(std::int64_t first_step, std::span<const double> learning_rates,
                     const std::function<void()>& meanwhile) {
  try {
    if (meanwhile) meanwhile();
    run_steps(first_step, learning_rates);
  } catch (const Stopped&) {
    doing(WorkerThread::compute, Activity::stopped, running_);
    throw;
  } catch (...) {
    doing(WorkerThread::compute, Activity::failed, running_);
    throw;
  }
}

void HostWorker::run_steps(std::int64_t first_step, std::span<const double> learning_rates) {
  first_step_ = first_step;
  learning_rates_ = learning_rates;
  version_base_ = steps_done_;
  times_ = {};
  most_held_ = 0;
  std::fill(unit_losses_.begin(), unit_losses_.end(), 0.0);
  std::fill(consumed_.begin(), consumed_.end(), 0);
  std::fill(starts_.begin(), starts_.end(), 0);
  std::fill(ends_.begin(), ends_.end(), 0);
  parts_.clear();
  awaiting_.clear();
  for (Message& send : sends_) send.done.store(true, std::memory_order_relaxed);
  if (!rank_.collectives.empty()) {
    runs_begun_.store(run_number_ + 1);
    transport_.wake(Channel::collective);
  }
  const std::int64_t began = now_ns();
  const auto size = static_cast<std::int64_t>(plan_.graph().size());
  for (const int receive : rank_.first_posts) post_receive(receive);
  for (std::size_t i = 0; i < rank_.steps.size(); ++i) {
    const PlannedStep& step = rank_.steps[i];
    running_ = step.vertex;
    await(step);
    count_held(i);
    switch (step.kind) {
      case PlannedStep::Kind::op: run_ops(step, program_of(i)); break;
      case PlannedStep::Kind::send: run_send(step); break;
      case PlannedStep::Kind::optimizer: run_optimizer(step); break;
    }
    progress_.store(run_number_ * size + step.vertex + 1);
    if (wakes_collectives_[i] != 0) transport_.wake(Channel::collective);
    for (const int receive : step.posts) post_receive(receive);
  }
  // Sends must have arrived before their buffers are reused, and collectives must be complete.
  const std::int64_t all_collectives = (run_number_ + 1) * std::ssize(rank_.collectives);
  const VertexId last = rank_.steps.empty() ? 0 : rank_.steps.back().vertex;
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    wait_for(last, rank_.sends[i].vertex, [&] { return transport_.poll(sends_[i]); });
  }
  if (!rank_.collectives.empty()) {
    wait_for(last, rank_.collectives.back().vertex, [&] { return collectives_done_.load() >= all_collectives; });
  }
  times_.total = now_ns() - began;
  add_up_losses();
  steps_done_ += std::ssize(learning_rates);
  ++run_number_;
  doing(WorkerThread::compute, Activity::between);
}

void HostWorker::post_receive(int receive) {
  const PlannedMessage& planned = rank_.receives[receive];
  Message& message = receives_[receive];
  message.data = buffer(planned.buffer);
  message.bytes = planned.bytes;
  message.peer = world_rank_of(planned.peer);
  message.channel = Channel::transfer;
  message.id = run_number_ * static_cast<std::int64_t>(plan_.graph().size()) + planned.vertex;
  awaiting_.push_back(receive);
  transport_.post_receive(message);
}

// Waits, recording the wait, unless `condition` is already true.
template <typename Condition>
void HostWorker::wait_for(VertexId vertex, VertexId waits_for, Condition&& condition) {
  if (condition()) return;
  const std::int64_t began = now_ns();
  doing(WorkerThread::compute, Activity::waiting, vertex, waits_for);
  transport_.wait_until(Channel::transfer, condition);
  times_.waiting += now_ns() - began;
}

void HostWorker::await(const PlannedStep& step) {
  const std::int64_t collectives = run_number_ * std::ssize(rank_.collectives);
  for (const int collective : step.waits_for) {
    wait_for(step.vertex, rank_.collectives[collective].vertex,
             [&] { return collectives_done_.load() > collectives + collective; });
  }
  for (const int send : step.waits_for_sent) {
    wait_for(step.vertex, rank_.sends[send].vertex, [&] { return transport_.poll(sends_[send]); });
  }
  for (int i = 0; step.kind == PlannedStep::Kind::op && i < step.num_ops; ++i) {
    const OpPlan& op = step.ops[i];
    if (op.receive != kNone) {
      const VertexId transfer = rank_.receives[op.receive].vertex;
      wait_for(step.vertex, transfer, [&] { return transport_.poll(receives_[op.receive]); });
      ends_[transfer] = receives_[op.receive].done_ns;
    }
    if (op.busy_send != kNone) {
      wait_for(step.vertex, rank_.sends[op.busy_send].vertex, [&] { return transport_.poll(sends_[op.busy_send]); });
    }
  }
}

// Counts the bytes held while the step runs: its blocks, and the buffers of messages that have arrived and were not yet
// read.
void HostWorker::count_held(std::size_t step) {
  std::int64_t held = arena_plan_.standing_bytes + rank_.held_after_start[step];
  std::size_t kept = 0;
  for (const int receive : awaiting_) {
    if (consumed_[receive] != 0) continue;
    awaiting_[kept++] = receive;
    if (receives_[receive].done.load(std::memory_order_acquire)) held += rank_.receives[receive].bytes;
  }
  awaiting_.resize(kept);
  most_held_ = std::max(most_held_, held);
}

void HostWorker::run_ops(const PlannedStep& step, std::span<const WovenStep> woven) {
  doing(WorkerThread::compute, Activity::working, step.vertex);
  const std::int64_t began = now_ns();
  const FaultAction action = inject(step.vertex, transport_);
  for (ExpertExchange* const experts : {experts_.get(), woven_experts_.get()}) {
    if (experts != nullptr) experts->set_latency(action.latency);
  }
  std::int64_t recompute_ns = 0;
  std::array<SliceCall, 2> calls;
  if (!woven.empty()) {
    calls = {call_of(step.ops[0], 0), call_of(step.ops[1], 1)};
    run_woven(step, woven, calls);
  }
  for (int i = 0; i < step.num_ops; ++i) {
    const OpPlan& op = step.ops[i];
    SliceCall& call = calls[i];
    const Stage& stage = stage_of(op.chunk);
    if (woven.empty()) {
      call = call_of(op, 0);
      run_op(op, step, call);
    }
    recompute_ns += call.recompute_ns;
    if (op.op.op == OpKind::F) unit_losses_[op.unit] = call.loss;
    if (action.poison) poison(stage, call);
    check_finite(stage, op, step.vertex, call);
    if (op.receive != kNone) consumed_[op.receive] = 1;
  }
  const std::int64_t end = now_ns();
  starts_[step.vertex] = began;
  ends_[step.vertex] = end;
  if (step.recomputes) {
    // It ran layer by layer within the backward; the timeline shows it before.
    starts_[step.recompute] = began;
    starts_[step.vertex] = ends_[step.recompute] = began + recompute_ns;
  }
}

void HostWorker::run_op(const OpPlan& op, const PlannedStep& step, SliceCall& call) {
  part_log_.clear();
  if (plan_.has_experts() && !step.recomputes) call.parts = &part_log_;
  const std::int64_t start = now_ns();
  compute(stage_of(op.chunk), op.op.op, call);
  times_.kernels += now_ns() - start;
  for (const PartTime& time : part_log_.times()) keep_part(step.vertex, time);
}

void HostWorker::keep_part(VertexId vertex, const PartTime& time) {
  if (parts_.size() < kMostParts) parts_.push_back({vertex, time});
}

void HostWorker::run_woven(const PlannedStep& step, std::span<const WovenStep> woven, std::array<SliceCall, 2>& calls) {
  for (SliceCall& call : calls) call.experts = woven_experts_.get();
  const std::int64_t start = now_ns();
  const std::size_t kept = parts_.size();
  lane_->begin_block();
  try {
    run_parts(step, woven, calls);
  } catch (...) {
    // The exchanges use `calls`: end them.
    transport_.stop();
    lane_->abandon();
    throw;
  }
  times_.kernels += now_ns() - start;
  for (const PartTime& time : lane_->times()) keep_part(step.vertex, time);
  std::sort(parts_.begin() + static_cast<std::ptrdiff_t>(kept), parts_.end(),
            [](const VertexPart& a, const VertexPart& b) { return a.time.start_ns < b.time.start_ns; });
}

void HostWorker::run_parts(const PlannedStep& step, std::span<const WovenStep> woven, std::array<SliceCall, 2>& calls) {
  const auto stage_at = [&](int op) -> const Stage& { return stage_of(step.ops[op].chunk); };
  const auto is_forward = [&](int op) { return step.ops[op].op.op == OpKind::F; };
  int exchanges = 0;
  for (int op = 0; op < step.num_ops; ++op) stage_at(op).begin_parts(calls[op], is_forward(op));
  for (const WovenStep& next : woven) {
    if (next.exchanges) {
      lane_->start({&stage_at(next.op), &calls[next.op], next.part, next.layer});
      ++exchanges;
      continue;
    }
    if (next.after != kNone) finish_exchange(next.after);
    PartTime time{.part = next.part.part, .pass = next.part.pass, .layer = next.layer, .start_ns = now_ns()};
    stage_at(next.op).run_part(calls[next.op], next.part);
    time.end_ns = now_ns();
    keep_part(step.vertex, time);
  }
  if (exchanges > 0) finish_exchange(exchanges - 1);
  for (int op = 0; op < step.num_ops; ++op) stage_at(op).end_parts(calls[op], is_forward(op));
}

void HostWorker::finish_exchange(int number) {
  const bool waits = !lane_->is_done(number);
  if (waits) doing(WorkerThread::compute, Activity::dispatching, running_);
  lane_->wait(number);
  if (waits) doing(WorkerThread::compute, Activity::working, running_);
}

SliceCall HostWorker::call_of(const OpPlan& op, int place) {
  const Schedule& schedule = plan_.schedule();
  SliceCall call = slice_call(op, place);
  call.tensor = tensor_.get();
  call.experts = experts_.get();
  if (begins_backward(op)) std::memset(call.keys_values_gradient, 0, to_size(keys_gradient_bytes(op)));
  if (needs_tokens(op)) {
    auto* const tokens = reinterpret_cast<std::int32_t*>(arena_ + arena_plan_.tokens + place * arena_plan_.second_op);
    auto* const targets = reinterpret_cast<std::int32_t*>(arena_ + arena_plan_.targets + place * arena_plan_.second_op);
    const auto rows = to_size(call.shape.rows());
    services_.tokens->fill(first_step_ + op.op.microbatch / schedule.num_microbatches(),
                           plan_.first_sequence(op.op.microbatch, data_rank_), call.shape.sequences, call.shape.context,
                           call.shape.tokens, {tokens, rows}, {targets, rows});
    call.tokens = tokens;
    call.targets = targets;
  }
  return call;
}

void HostWorker::check_finite(const Stage& stage, const OpPlan& op, VertexId vertex, const SliceCall& call) const {
  const std::byte* const made = op.op.op == OpKind::F ? call.output : call.input_gradient;
  const std::int64_t elements = call.shape.rows() * stage.spec().model.hidden;
  const Precision precision = plan_.spec().precision;
  const bool fine = (made == nullptr || op.op.op == OpKind::W || all_finite(made, elements, precision)) &&
                    std::isfinite(call.loss) &&
                    (call.gradients == nullptr || edges_finite(stage, call.gradients, precision));
  if (!fine) fail_not_finite(vertex, op.op.microbatch);
}

void HostWorker::check_gradients(int chunk, std::byte* gradients, VertexId vertex) const {
  poison_gradients(gradients, vertex);
  const std::int64_t elements = stage_of(chunk).memory().gradients / plan_.element_bytes();
  if (!all_finite(gradients, elements, plan_.spec().precision)) fail_gradients(vertex);
}

void HostWorker::poison_gradients(std::byte* gradients, VertexId vertex) const {
  if (fault_at(vertex).poison) fill_not_a_number(gradients, 1, plan_.spec().precision);
}

void HostWorker::poison(const Stage& stage, SliceCall& call) const {
  std::byte* const made = call.output != nullptr ? call.output : call.input_gradient;
  if (made != nullptr) {
    fill_not_a_number(made, stage.spec().model.hidden, plan_.spec().precision);
  } else if (call.gradients != nullptr) {
    fill_not_a_number(call.gradients, stage.memory().gradients / plan_.element_bytes(), plan_.spec().precision);
  } else {
    call.loss = std::numeric_limits<double>::quiet_NaN();
  }
}

void HostWorker::run_send(const PlannedStep& step) {
  const PlannedMessage& planned = rank_.sends[step.send];
  Message& message = sends_[step.send];
  message.data = buffer(planned.buffer);
  message.bytes = planned.bytes;
  message.peer = world_rank_of(planned.peer);
  message.channel = Channel::transfer;
  message.id = run_number_ * static_cast<std::int64_t>(plan_.graph().size()) + planned.vertex;
  starts_[step.vertex] = now_ns();
  if (fault_at(step.vertex).drop) return;  // the message stays done
  transport_.post_send(message);
}

void HostWorker::run_optimizer(const PlannedStep& step) {
  doing(WorkerThread::compute, Activity::working, step.vertex);
  const std::int64_t began = now_ns();
  inject(step.vertex, transport_);
  const Stage& stage = stage_of(step.chunk);
  OptimizerStep update = update_of(step, learning_rates_);
  update.gradient_scale = gradient_scale_;
  std::byte* const read = gradients(step.chunk, step.gradient_buffer);
  if (optimizer_reads_first_ || fault_at(step.vertex).poison) check_gradients(step.chunk, read, step.vertex);
  const std::int64_t version = version_base_ + step.step;
  stage.step(weights(step.chunk, version), weights(step.chunk, version + 1), optimizer_state(step.chunk), read, update);
  std::memset(read, 0, to_size(stage.memory().gradients));
  const std::int64_t end = now_ns();
  starts_[step.vertex] = began;
  ends_[step.vertex] = end;
  times_.kernels += end - began;
}

// --- the collective thread -------------------------------------------------------------------------------------------

void HostWorker::collective_loop() {
  try {
    for (std::int64_t run = 0;; ++run) {
      const auto begun = [&] { return leaving_.load() || runs_begun_.load() > run; };
      transport_.wait_until(Channel::collective, begun);
      if (runs_begun_.load() <= run) return;
      const auto size = static_cast<std::int64_t>(plan_.graph().size());
      for (std::size_t i = 0; i < rank_.collectives.size(); ++i) {
        const PlannedCollective& collective = rank_.collectives[i];
        if (collective.after_any) {
          const std::int64_t until = run * size + collective.after + 1;
          if (progress_.load() < until) {
            doing(WorkerThread::collective, Activity::waiting, collective.vertex, collective.after);
            transport_.wait_until(Channel::collective, [&] { return progress_.load() >= until; });
          }
        }
        run_collective(collective, *group_of_[i]);
        if (i + 1 == rank_.collectives.size()) doing(WorkerThread::collective, Activity::between);
        collectives_done_.store(run * std::ssize(rank_.collectives) + static_cast<std::int64_t>(i) + 1);
        transport_.wake(Channel::transfer);
      }
    }
  } catch (...) {
    collective_error_ = std::current_exception();
    transport_.stop();
  }
}

void HostWorker::rethrow_own_error() {
  if (!collective_thread_.joinable()) return;
  leaving_.store(true);
  transport_.wake(Channel::collective);
  collective_thread_.join();
  if (collective_error_) std::rethrow_exception(collective_error_);
}

void HostWorker::run_collective(const PlannedCollective& collective, AllReduceGroup& group) {
  // Until it joins the others it is at work: they wait for it.
  exchanging_ = collective.vertex;
  doing(WorkerThread::collective, Activity::working, exchanging_);
  starts_[collective.vertex] = now_ns();
  inject(collective.vertex, transport_);
  const Schedule& schedule = plan_.schedule();
  const auto all_reduce_over = [&](AllReduceGroup& over, std::byte* data, std::int64_t elements) {
    if (plan_.spec().precision == Precision::float64) {
      over.all_reduce_sum(reinterpret_cast<double*>(data), elements);
    } else {
      over.all_reduce_sum(reinterpret_cast<float*>(data), elements);
    }
  };
  const auto all_reduce = [&](std::byte* data, std::int64_t elements) { all_reduce_over(group, data, elements); };
  switch (collective.kind) {
    case CollectiveKind::gradient_reduce: {
      const int chunk = schedule.chunk_of(pipeline_rank_, collective.stage);
      std::byte* const all = gradients(chunk, collective.gradient_buffers[chunk]);
      check_gradients(chunk, all, collective.vertex);
      const StageMemory memory = stage_of(chunk).memory();
      all_reduce(all, memory.dense_gradients / plan_.element_bytes());
      if (expert_data_ != nullptr) {
        all_reduce_over(*expert_data_, all + memory.dense_gradients,
                        (memory.gradients - memory.dense_gradients) / plan_.element_bytes());
      }
      break;
    }
    case CollectiveKind::replica_reduce: {
      const int chunk = schedule.chunk_of(pipeline_rank_, collective.stage);
      check_gradients(chunk, gradients(chunk, collective.gradient_buffers[chunk]), collective.vertex);
      all_reduce(gradients(chunk, collective.gradient_buffers[chunk]),
                 stage_of(chunk).memory().gradients / plan_.element_bytes());
      break;
    }
    case CollectiveKind::tied_embedding: {
      const int chunk = embedding_chunk();
      check_gradients(chunk, gradients(chunk, collective.gradient_buffers[chunk]), collective.vertex);
      const Stage& stage = stage_of(chunk);
      const Parameter& word = word_embedding(stage);
      all_reduce(gradients(chunk, collective.gradient_buffers[chunk]) + word.offset * plan_.element_bytes(),
                 word.size());
      break;
    }
    case CollectiveKind::global_norm: {
      double squares = 0;
      for (int chunk = 0; chunk < std::ssize(collective.gradient_buffers); ++chunk) {
        if (!counts_in_norm(chunk)) continue;
        std::byte* const read = gradients(chunk, collective.gradient_buffers[chunk]);
        poison_gradients(read, collective.vertex);
        squares += stage_of(chunk).squared_norm(read);
      }
      if (!std::isfinite(squares)) fail_gradients(collective.vertex);
      group.all_reduce_sum(&squares, 1);
      norm_ = std::sqrt(squares);
      if (!std::isfinite(norm_)) {
        throw RunFailure(FailureKind::non_finite, world_rank_,
                         fmt::format("the global gradient norm of step {} is not finite", first_step_ + 1));
      }
      const double most = plan_.spec().clip_gradients;
      gradient_scale_ = norm_ > most ? most / norm_ : 1;
      break;
    }
    case CollectiveKind::parameter_gather: break;  // not used by any plan
  }
  ends_[collective.vertex] = now_ns();
}

}  // namespace sluice::exec
