#include "exec/run/device_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "exec/device/provider.h"
#include "exec/plan/packing.h"
#include "exec/run/op_outcome.h"
#include "exec/run/run_devices.h"
#include "exec/steady_clock.h"
#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

Device& device_of(const WorkerServices& services) {
  if (services.device == nullptr || services.device_transport == nullptr) {
    throw std::logic_error("a plan for devices needs a worker with a device");
  }
  return *services.device;
}

// Whether the parts of an op are timed.
bool has_parts(const Stage& stage, const OpPlan& op) {
  return stage.spec().contents.expert_layers > 0 && !stage.spec().recompute && op.op.op != OpKind::W;
}

}  // namespace

DeviceWorker::DeviceWorker(const RunPlan& plan, int world_rank, Transport& transport, const WorkerServices& services)
    : Worker(plan, world_rank, services),
      transport_(transport),
      device_(device_of(services)),
      kernels_(*plan.spec().kernels),
      run_links_(plan),
      item_of_(plan.graph().size(), kNone),
      sends_(rank_.sends.size()),
      receives_(rank_.receives.size()),
      edge_of_receive_(rank_.receives.size()),
      freed_(rank_.receives.size(), 0),
      loss_scale_(plan.spec().precision == Precision::float16) {
  crowded_ = 2 * plan.layout().size() > static_cast<int>(std::thread::hardware_concurrency());
  device_.make_current();
  if (element() == Element::bfloat16) require_bfloat16(device_);
  compute_ = device_.make_stream(StreamPriority::normal);
  collectives_ = device_.make_stream(StreamPriority::high);
  for (RunEvents& events : run_events_) events.base = device_.make_event();
  probe_ = device_.make_event();
  last_ = device_.make_event();
  for (auto& mark : marks_) mark = device_.make_event();
  list_items();
  make_messages();
  // Connections have buffers on the device, whose size is known once they are made.
  links_ = services.device_transport->connect(run_links_.links(), device_);
  if (services.device_transport->waits_on_device()) {
    check_device_memory(arena_plan_.total_bytes, {.device = &device_, .memory_margin = services.memory_margin});
  }
  arena_ = device_.allocate(std::max<std::int64_t>(arena_plan_.total_bytes, kBufferAlignment));
  place_small();
  find_groups();
  if (plan.has_experts()) prepare_experts();
  rehearse();
  fill_tables();
}

void DeviceWorker::fill_tables() {
  const std::int64_t positions = plan_.sequence_length();
  for (std::size_t chunk = 0; chunk < arena_plan_.weights.size(); ++chunk) {
    const Stage& stage = stage_of(static_cast<int>(chunk));
    if (stage.table_bytes(positions) == 0) continue;
    return stage.fill_tables(arena_ + arena_plan_.tables, positions, *compute_);
  }
}

void DeviceWorker::settle() {
  device_.settle(*compute_);
  device_.settle(*collectives_);
  if (exchanges_ != nullptr) device_.settle(*exchanges_);
}

DeviceWorker::~DeviceWorker() {
  DeviceWorker::settle();
  links_.reset();
  device_.release(arena_);
  device_.release(small_device_);
  device_.release_host(small_host_);
  device_.release_host(tokens_host_);
  device_.release_host(counts_on_host_);
  device_.release_host(reinterpret_cast<std::byte*>(flags_));
}

Element DeviceWorker::element() const {
  return plan_.spec().precision == Precision::float16 ? Element::float16 : Element::bfloat16;
}

bool DeviceWorker::has_norm() const {
  return plan_.spec().clip_gradients > 0 || plan_.spec().precision == Precision::float16;
}

void DeviceWorker::find_groups() {
  const auto group = [&](std::size_t at) { return at == RunLinks::kAlone ? nullptr : links_->group(at); };
  tensor_ = group(run_links_.tensor_group(world_rank_));
  for (const PlannedCollective& collective : rank_.collectives) {
    groups_.push_back(group(run_links_.group_of(collective.vertex, world_rank_)));
  }
}

void DeviceWorker::list_items() {
  for (std::size_t i = 0; i < rank_.steps.size(); ++i) items_.push_back({.vertex = rank_.steps[i].vertex, .index = i});
  for (std::size_t i = 0; i < rank_.collectives.size(); ++i) {
    items_.push_back({.vertex = rank_.collectives[i].vertex, .collective = true, .index = i});
  }
  std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.vertex < b.vertex; });
  for (std::size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    item_of_[item.vertex] = static_cast<int>(i);
    for (RunEvents& events : run_events_) {
      events.begins.push_back(is_send(item) ? nullptr : device_.make_event());
      events.ends.push_back(is_send(item) ? nullptr : device_.make_event());
    }
    if (is_send(item)) continue;
    item.name = plan_.graph().name(item.vertex);
    (item.collective ? collective_items_ : compute_items_).push_back(i);
  }
}

bool DeviceWorker::is_send(const Item& item) const {
  return !item.collective && rank_.steps[item.index].kind == PlannedStep::Kind::send;
}

// Bytes that this worker sends or receives of a message: its shard if the tensor-parallel ranks send one each.
std::int64_t DeviceWorker::shard_bytes(std::int64_t bytes) const {
  const std::int64_t shards = plan_.spec().scatter_gather ? plan_.layout().tensor : 1;
  return bytes % (shards * static_cast<std::int64_t>(kBufferAlignment)) == 0 ? bytes / shards : bytes;
}

void DeviceWorker::make_messages() {
  const auto prepare = [&](const PlannedMessage& planned, DeviceMessage& message,
                           std::vector<std::unique_ptr<Event>> RunEvents::*of) {
    message.data = nullptr;  // until the arena is allocated
    message.bytes = shard_bytes(planned.bytes);
    message.edge = run_links_.edge_of(planned.vertex, world_rank_);
    for (RunEvents& events : run_events_) {
      for (int each = 0; each < 2; ++each) (events.*of).push_back(device_.make_event());
    }
  };
  for (std::size_t i = 0; i < sends_.size(); ++i) prepare(rank_.sends[i], sends_[i], &RunEvents::sends);
  std::vector<int> order;
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    prepare(rank_.receives[i], receives_[i], &RunEvents::receives);
    order.push_back(static_cast<int>(i));
  }
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return rank_.receives[a].vertex < rank_.receives[b].vertex; });
  std::vector<std::size_t> edges;
  for (const int receive : order) {
    const std::size_t edge = receives_[receive].edge;
    const auto found = static_cast<std::size_t>(std::find(edges.begin(), edges.end(), edge) - edges.begin());
    if (found == edges.size()) {
      edges.push_back(edge);
      edge_receives_.emplace_back();
    }
    edge_receives_[found].push_back(receive);
    edge_of_receive_[receive] = found;
  }
  edge_posted_.assign(edges.size(), 0);
}

void DeviceWorker::place_small() {
  const Schedule& schedule = plan_.schedule();
  const auto units = static_cast<std::int64_t>(schedule.num_units());
  const std::int64_t steps = plan_.steps_per_run();
  const auto place = [&](std::byte* base, Small& small) {
    std::int64_t at = 0;
    const auto next = [&](std::int64_t count) {
      std::byte* const here = base == nullptr ? nullptr : base + at;  // nullptr: only the size is wanted
      at += aligned(count * static_cast<std::int64_t>(sizeof(float)));
      return here;
    };
    small.losses = reinterpret_cast<float*>(next(units));
    small.squares = reinterpret_cast<float*>(next(steps));
    small.scales = reinterpret_cast<float*>(next(steps));
    small.norms = reinterpret_cast<float*>(next(steps));
    return at;
  };
  Small sizes;
  small_bytes_ = place(nullptr, sizes);
  small_device_ = device_.allocate(small_bytes_);
  small_host_ = device_.allocate_host(small_bytes_);
  place(small_device_, on_device_);
  place(small_host_, on_host_);
  flags_ = reinterpret_cast<std::int32_t*>(
      device_.allocate_host(std::ssize(items_) * static_cast<std::int64_t>(sizeof(std::int32_t))));
  for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
    for (int slice = 0; slice < schedule.num_slices(mb); ++slice) {
      token_rows_.push_back(all_rows_);
      all_rows_ += slice_shape(schedule.shape(mb), slice).rows();
    }
  }
  tokens_host_ = device_.allocate_host(2 * all_rows_ * static_cast<std::int64_t>(sizeof(std::int32_t)));
}

void DeviceWorker::initialise() {
  device_.make_current();
  for (int chunk = 0; chunk < std::ssize(arena_plan_.weights); ++chunk) {
    const std::int64_t bytes = 4 * (stage_of(chunk).memory().weights / plan_.element_bytes());
    device_.zero(gradients(chunk, 0), bytes, *compute_);
    stage_of(chunk).draw_weights(gradients(chunk, 0), plan_.spec().seed, *compute_);
    take_weights(chunk, bytes);
    device_.zero(optimizer_state(chunk) + bytes, 2 * bytes, *compute_);
    device_.synchronize(*compute_);
  }
}

// Sets the weights to those in the gradient buffer, which has the same size, and is zero between runs.
void DeviceWorker::take_weights(int chunk, std::int64_t bytes) {
  std::byte* const staging = gradients(chunk, 0);
  stage_of(chunk).set_weights(staging, weights(chunk, steps_done_), optimizer_state(chunk), *compute_);
  device_.zero(staging, bytes, *compute_);
}

void DeviceWorker::read_state(int chunk, StatePart part, std::int64_t first, std::span<std::byte> out) {
  device_.make_current();
  // The optimizer state consists of master weights and the two Adam moments.
  const std::int64_t bytes = 4 * (stage_of(chunk).memory().weights / plan_.element_bytes());
  const std::byte* const from = optimizer_state(chunk) + static_cast<std::int64_t>(part) * bytes + first;
  device_.copy(out.data(), from, std::ssize(out), *compute_);
  device_.synchronize(*compute_);
}

void DeviceWorker::set_state(int chunk, const ChunkState& state) {
  device_.make_current();
  device_.copy(gradients(chunk, 0), state.weights.data(), std::ssize(state.weights), *compute_);
  take_weights(chunk, std::ssize(state.weights));
  device_.copy(optimizer_state(chunk) + std::ssize(state.weights), state.optimizer_state.data(),
               2 * std::ssize(state.weights), *compute_);
  device_.synchronize(*compute_);
}

// --- a run of the graph --------------------------------------------------------------------------------------------

void DeviceWorker::run(std::int64_t first_step, std::span<const double> learning_rates,
                       const std::function<void()>& meanwhile) {
  meanwhile_ = meanwhile;
  first_step_ = first_step;
  learning_rates_ = learning_rates;
  try {
    device_.make_current();
    run_items();
  } catch (const Stopped&) {
    doing(WorkerThread::compute, Activity::stopped);
    throw;
  } catch (const DeviceError& error) {
    doing(WorkerThread::compute, Activity::failed);
    throw DeviceError(fmt::format("rank {}: {}", world_rank_, error.what()));
  } catch (...) {
    doing(WorkerThread::compute, Activity::failed);
    throw;
  }
}

// Uses the events of this run, which the run before the last one used.
void DeviceWorker::use_events() {
  RunEvents& events = events_of(run_number_);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    items_[i].begin = events.begins[i].get();
    items_[i].end = events.ends[i].get();
  }
  const auto use = [](const std::vector<std::unique_ptr<Event>>& from, std::vector<DeviceMessage>& messages) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      messages[i].started = from[2 * i].get();
      messages[i].done = from[2 * i + 1].get();
    }
  };
  use(events.sends, sends_);
  use(events.receives, receives_);
  events.sends_began.assign(sends_.size(), nullptr);
  events.parts.clear();
}

void DeviceWorker::call_meanwhile() {
  if (!meanwhile_) return;
  links_->flush();  // it may communicate
  std::exchange(meanwhile_, nullptr)();
  // The results were those of the previous run, and the recorder shows what `meanwhile` did.
  std::fill(starts_.begin(), starts_.end(), 0);
  std::fill(ends_.begin(), ends_.end(), 0);
  for (Doing& recorded : recorded_) recorded = {};
}

void DeviceWorker::run_items() {
  use_events();
  version_base_ = steps_done_;
  std::fill(freed_.begin(), freed_.end(), 0);
  std::fill_n(flags_, items_.size(), 0);
  std::fill(edge_posted_.begin(), edge_posted_.end(), 0);
  std::fill(starts_.begin(), starts_.end(), 0);
  std::fill(ends_.begin(), ends_.end(), 0);
  compute_issued_ = compute_done_ = collective_issued_ = collective_done_ = 0;
  for (Doing& recorded : recorded_) recorded = {};
  links_->while_meeting([this] {
    call_meanwhile();
    meeting_ = true;
    observe();
    meeting_ = false;
  });
  load_tokens();
  device_.zero(small_device_, small_bytes_, *compute_);
  relate_clocks();
  last_end_ = events_of(run_number_).base.get();
  for (const int receive : rank_.first_posts) free_receive(receive, nullptr);
  launches_ = 0;
  compute_->on_launch([this] { pace(); });
  for (std::size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    next_vertex_ = item.vertex;
    next_waits_for_ = Doing::no_vertex;
    device_.begin_range(item.name.c_str());
    item.collective ? issue_collective(item) : issue_step(item);
    device_.end_range();
    // What an op receives next and what it sends are issued together.
    if (i + 1 == items_.size() || !is_send(items_[i + 1])) keep_up();
  }
  compute_->on_launch(nullptr);
  finish();
}

// Records the base of this run between two readings of the host's clock. A busy host may delay the second reading, so
// that times of this device would be late by milliseconds: the closest pair of several attempts counts.
void DeviceWorker::relate_clocks() {
  constexpr int kAttempts = 16;
  constexpr std::int64_t kCloseEnough_ns = 50'000;
  device_.synchronize(*compute_);
  RunEvents& events = events_of(run_number_);
  std::int64_t closest = std::numeric_limits<std::int64_t>::max();
  for (int attempt = 0; attempt < kAttempts && closest > kCloseEnough_ns; ++attempt) {
    const std::int64_t before = now_ns();
    device_.record(*probe_, *compute_);
    device_.synchronize(*probe_);
    const std::int64_t apart = now_ns() - before;
    if (apart >= closest) continue;
    closest = apart;
    events.base_ns = before + apart / 2;
    std::swap(events.base, probe_);
  }
}

// Copies the tokens and targets of all units to the device, if this worker reads them.
void DeviceWorker::load_tokens() {
  const Schedule& schedule = plan_.schedule();
  bool needed = false;
  for (std::size_t chunk = 0; chunk < arena_plan_.weights.size(); ++chunk) {
    const StageContents& contents = stage_of(static_cast<int>(chunk)).spec().contents;
    needed = needed || contents.embedding || contents.head;
  }
  if (!needed) return;
  auto* const tokens = reinterpret_cast<std::int32_t*>(tokens_host_);
  auto* const targets = tokens + all_rows_;
  std::size_t unit = 0;
  for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
    for (int slice = 0; slice < schedule.num_slices(mb); ++slice, ++unit) {
      const SliceShape shape = slice_shape(schedule.shape(mb), slice);
      const auto rows = to_size(shape.rows());
      services_.tokens->fill(first_step_ + mb / schedule.num_microbatches(), plan_.first_sequence(mb, data_rank_),
                             shape.sequences, shape.context, shape.tokens, {tokens + token_rows_[unit], rows},
                             {targets + token_rows_[unit], rows});
    }
  }
  const std::int64_t bytes = all_rows_ * static_cast<std::int64_t>(sizeof(std::int32_t));
  device_.copy(arena_ + arena_plan_.tokens, tokens, bytes, *compute_);
  device_.copy(arena_ + arena_plan_.targets, targets, bytes, *compute_);
}

// Marks the buffer of a receive as free from `freed` on (null: now). The receives of an edge are posted in order.
void DeviceWorker::free_receive(int receive, Event* freed) {
  freed_[receive] = 1;
  receives_[receive].ready = freed;
  const std::size_t edge = edge_of_receive_[receive];
  const std::vector<int>& in_order = edge_receives_[edge];
  for (std::size_t& posted = edge_posted_[edge]; posted < in_order.size(); ++posted) {
    const int next = in_order[posted];
    if (freed_[next] == 0) return;
    const PlannedMessage& planned = rank_.receives[next];
    DeviceMessage& message = receives_[next];
    message.data = buffer(planned.buffer) + (message.bytes < planned.bytes ? tensor_rank_ * message.bytes : 0);
    message.id = run_number_ * static_cast<std::int64_t>(plan_.graph().size()) + planned.vertex;
    message.placed.store(false, std::memory_order_relaxed);
    links_->receive(message);
  }
}

void DeviceWorker::issue_step(Item& item) {
  const PlannedStep& step = rank_.steps[item.index];
  if (step.kind == PlannedStep::Kind::send) return issue_send(step);
  for (const int collective : step.waits_for) {
    device_.wait(*compute_, *items_[item_of_[rank_.collectives[collective].vertex]].end);
  }
  for (const int send : step.waits_for_sent) {
    wait_on_device(sends_[send], step.vertex, rank_.sends[send].vertex);
  }
  if (step.kind == PlannedStep::Kind::op) {
    for (int i = 0; i < step.num_ops; ++i) {
      const OpPlan& op = step.ops[i];
      if (op.receive != kNone) {
        const PlannedMessage& planned = rank_.receives[op.receive];
        wait_on_device(receives_[op.receive], step.vertex, planned.vertex);
        if (receives_[op.receive].bytes < planned.bytes) {
          tensor_->all_gather(buffer(planned.buffer), planned.bytes, *compute_);
        }
      }
      if (op.busy_send != kNone) {
        wait_on_device(sends_[op.busy_send], step.vertex, rank_.sends[op.busy_send].vertex);
      }
    }
  }
  links_->flush();
  doing(WorkerThread::compute, Activity::working, step.vertex);
  recorded_[0] = {};
  const FaultAction action = inject(step.vertex, transport_);
  latency_ = action.latency;
  device_.record(*item.begin, *compute_);
  if (step.kind == PlannedStep::Kind::op) {
    const std::span<const WovenStep> woven = program_of(item.index);
    const auto at = static_cast<std::size_t>(&item - items_.data());
    woven.empty() ? issue_ops(step, at) : issue_woven(step, woven, at);
    if (action.poison) {
      const OpPlan& op = step.ops[0];
      const SliceCall call = slice_call(op);
      std::byte* const made = call.output != nullptr ? call.output : call.input_gradient;
      if (made != nullptr) {
        kernels_.fill_not_a_number(*compute_, element(), made,
                                   call.shape.rows() * stage_of(op.chunk).spec().model.hidden);
      } else if (call.gradients != nullptr) {
        kernels_.fill_not_a_number(*compute_, Element::float32, call.gradients,
                                   stage_of(op.chunk).memory().gradients / plan_.gradient_element_bytes());
      } else {
        kernels_.fill_not_a_number(*compute_, Element::float32, on_device_.losses + op.unit, 1);
      }
      check_poisoned(op, call, static_cast<std::size_t>(&item - items_.data()));
    }
  } else {
    issue_optimizer(step, static_cast<std::size_t>(&item - items_.data()));
  }
  device_.record(*item.end, *compute_);
  last_end_ = item.end;
  ++compute_issued_;
  for (const int receive : step.posts) free_receive(receive, item.end);
}

SliceCall DeviceWorker::call_of(const OpPlan& op, std::size_t item, int place) {
  SliceCall call = slice_call(op, place);
  call.stream = compute_.get();
  call.device = &device_;
  call.stream_group = tensor_;
  call.stream_experts = experts_.get();
  call.on_host = on_host(op);
  call.wait_for = &counts_wait_;
  call.loss_on_device = on_device_.losses + op.unit;
  call.tables = arena_ + arena_plan_.tables;
  if (checks_outcome(op)) call.not_finite = flags_ + item;
  call.loss_scale *= loss_scale_.value();
  if (const std::int64_t bytes = begins_backward(op) ? keys_gradient_bytes(op) : 0; bytes > 0) {
    device_.zero(call.keys_values_gradient, bytes, *compute_);
  }
  if (needs_tokens(op)) {
    call.tokens = reinterpret_cast<const std::int32_t*>(arena_ + arena_plan_.tokens) + token_rows_[op.unit];
    call.targets = reinterpret_cast<const std::int32_t*>(arena_ + arena_plan_.targets) + token_rows_[op.unit];
  }
  return call;
}

void DeviceWorker::issue_ops(const PlannedStep& step, std::size_t item) {
  for (int i = 0; i < step.num_ops; ++i) {
    const OpPlan& op = step.ops[i];
    const Stage& stage = stage_of(op.chunk);
    SliceCall call = call_of(op, item, 0);
    if (has_parts(stage, op)) {
      issue_in_parts(op, call, step.vertex);
      continue;
    }
    compute(stage, op.op.op, call);
  }
}

// Whether an op flags results that are not finite. Gradients in float16 may overflow: the norm detects that, and the
// step is skipped.
bool DeviceWorker::checks_outcome(const OpPlan& op) const {
  return op.op.op == OpKind::F || (op.op.op != OpKind::W && element() != Element::float16);
}

// Flags a result that was replaced after its op.
void DeviceWorker::check_poisoned(const OpPlan& op, const SliceCall& call, std::size_t item) {
  if (!checks_outcome(op)) return;
  const bool forward = op.op.op == OpKind::F;
  std::int32_t* const flag = flags_ + item;
  const std::byte* const made = forward ? call.output : call.input_gradient;
  const Stage& stage = stage_of(op.chunk);
  if (made != nullptr) {
    kernels_.flag_not_finite(*compute_, element(), made, call.shape.rows() * stage.spec().model.hidden, flag);
  }
  if (forward && stage.spec().contents.head) {
    kernels_.flag_not_finite(*compute_, Element::float32, on_device_.losses + op.unit, 1, flag);
  }
}

void DeviceWorker::issue_send(const PlannedStep& step) {
  const PlannedMessage& planned = rank_.sends[step.send];
  DeviceMessage& message = sends_[step.send];
  message.data = buffer(planned.buffer) + (message.bytes < planned.bytes ? tensor_rank_ * message.bytes : 0);
  message.id = run_number_ * static_cast<std::int64_t>(plan_.graph().size()) + planned.vertex;
  message.ready = last_end_;
  message.placed.store(false, std::memory_order_relaxed);
  const FaultAction action = fault_at(step.vertex);
  if (action.drop) return;
  links_->send(message);
}

// Flags gradients that are not finite, unless the norm decides on them (see checks_outcome).
void DeviceWorker::check_gradients(int chunk, std::byte* gradients, std::size_t item, Stream& stream) {
  if (fault_at(items_[item].vertex).poison) kernels_.fill_not_a_number(stream, Element::float32, gradients, 1);
  if (element() == Element::float16) return;
  const std::int64_t elements = stage_of(chunk).memory().gradients / plan_.gradient_element_bytes();
  kernels_.flag_not_finite(stream, Element::float32, gradients, elements, flags_ + item);
}

void DeviceWorker::issue_optimizer(const PlannedStep& step, std::size_t item) {
  const Stage& stage = stage_of(step.chunk);
  OptimizerStep update = update_of(step, learning_rates_);
  update.stream = compute_.get();
  update.scale_on_device = has_norm() ? on_device_.scales + step.step : nullptr;
  std::byte* const read = gradients(step.chunk, step.gradient_buffer);
  if (optimizer_reads_first() || fault_at(step.vertex).poison) check_gradients(step.chunk, read, item, *compute_);
  const std::int64_t version = version_base_ + step.step;
  stage.step(weights(step.chunk, version), weights(step.chunk, version + 1), optimizer_state(step.chunk), read, update);
  device_.zero(read, stage.memory().gradients, *compute_);
}

void DeviceWorker::issue_collective(Item& item) {
  const PlannedCollective& collective = rank_.collectives[item.index];
  if (collective.after_any) device_.wait(*collectives_, *items_[item_of_[collective.after]].end);
  held_collective_ = {.activity = Activity::working, .vertex = collective.vertex};
  inject(collective.vertex, transport_, [this] { observe(); });
  held_collective_.activity = Activity::exchanging;
  StreamGroup* const group = groups_[item.index];
  const auto at = static_cast<std::size_t>(&item - items_.data());
  device_.record(*item.begin, *collectives_);
  switch (collective.kind) {
    case CollectiveKind::gradient_reduce:
    case CollectiveKind::replica_reduce: {
      const int chunk = plan_.schedule().chunk_of(pipeline_rank_, collective.stage);
      const std::int64_t bytes = stage_of(chunk).memory().gradients;
      std::byte* const all = gradients(chunk, collective.gradient_buffers[chunk]);
      check_gradients(chunk, all, at, *collectives_);
      // Gradients of experts are reduced over other ranks than the others.
      const bool apart = collective.kind == CollectiveKind::gradient_reduce && plan_.has_experts();
      const std::int64_t dense = apart ? stage_of(chunk).memory().dense_gradients : bytes;
      const auto reduce = [&](StreamGroup* over, std::int64_t first, std::int64_t end) {
        if (over == nullptr || first == end) return;
        over->all_reduce_sum(all + first, (end - first) / plan_.gradient_element_bytes(), Element::float32,
                             *collectives_);
      };
      reduce(group, 0, dense);
      reduce(expert_data_, dense, bytes);
      break;
    }
    case CollectiveKind::tied_embedding: {
      const int chunk = embedding_chunk();
      const Parameter& word = word_embedding(stage_of(chunk));
      if (group != nullptr) {
        group->all_reduce_sum(
            gradients(chunk, collective.gradient_buffers[chunk]) + word.offset * plan_.gradient_element_bytes(),
            word.size(), Element::float32, *collectives_);
      }
      break;
    }
    case CollectiveKind::global_norm: issue_norm(collective, group, at); break;
    case CollectiveKind::parameter_gather: break;  // not used by any plan
  }
  device_.record(*item.end, *collectives_);
  ++collective_issued_;
  held_collective_.vertex = Doing::no_vertex;
}

void DeviceWorker::issue_norm(const PlannedCollective& collective, StreamGroup* group, std::size_t item) {
  float* const squares = on_device_.squares + collective.step;
  for (int chunk = 0; chunk < std::ssize(collective.gradient_buffers); ++chunk) {
    if (!counts_in_norm(chunk)) continue;
    if (plan_.layout().data == 1) {
      check_gradients(chunk, gradients(chunk, collective.gradient_buffers[chunk]), item, *collectives_);
    }
    stage_of(chunk).add_squared_norm(gradients(chunk, collective.gradient_buffers[chunk]), squares, *collectives_);
  }
  if (group != nullptr) group->all_reduce_sum(squares, 1, Element::float32, *collectives_);
  kernels_.gradient_scale(*collectives_, squares, static_cast<float>(plan_.spec().clip_gradients),
                          static_cast<float>(loss_scale_.value()), on_device_.scales + collective.step,
                          on_device_.norms + collective.step);
}

}  // namespace sluice::exec
