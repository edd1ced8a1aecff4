// How a worker runs layers with experts on its device: the numbers of rows that it reads from the device, and the
// exchanges between the ranks of an expert group.

#include <algorithm>
#include <array>
#include <chrono>
#include <initializer_list>
#include <thread>
#include <utility>

#include "exec/run/device_worker.h"
#include "exec/steady_clock.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr std::int64_t kMostTimedParts = 8192;  // of a run

}  // namespace

// Forwards exchanges to the group, and shows in the recorder that the worker waits for the others.
class DeviceWorker::ExpertStreams final : public StreamGroup {
 public:
  ExpertStreams(DeviceWorker& worker, StreamGroup& group) : worker_(worker), group_(group) {}
  int size() const override { return group_.size(); }
  int rank() const override { return group_.rank(); }
  void all_reduce_sum(void* data, std::int64_t count, Element element, Stream& stream) override {
    group_.all_reduce_sum(data, count, element, stream);
  }
  void all_reduce_max(float* data, std::int64_t count, Stream& stream) override {
    group_.all_reduce_max(data, count, stream);
  }
  void all_gather(void* data, std::int64_t bytes, Stream& stream) override { group_.all_gather(data, bytes, stream); }
  void exchange(std::span<const ExchangeBlock> sends, std::span<const ExchangeBlock> receives,
                Stream& stream) override {
    worker_.dispatching_ = true;
    const std::int64_t until = now_ns() + worker_.latency_.count();
    while (worker_.latency_.count() > 0 && now_ns() < until) {
      worker_.observe();
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<std::int64_t>(until - now_ns(), 1'000'000)));
    }
    group_.exchange(sends, receives, stream);
    worker_.dispatching_ = false;
  }

 private:
  DeviceWorker& worker_;
  StreamGroup& group_;
};

void DeviceWorker::prepare_experts() {
  const auto group = [&](std::size_t at) { return at == RunLinks::kAlone ? nullptr : links_->group(at); };
  expert_data_ = group(run_links_.expert_data_group(world_rank_));
  if (StreamGroup* const experts = group(run_links_.expert_group(world_rank_, false)); experts != nullptr) {
    experts_ = std::make_unique<ExpertStreams>(*this, *experts);
  }
  counts_wait_ = [this](Stream& stream) { wait_for_counts(stream); };
  counted_ = device_.make_event();
  std::int64_t bytes = 0;
  for (std::size_t chunk = 0; chunk < arena_plan_.weights.size(); ++chunk) {
    host_offsets_.push_back(bytes);
    bytes += plan_.schedule().num_units() * stage_of(static_cast<int>(chunk)).slice_host_bytes();
  }
  counts_on_host_ = device_.allocate_host(bytes);
  std::int64_t parts = 0;
  constexpr std::int64_t kPartsOfLayer = 6;  // of B: four, and two weight gradients
  for (const PlannedStep& step : rank_.steps) {
    for (int i = 0; step.kind == PlannedStep::Kind::op && i < step.num_ops; ++i) {
      parts += kPartsOfLayer * stage_of(step.ops[to_size(i)].chunk).spec().contents.layers;
    }
  }
  for (RunEvents& events : run_events_) {
    events.parts.reserve(to_size(std::min(parts, kMostTimedParts)));
    while (events.part_times.size() < 2 * events.parts.capacity()) events.part_times.push_back(device_.make_event());
  }
  if (programs_.empty()) return;
  woven_experts_ = std::make_unique<ExpertStreams>(*this, *group(run_links_.expert_group(world_rank_, true)));
  exchanges_ = device_.make_stream(StreamPriority::high);
  computed_ = device_.make_event();
  std::size_t most = 0;
  for (const auto& program : programs_) {
    most = std::max(most, to_size(std::count_if(program.begin(), program.end(),
                                                [](const WovenStep& step) { return step.exchanges; })));
  }
  while (exchanged_.size() < most) exchanged_.push_back(device_.make_event());
}

// In a rehearsal all ops use the block of unit 0, whose numbers of rows are those of the last forward.
std::byte* DeviceWorker::on_host(const OpPlan& op) {
  if (counts_on_host_ == nullptr) return nullptr;
  return counts_on_host_ + host_offsets_[to_size(op.chunk)] +
         (rehearsing_ ? 0 : op.unit) * stage_of(op.chunk).slice_host_bytes();
}

// Returns when the numbers of rows are on the host. What they depend on has been enqueued by all workers, or will be
// before they wait for this one: see DeviceWorker.
void DeviceWorker::wait_for_counts(Stream& stream) {
  device_.record(*counted_, stream);
  while (rehearsing_) {
    if (device_.done(*counted_)) return;
    if (transport_.stopped()) throw Stopped("stopped");
    links_->progress();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  dispatching_ = true;
  pacing_ = true;  // what is enqueued meanwhile does not wait
  wait_until_done(*counted_);
  pacing_ = false;
  dispatching_ = false;
}

// Enqueues a part, and the events of its begin and end.
void DeviceWorker::issue_part(const Stage& stage, const SliceCall& call, const StagePart& part, VertexId vertex) {
  RunEvents& events = events_of(run_number_);
  const std::size_t at = events.parts.size();
  const bool timed = !rehearsing_ && 2 * at < events.part_times.size();
  const int last = stage.spec().contents.layers - 1;
  if (timed) {
    const int layer = part.pass == PartPass::forward ? part.layer : last - part.layer;
    events.parts.push_back({vertex, {.part = part.part, .pass = part.pass, .layer = layer}});
    device_.record(*events.part_times[2 * at], *call.stream);
  }
  stage.run_part(call, part);
  if (timed) device_.record(*events.part_times[2 * at + 1], *call.stream);
}

// Enqueues F, B or I part by part, in the order in which Stage runs them.
void DeviceWorker::issue_in_parts(const OpPlan& op, SliceCall& call, VertexId vertex) {
  const Stage& stage = stage_of(op.chunk);
  const StageContents& contents = stage.spec().contents;
  const bool forward = op.op.op == OpKind::F;
  stage.begin_parts(call, forward);
  for (int i = 0; i < contents.layers; ++i) {
    const int layer = forward ? i : contents.layers - 1 - i;
    const bool dense = layer < contents.layers - contents.expert_layers;
    const auto issue = [&](PartPass pass, std::initializer_list<LayerPart> parts) {
      for (const LayerPart part : parts) {
        if (!dense || part == LayerPart::attention) issue_part(stage, call, {pass, part, layer}, vertex);
      }
    };
    using enum LayerPart;
    if (forward) {
      issue(PartPass::forward, {attention, dispatch, experts, combine});
      continue;
    }
    issue(PartPass::input_gradient, {combine, experts, dispatch, attention});
    if (op.op.op == OpKind::B) issue(PartPass::weight_gradient, {attention, experts});
  }
  stage.end_parts(call, forward);
}

// Enqueues the computing parts of both ops on the compute stream, and the exchanges on their own, each after the parts
// that are listed before it. An exchange makes the host wait, for numbers of rows or for the other ranks: the next
// computing part is enqueued before it, unless that needs its result, so that the device computes meanwhile.
void DeviceWorker::issue_woven(const PlannedStep& step, std::span<const WovenStep> woven, std::size_t item) {
  const auto stage_at = [&](int op) -> const Stage& { return stage_of(step.ops[to_size(op)].chunk); };
  const auto is_forward = [&](int op) { return step.ops[to_size(op)].op.op == OpKind::F; };
  std::array<SliceCall, 2> calls = {call_of(step.ops[0], item, 0), call_of(step.ops[1], item, 1)};
  for (int op = 0; op < step.num_ops; ++op) stage_at(op).begin_parts(calls[to_size(op)], is_forward(op));
  std::array<SliceCall, 2> exchanging = calls;
  for (SliceCall& call : exchanging) {
    call.stream = exchanges_.get();
    call.stream_experts = woven_experts_.get();
  }
  device_.record(*computed_, *compute_);
  std::size_t pending = 0;  // of `woven`: the first exchange that has not been enqueued is there or later
  std::size_t number = 0;   // of that exchange
  const auto issue_pending = [&](std::size_t until, std::size_t most) {
    for (; pending < until && number < most; ++pending) {
      const WovenStep& next = woven[pending];
      if (next.exchanges) {
        device_.wait(*exchanges_, *computed_);
        issue_part(stage_at(next.op), exchanging[to_size(next.op)], next.part, step.vertex);
        device_.record(*exchanged_[number++], *exchanges_);
      }
    }
  };
  for (std::size_t i = 0; i < woven.size(); ++i) {
    const WovenStep& next = woven[i];
    if (next.exchanges) continue;
    if (next.after != kNone) {
      issue_pending(i, to_size(next.after) + 1);
      device_.wait(*compute_, *exchanged_[to_size(next.after)]);
    }
    issue_part(stage_at(next.op), calls[to_size(next.op)], next.part, step.vertex);
    issue_pending(i, woven.size());
    device_.record(*computed_, *compute_);
  }
  issue_pending(woven.size(), woven.size());
  if (number > 0) device_.wait(*compute_, *exchanged_[number - 1]);
  for (int op = 0; op < step.num_ops; ++op) stage_at(op).end_parts(calls[to_size(op)], is_forward(op));
}

}  // namespace sluice::exec
