// How a worker observes the progress of its device and collects the results of a run.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "exec/run/device_worker.h"
#include "exec/steady_clock.h"
#include "exec/watch/failure.h"

namespace sluice::exec {
namespace {

// Ops enqueued on the compute stream and not done: enough that the device never idles, few enough that a failure is
// noticed soon.
constexpr std::size_t kAhead = 8;

// A stream takes about 1,024 launches before the next one blocks the host, which could then neither answer other
// workers nor notice their failure. At most three times this number are enqueued; one GEMM may be two launches.
constexpr std::int64_t kLaunchesPerMark = 128;

// Time between two queries of events. Queries hold a lock that launches need, and the device has enough work meanwhile.
constexpr std::int64_t kBetweenQueries_ns = 10'000;

// Waits briefly, at first by yielding: work of a device ends within microseconds, or takes long.
class Backoff {
 public:
  explicit Backoff(bool crowded) : looks_left_(crowded ? 20 : 5000) {}
  void wait() {
    if (--looks_left_ > 0) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  int looks_left_;
};

// Time for the worker that caused a non-finite result to report it first.
constexpr std::int64_t kReportGrace_ns = 3'000'000'000;

}  // namespace

// Checks what the device has completed, and whether anything has failed.
void DeviceWorker::observe() {
  if (transport_.stopped()) throw Stopped("stopped");
  links_->progress();
  const std::size_t computed = compute_done_;
  const std::size_t collected = collective_done_;
  query();
  for (std::size_t i = computed; i < compute_done_; ++i) check_flag(compute_items_[i]);
  for (std::size_t i = collected; i < collective_done_; ++i) check_flag(collective_items_[i]);
}

// Queries the events of the device, unless the last time was just before or another thread queries those of the GPU.
void DeviceWorker::query() {
  const std::int64_t now = now_ns();
  if (now < next_query_ns_) return;
  std::unique_lock<std::mutex> turn;
  if (services_.queries != nullptr) {
    turn = std::unique_lock(*services_.queries, std::try_to_lock);
    if (!turn.owns_lock()) return;
  }
  while (compute_done_ < compute_issued_ && done(items_[compute_items_[compute_done_]])) ++compute_done_;
  while (collective_done_ < collective_issued_ && done(items_[collective_items_[collective_done_]])) ++collective_done_;
  if (awaited_ != nullptr && device_.done(*awaited_)) awaited_ = nullptr;
  update_recorder();
  next_query_ns_ = now_ns() + kBetweenQueries_ns;
}

void DeviceWorker::wait_until_done(Event& event) {
  Backoff backoff(crowded_);
  awaited_ = &event;
  observe();
  while (awaited_ != nullptr) {
    call_meanwhile();
    backoff.wait();
    observe();
  }
}

// Called after each launch of the compute stream: observes regularly, also inside an op, and limits the launches that
// are enqueued.
void DeviceWorker::pace() {
  if (pacing_ || ++launches_ % kLaunchesPerMark != 0) return;
  pacing_ = true;
  Event& mark = *marks_[launches_ / kLaunchesPerMark % marks_.size()];
  wait_until_done(mark);  // recorded two marks ago
  device_.record(mark, *compute_);
  pacing_ = false;
}

// Records what the device is doing: the first op that is not done, running or waiting for its input.
void DeviceWorker::update_recorder() {
  if (services_.recorder == nullptr) return;
  Doing now{.activity = meeting_ ? Activity::reducing : Activity::working, .vertex = next_vertex_};
  if (dispatching_) now.activity = Activity::dispatching;
  if (compute_done_ < compute_issued_) {
    const Item& item = items_[compute_items_[compute_done_]];
    now = {.activity = Activity::working, .vertex = item.vertex};
    const PlannedStep& step = rank_.steps[item.index];
    for (int i = 0; step.kind == PlannedStep::Kind::op && i < step.num_ops; ++i) {
      const int receive = step.ops[i].receive;
      if (receive == kNone || device_.done(*receives_[receive].done)) continue;
      now.activity = Activity::waiting;
      now.waits_for = rank_.receives[receive].vertex;
    }
    for (const int collective : step.waits_for) {
      if (done(items_[item_of_[rank_.collectives[collective].vertex]])) continue;
      now.activity = Activity::waiting;
      now.waits_for = rank_.collectives[collective].vertex;
    }
  } else if (held_collective_.vertex != Doing::no_vertex) {
    now = {.activity = Activity::waiting, .vertex = next_vertex_, .waits_for = held_collective_.vertex};
  } else if (next_waits_for_ != Doing::no_vertex) {
    now.activity = Activity::waiting;
    now.waits_for = next_waits_for_;
  }
  const auto record = [&](WorkerThread thread, const Doing& what) {
    Doing& last = recorded_[static_cast<std::size_t>(thread)];
    if (last.activity == what.activity && last.vertex == what.vertex && last.waits_for == what.waits_for) return;
    last = what;
    doing(thread, what.activity, what.vertex, what.waits_for);
  };
  record(WorkerThread::compute, now);
  if (collective_items_.empty()) return;
  Doing collective{.activity = Activity::between};
  if (held_collective_.vertex != Doing::no_vertex) collective = held_collective_;
  if (collective_done_ < collective_issued_) {
    const Item& item = items_[collective_items_[collective_done_]];
    const PlannedCollective& planned = rank_.collectives[item.index];
    const bool begun = !planned.after_any || done(items_[item_of_[planned.after]]);
    collective.activity = begun ? Activity::exchanging : Activity::waiting;
    collective.vertex = item.vertex;
    collective.waits_for = begun ? 0 : planned.after;
  }
  record(WorkerThread::collective, collective);
}

void DeviceWorker::keep_up() {
  Backoff backoff(crowded_);
  observe();
  while (compute_issued_ - compute_done_ > kAhead) {
    call_meanwhile();
    backoff.wait();
    observe();
  }
}

// Makes later work on the compute stream wait for the message.
void DeviceWorker::wait_on_device(DeviceMessage& message, VertexId vertex, VertexId transfer) {
  Backoff backoff(crowded_);
  next_vertex_ = vertex;
  next_waits_for_ = transfer;
  while (!message.placed.load(std::memory_order_acquire)) {
    call_meanwhile();
    observe();
    backoff.wait();
  }
  next_waits_for_ = Doing::no_vertex;
  device_.wait(*compute_, *message.done);
}

// --- the end of a run ----------------------------------------------------------------------------------------------

void DeviceWorker::finish() {
  call_meanwhile();
  for (const std::size_t item : collective_items_) device_.wait(*compute_, *items_[item].end);
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    if (fault_at(rank_.sends[i].vertex).drop) continue;
    wait_on_device(sends_[i], rank_.sends[i].vertex, rank_.sends[i].vertex);
  }
  device_.copy(small_host_, small_device_, small_bytes_, *compute_);
  device_.record(*last_, *compute_);
  wait_until_done(*last_);
  while (compute_done_ < compute_issued_ || collective_done_ < collective_issued_) observe();
  if (transport_.stopped()) throw Stopped("stopped");  // the messages of a run that is aborted end without their data
  take_norms();
  std::copy_n(on_host_.losses, unit_losses_.size(), unit_losses_.begin());
  add_up_losses();
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    // If only the other end knows when it began: when it could have begun.
    events_of(run_number_).sends_began[i] = sends_[i].started != nullptr ? sends_[i].started : sends_[i].ready;
  }
  steps_done_ += std::ssize(learning_rates_);
  ++run_number_;
  doing(WorkerThread::compute, Activity::between);
}

void DeviceWorker::check_flag(std::size_t item) {
  if (flags_[item] == 0) return;
  if (items_[item].collective || rank_.steps[items_[item].index].kind == PlannedStep::Kind::optimizer) {
    fail_gradients(items_[item].vertex);
  }
  // Input from another worker may have been corrupted there: give it time to report that first.
  const PlannedStep& step = rank_.steps[items_[item].index];
  bool received = false;
  for (int i = 0; i < step.num_ops; ++i) received = received || step.ops[i].receive != kNone;
  let_others_report(received ? kReportGrace_ns : 0);
  fail_not_finite(items_[item].vertex, plan_.graph()[items_[item].vertex].microbatch);
}

// Throws Stopped if another worker reports a failure within that time.
void DeviceWorker::let_others_report(std::int64_t time_ns) const {
  const std::int64_t until = now_ns() + time_ns;
  while (now_ns() < until) {
    if (transport_.stopped()) throw Stopped("stopped");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void DeviceWorker::take_norms() {
  skipped_steps_ = 0;
  if (!has_norm()) return;
  for (std::int64_t step = 0; step < plan_.steps_per_run(); ++step) {
    const double norm = on_host_.norms[step];
    const bool overflowed = !std::isfinite(norm);
    skipped_steps_ += overflowed ? 1 : 0;
    if (!overflowed) norm_ = norm;
    if (loss_scale_.update(overflowed)) continue;
    let_others_report(kReportGrace_ns);
    throw RunFailure(FailureKind::non_finite, world_rank_,
                     fmt::format("the global gradient norm of step {} is not finite", first_step_ + 1));
  }
}

void DeviceWorker::read_times() {
  const RunEvents& events = events_of(run_number_ - 1);
  const auto time_of = [&](Event& event) { return events.base_ns + device_.nanoseconds_between(*events.base, event); };
  times_ = {};
  std::int64_t free_since = events.base_ns;
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    ends_[rank_.receives[i].vertex] = time_of(*events.receives[2 * i + 1]);
  }
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    Event* const began = events.sends_began[i];
    if (began != nullptr) starts_[rank_.sends[i].vertex] = time_of(*began);
  }
  for (const std::size_t at : collective_items_) {
    starts_[items_[at].vertex] = time_of(*events.begins[at]);
    ends_[items_[at].vertex] = time_of(*events.ends[at]);
  }
  for (const std::size_t at : compute_items_) {
    const Item& item = items_[at];
    const PlannedStep& step = rank_.steps[item.index];
    const std::int64_t start = starts_[item.vertex] = time_of(*events.begins[at]);
    const std::int64_t end = ends_[item.vertex] = time_of(*events.ends[at]);
    // The time of recomputation within a backward is not known.
    if (step.recomputes) starts_[step.recompute] = ends_[step.recompute] = start;
    std::int64_t inputs = free_since;
    for (int op = 0; step.kind == PlannedStep::Kind::op && op < step.num_ops; ++op) {
      const int receive = step.ops[op].receive;
      if (receive != kNone) inputs = std::max(inputs, ends_[rank_.receives[receive].vertex]);
    }
    for (const int collective : step.waits_for) {
      inputs = std::max(inputs, ends_[rank_.collectives[collective].vertex]);
    }
    times_.waiting += std::min(inputs, start) - free_since;
    times_.kernels += end - start;
    free_since = end;
  }
  times_.total = free_since - events.base_ns;
  parts_.clear();
  for (std::size_t i = 0; i < events.parts.size(); ++i) {
    VertexPart& part = parts_.emplace_back(events.parts[i]);
    part.time.start_ns = time_of(*events.part_times[2 * i]);
    part.time.end_ns = time_of(*events.part_times[2 * i + 1]);
  }
  // The parts of an op are consecutive, in the order of time.
  for (auto begin = parts_.begin(); begin != parts_.end();) {
    const auto end =
        std::find_if(begin, parts_.end(), [&](const VertexPart& part) { return part.vertex != begin->vertex; });
    std::stable_sort(begin, end,
                     [](const VertexPart& a, const VertexPart& b) { return a.time.start_ns < b.time.start_ns; });
    begin = end;
  }
  count_held();
}

// Computes the maximum of the bytes held while each step ran: its blocks, and the buffers of messages that had arrived
// and were not yet read.
void DeviceWorker::count_held() {
  std::vector<std::int64_t> read_at(receives_.size(), std::numeric_limits<std::int64_t>::max());
  for (const PlannedStep& step : rank_.steps) {
    for (int i = 0; step.kind == PlannedStep::Kind::op && i < step.num_ops; ++i) {
      const int receive = step.ops[i].receive;
      if (receive != kNone) read_at[receive] = ends_[step.vertex];
    }
  }
  most_held_ = 0;
  for (std::size_t i = 0; i < rank_.steps.size(); ++i) {
    const PlannedStep& step = rank_.steps[i];
    if (step.kind == PlannedStep::Kind::send) continue;
    std::int64_t held = arena_plan_.standing_bytes + rank_.held_after_start[i];
    for (std::size_t receive = 0; receive < receives_.size(); ++receive) {
      const bool has_come = ends_[rank_.receives[receive].vertex] <= starts_[step.vertex];
      if (has_come && read_at[receive] > starts_[step.vertex]) held += rank_.receives[receive].bytes;
    }
    most_held_ = std::max(most_held_, held);
  }
}

}  // namespace sluice::exec
