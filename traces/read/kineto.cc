#include "traces/read/kineto.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "model/errors.h"
#include "model/schedule/op_text.h"

namespace sluice::traces {
namespace {

constexpr std::string_view kRange = "PP:";
constexpr std::string_view kStep = "ProfilerStep#";
constexpr std::string_view kOptimizer = "Optimizer.step";
constexpr std::int64_t kMaxBaseTime = 4'000'000'000'000'000'000;  // year 2096

RowOp row_op(const Op& op) { return {op.microbatch, op.stage, op.slice, op.kind}; }

// The key of a range that occurs once per iteration.
using Identity = std::tuple<PipelineAction::Kind, RowOp, RowOp>;
Identity identity(const PipelineAction& action) { return {action.kind, action.op, action.partner}; }

}  // namespace

void LaunchedKernels::add(const TraceEvent& event) {
  if (event.correlation < 0 || !event.start || !event.duration) return;
  if (event.category == "cuda_runtime" || event.category == "cuda_driver") {
    launches_.push_back({event.correlation, *event.start});
  } else if (event.category == "kernel" || event.category == "gpu_memcpy" || event.category == "gpu_memset") {
    const Duration end = *event.start + std::max(*event.duration, Duration::zero());
    kernels_.push_back({event.correlation, {event.pid, event.tid}, {*event.start, end}, {}});
  }
}

void LaunchedKernels::match() {
  const auto by_correlation = [](const Launch& a, const Launch& b) { return a.correlation < b.correlation; };
  std::stable_sort(launches_.begin(), launches_.end(), by_correlation);
  std::erase_if(kernels_, [&](Kernel& kernel) {
    const auto found =
        std::lower_bound(launches_.begin(), launches_.end(), Launch{kernel.correlation, {}}, by_correlation);
    if (found == launches_.end() || found->correlation != kernel.correlation) return true;
    kernel.launched = found->at;
    return false;
  });
  launches_ = {};
  std::stable_sort(kernels_.begin(), kernels_.end(),
                   [](const Kernel& a, const Kernel& b) { return a.launched < b.launched; });
}

template <class Visit>
void LaunchedKernels::for_each(const Span& host, const Visit& visit) const {
  auto at = std::lower_bound(kernels_.begin(), kernels_.end(), host.start,
                             [](const Kernel& kernel, Duration start) { return kernel.launched < start; });
  for (; at != kernels_.end() && at->launched < host.end; ++at) visit(*at);
}

std::optional<LaunchedKernels::Stream> LaunchedKernels::busiest_stream(const std::vector<Span>& host) const {
  std::map<Stream, Duration> busy;
  for (const Span& span : host) {
    for_each(span, [&](const Kernel& kernel) { busy[kernel.stream] += kernel.span.end - kernel.span.start; });
  }
  const auto most =
      std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == busy.end() ? std::nullopt : std::optional(most->first);
}

std::optional<LaunchedKernels::Span> LaunchedKernels::extent(const Span& host, const Stream& stream) const {
  std::optional<Span> out;
  for_each(host, [&](const Kernel& kernel) {
    if (kernel.stream != stream) return;
    if (!out) out = kernel.span;
    out->start = std::min(out->start, kernel.span.start);
    out->end = std::max(out->end, kernel.span.end);
  });
  return out;
}

std::optional<PipelineAction> parse_pipeline_range(std::string_view name) {
  using Kind = PipelineAction::Kind;
  if (!name.starts_with(kRange)) return std::nullopt;
  name.remove_prefix(kRange.size());
  Op op;
  if (parse_op_text(name, op)) return PipelineAction{Kind::op, row_op(op), {}};
  constexpr std::string_view kOverlap = ")OVERLAP_F_B";
  const std::size_t middle = name.find(';');
  if (name.starts_with('(') && name.ends_with(kOverlap) && middle != std::string_view::npos) {
    Op second;
    if (!parse_op_text(name.substr(1, middle - 1), op)) return std::nullopt;
    if (!parse_op_text(name.substr(middle + 1, name.size() - kOverlap.size() - middle - 1), second))
      return std::nullopt;
    return PipelineAction{Kind::joint, row_op(op), row_op(second)};
  }
  Communication moved;
  if (!parse_communication(name, moved)) return std::nullopt;
  PipelineAction action{Kind::other, {moved.microbatch, moved.stage, moved.slice, OpKind::F}, {}};
  if (is_send(moved.kind)) action.kind = Kind::send;
  if (is_receive(moved.kind)) action.kind = Kind::receive;
  if (moved.kind == CommunicationKind::reduce_gradients) action.kind = Kind::reduce;
  if (!of_forward(moved.kind)) action.op.kind = OpKind::B;
  return action;
}

void KinetoRank::add(const TraceEvent& event) {
  if (event.phase != "X") return;
  const bool gpu = event.category == "gpu_user_annotation";
  if (!gpu && event.category != "user_annotation") return kernels_.add(event);
  const bool step = event.name.starts_with(kStep);
  const bool range = event.name.starts_with(kRange);
  if (!step && !range && !event.name.starts_with(kOptimizer)) return;
  const auto fail = [&](const std::string& rule) {
    throw InputError(fmt::format("{}: event {}: {}: {}", source_, event.number, event.name, rule));
  };
  if (++num_kept_ + kernels_.size() > kMaxKeptEvents)
    fail(fmt::format("expected at most {} ranges and kernels", kMaxKeptEvents));
  if (!event.start || !event.duration) fail("expected ts and dur");
  if (*event.duration < -kClockResolution) fail("dur: expected 0 or more");
  if (*event.duration < Duration::zero()) ++num_negative_;
  const Duration until = *event.start + std::max(*event.duration, Duration::zero());
  Range found{.pid = event.pid, .tid = event.tid, .start = *event.start, .end = until};
  Ranges& ranges = seen_[gpu ? 1 : 0];
  if (step) {
    const std::string_view number = std::string_view(event.name).substr(kStep.size());
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc{} || end != number.data() + number.size() || value < 0)
      fail("expected a number after ProfilerStep#");
    ranges.steps.push_back({value, found.pid, found.tid, found.start, found.end});
    return;
  }
  if (!range) {
    ranges.others.push_back(found);
    return;
  }
  const auto action = parse_pipeline_range(event.name);
  if (!action) fail("expected an action of torch.distributed.pipelining such as PP:2F0 or PP:(0F1;3B0)OVERLAP_F_B");
  found.action = *action;
  switch (action->kind) {
    case PipelineAction::Kind::op:
    case PipelineAction::Kind::joint: ranges.ops.push_back(found); break;
    case PipelineAction::Kind::send:
    case PipelineAction::Kind::receive: ranges.transfers.push_back(found); break;
    case PipelineAction::Kind::reduce: ranges.others.push_back(found); break;
    case PipelineAction::Kind::other: break;  // UNSHARD, RESHARD
  }
}

void KinetoRank::finish(const TraceHead& head) {
  rank_ = head.rank;
  kernels_.match();
  by_launches_ = follow_launches(seen_[0], seen_[1]);
  on_gpu_ = !seen_[1].ops.empty();
  Ranges ranges = std::move(seen_[on_gpu_ ? 1 : 0]);
  kernels_ = {};
  if (ranges.ops.empty()) {
    throw InputError(source_ +
                     ": /traceEvents: expected pipeline op ranges (such as PP:0F0, category gpu_user_annotation or "
                     "user_annotation), got none; sluice analyze --names reads other names");
  }
  if (head.base_time_ns < 0 || head.base_time_ns > kMaxBaseTime) {
    throw InputError(
        fmt::format("{}: /baseTimeNanoseconds: expected 0 to {}, got {}", source_, kMaxBaseTime, head.base_time_ns));
  }
  // Versions of Kineto that write nanoseconds start a GPU range 1 ns before its first kernel and end it 1 ns after its
  // last one (ChromeTraceLogger::handleActivity).
  const Duration margin{on_gpu_ && head.base_time_ns > 0 ? 1 : 0};
  const auto set = [&](auto& list, Duration inwards) {
    for (auto& range : list) {
      if (range.end - range.start >= 2 * inwards) {
        range.start += inwards;
        range.end -= inwards;
      }
      range.start += Duration{head.base_time_ns};
      range.end += Duration{head.base_time_ns};
    }
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  };
  set(ranges.ops, by_launches_ ? Duration::zero() : margin);
  set(ranges.transfers, margin);
  set(ranges.others, margin);
  set(ranges.steps, Duration::zero());
  keep_one_stream(ranges);
  ops_ = std::move(ranges.ops);
  transfers_ = std::move(ranges.transfers);
  others_ = std::move(ranges.others);
  has_steps_ = !ranges.steps.empty();
  if (has_steps_) {
    split_by_steps(ranges.steps);
  } else {
    split_by_repetition();
  }
  number_others();
}

// Replaces the ops and steps of the GPU by the kernels that were launched within those of the CPU, on the stream with
// most of their time. An op that launched nothing there is empty, at the end of the op before it. Returns false, and
// changes nothing, if the file has no launches, or ops of the CPU overlap, so that a launch may belong to several.
bool KinetoRank::follow_launches(const Ranges& host, Ranges& device) {
  std::vector<Range> ops = host.ops;
  std::stable_sort(ops.begin(), ops.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
  std::vector<LaunchedKernels::Span> spans;
  for (const Range& op : ops) {
    if (!spans.empty() && op.start < spans.back().end) return false;
    spans.push_back({op.start, op.end});
  }
  const auto stream = kernels_.busiest_stream(spans);
  if (!stream) return false;
  std::optional<Duration> before;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto extent = kernels_.extent(spans[i], *stream);
    if (!extent && !before) before = ops[i].start;
    ops[i].start = extent ? extent->start : *before;
    ops[i].end = extent ? extent->end : *before;
    ops[i].pid = stream->first;
    ops[i].tid = stream->second;
    before = ops[i].end;
  }
  device.ops = std::move(ops);
  std::vector<Step> steps;
  for (const Step& step : host.steps) {
    if (const auto extent = kernels_.extent({step.start, step.end}, *stream)) {
      steps.push_back({step.number, stream->first, stream->second, extent->start, extent->end});
    }
  }
  if (!steps.empty()) device.steps = std::move(steps);
  return true;
}

// An op has a range on every stream on which it launched kernels. Keeps the stream with the most busy time.
void KinetoRank::keep_one_stream(Ranges& ranges) {
  std::map<std::pair<std::int64_t, std::int64_t>, double> busy;
  for (const Range& range : ranges.ops) busy[{range.pid, range.tid}] += to_seconds(range.end - range.start);
  const auto most =
      std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto elsewhere = [&](const auto& range) { return std::pair(range.pid, range.tid) != most->first; };
  std::erase_if(ranges.ops, elsewhere);
  std::erase_if(ranges.steps, elsewhere);
}

void KinetoRank::split_by_steps(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (!iterations_.empty() && iterations_.back().number >= step.number) {
      throw InputError(fmt::format("{}: ProfilerStep#{} starts after ProfilerStep#{}", source_, step.number,
                                   iterations_.back().number));
    }
    iterations_.push_back({.number = step.number, .start = step.start, .end = step.end});
  }
  std::set<Identity> all;
  std::vector<std::set<Identity>> had(iterations_.size());
  std::vector<char> twice(iterations_.size(), 0);
  for (Range& op : ops_) {
    all.insert(identity(op.action));
    const Duration middle = op.start + (op.end - op.start) / 2;
    const auto next = std::partition_point(iterations_.begin(), iterations_.end(),
                                           [&](const Iteration& it) { return it.start <= middle; });
    if (next == iterations_.begin() || middle > std::prev(next)->end) continue;
    const auto at = static_cast<std::size_t>(std::prev(next) - iterations_.begin());
    op.iteration = iterations_[at].number;
    if (!had[at].insert(identity(op.action)).second) twice[at] = 1;
  }
  for (std::size_t i = 0; i < iterations_.size(); ++i) {
    iterations_[i].whole = had[i].size() == all.size() && twice[i] == 0;
  }
}

// Splits ops without ProfilerStep ranges by repetition. An iteration starts where no microbatch is in flight; of such
// positions in the first period, at the lowest microbatch.
void KinetoRank::split_by_repetition() {
  std::set<Identity> all;
  for (const Range& op : ops_) all.insert(identity(op.action));
  const std::size_t period = all.size();
  using Forward = std::tuple<int, int, int>;
  const auto forward_of = [](const RowOp& op) { return Forward{op.stage, op.microbatch, op.slice}; };
  // Whether the period that starts at `begin` has each op once, and each backward after its forward.
  const auto whole = [&](std::size_t begin) {
    if (begin + period > ops_.size()) return false;
    std::set<Identity> had;
    std::set<Forward> forwards;
    for (std::size_t i = begin; i < begin + period; ++i) {
      const PipelineAction& action = ops_[i].action;
      if (!had.insert(identity(action)).second) return false;
      const bool joint = action.kind == PipelineAction::Kind::joint;
      if (action.op.kind == OpKind::F) forwards.insert(forward_of(action.op));
      if (action.op.kind != OpKind::F && !forwards.contains(forward_of(action.op))) return false;
      if (!joint) continue;
      if (action.partner.kind == OpKind::F) forwards.insert(forward_of(action.partner));
      if (action.partner.kind != OpKind::F && !forwards.contains(forward_of(action.partner))) return false;
    }
    return true;
  };
  std::size_t begin = ops_.size();
  const std::size_t most = std::min(period, ops_.size() - period + 1);
  for (std::size_t i = 0; i < most; ++i) {
    const auto first = [&](std::size_t at) {
      return std::tuple(ops_[at].action.op.microbatch, ops_[at].action.op.stage, at);
    };
    if (ops_[i].action.op.kind != OpKind::F) continue;
    if (begin < ops_.size() && first(begin) <= first(i)) continue;
    if (whole(i)) begin = i;
  }
  if (begin == ops_.size()) {
    throw InputError(source_ +
                     ": /traceEvents: expected complete iterations with each op once and after its dependencies; "
                     "record with ProfilerStep ranges (torch.profiler's step())");
  }
  for (std::size_t at = begin; at < ops_.size(); at += period) {
    const std::size_t end = std::min(at + period, ops_.size());
    const auto number = static_cast<std::int64_t>(iterations_.size());
    for (std::size_t i = at; i < end; ++i) ops_[i].iteration = number;
    iterations_.push_back({.number = number, .whole = whole(at), .start = ops_[at].start, .end = ops_[end - 1].end});
  }
}

// Assigns transfers, reductions and optimizer steps to iterations: a receive to the first iteration whose ops end after
// it, all others to the last iteration whose ops start before them.
void KinetoRank::number_others() {
  std::map<std::int64_t, std::pair<Duration, Duration>> spans;  // first start and last end of the ops, by iteration
  for (const Range& op : ops_) {
    if (op.iteration < 0) continue;
    const auto [at, fresh] = spans.try_emplace(op.iteration, op.start, op.end);
    if (!fresh) at->second.second = std::max(at->second.second, op.end);
  }
  const auto number = [&](Range& range) {
    const bool receive = range.action.kind == PipelineAction::Kind::receive;
    for (const auto& [iteration, span] : spans) {
      if (receive && span.second >= range.end) {
        range.iteration = iteration;
        return;
      }
      if (!receive && span.first <= range.start) range.iteration = iteration;
    }
  };
  for (Range& range : transfers_) number(range);
  for (Range& range : others_) number(range);
}

std::vector<KinetoRank::Iteration> KinetoRank::whole_iterations() const {
  std::vector<Iteration> out;
  std::copy_if(iterations_.begin(), iterations_.end(), std::back_inserter(out),
               [](const Iteration& i) { return i.whole; });
  return out;
}

}  // namespace sluice::traces
