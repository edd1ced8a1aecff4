#include "exec/run/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "exec/plan/host_memory.h"
#include "exec/run/core_wait.h"
#include "exec/run/watched.h"
#include "exec/steady_clock.h"
#include "exec/transport/threads.h"
#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr std::uint8_t kStopAsked = 255;  // by TrainingOptions::stop: no signal has this number

// Bytes that a worker sends to the root about a run of the graph.
class Note {
 public:
  Note() = default;
  explicit Note(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  void put(const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  template <typename T>
  void put_all(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  template <typename T>
  std::vector<T> take_all(std::size_t count) {
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes_.data() + at_, count * sizeof(T));
    at_ += count * sizeof(T);
    return values;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

// `stop`: see agree_on_stop.
Note note_of(std::uint8_t stop, const Worker& worker, bool keep_clock, bool waited_for_cores) {
  Note note;
  note.put(stop);
  note.put_all(worker.losses());
  note.put(worker.gradient_norm());
  note.put(worker.held_bytes());
  note.put(worker.arena_bytes());
  note.put(worker.times());
  note.put(waited_for_cores);
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (const std::int64_t start : worker.starts()) first = start > 0 ? std::min(first, start) : first;
  for (const std::int64_t end : worker.ends()) last = std::max(last, end);
  note.put(first);
  note.put(last);
  if (keep_clock) {
    note.put_all(worker.starts());
    note.put_all(worker.ends());
    note.put(worker.parts().size());
    note.put_all(worker.parts());
  }
  return note;
}

// Whether the worker belongs to the replica and tensor rank whose times are kept.
bool of_first_replica(const RunLayout& layout, int world_rank) {
  return layout.data_rank(world_rank) == 0 && layout.tensor_rank(world_rank) == 0;
}

RunReport read_notes(std::vector<std::vector<std::byte>> all, const RunPlan& plan, bool keep,
                     std::vector<WorkerReport>& workers) {
  const RunLayout& layout = plan.layout();
  RunReport report;
  report.losses.assign(to_size(plan.batches()), 0);
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (int rank = 0; rank < layout.size(); ++rank) {
    Note note(std::move(all[rank]));
    note.take<std::uint8_t>();  // whether to stop
    const auto losses = note.take_all<double>(report.losses.size());
    // Tensor ranks have the same losses; replicas, and the two ranks of a replicated last stage, have different ones.
    for (std::size_t i = 0; layout.tensor_rank(rank) == 0 && i < losses.size(); ++i) report.losses[i] += losses[i];
    report.gradient_norm = std::max(report.gradient_norm, note.take<double>());
    WorkerReport& worker = workers[rank];
    worker.held_bytes = std::max(worker.held_bytes, note.take<std::int64_t>());
    worker.arena_bytes = note.take<std::int64_t>();
    worker.times = note.take<WorkerTimes>();
    if (note.take<bool>()) report.waited_for_cores = true;
    const auto its_first = note.take<std::int64_t>();
    const auto its_last = note.take<std::int64_t>();
    if (!of_first_replica(layout, rank)) continue;
    first = std::min(first, its_first);
    last = std::max(last, its_last);
    if (!keep) continue;
    WorkerClock clock;
    clock.starts = note.take_all<std::int64_t>(plan.graph().size());
    clock.ends = note.take_all<std::int64_t>(plan.graph().size());
    const auto num_parts = note.take<std::size_t>();
    clock.parts = note.take_all<VertexPart>(num_parts);
    report.clocks.push_back(std::move(clock));
  }
  for (double& loss : report.losses) loss /= plan.tokens_per_batch();
  report.seconds = static_cast<double>(last - first) / 1e9;
  return report;
}

}  // namespace

double learning_rate_of(const RunPlan& plan, const TrainingOptions& options, std::int64_t step) {
  const double whole = plan.spec().optimizer.learning_rate;
  if (step >= options.warmup_steps) return whole;
  return whole * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
}

namespace {

// Tells all workers whether any of them was asked to stop. The first byte of each of `notes`, which the root has
// gathered: 0, the signal that asked its worker, or kStopAsked. Returns the same, for all.
int agree_on_stop(Transport& transport, std::span<const std::vector<std::byte>> notes) {
  std::uint8_t stop = 0;
  for (const auto& note : notes) {
    if (stop == 0) stop = static_cast<std::uint8_t>(note.front());
  }
  transport.broadcast(std::as_writable_bytes(std::span(&stop, 1)));
  return stop;
}

// One training run in this process, as all of its workers see it.
struct TrainingJob {
  const RunPlan& plan;
  const TokenSource& tokens;
  const FaultPlan& faults;
  const TrainingOptions& options;
  Supervisor& supervisor;
  TrainingReport& report;  // of the root
  const WorkerHooks& hooks;
  const RunObserver& observer;

  // Runs one worker: called by every worker with its own transport.
  void train(Worker& worker, Transport& transport) const {
    const bool root = transport.rank() == Transport::kRoot;
    if (root) report.workers.resize(to_size(transport.size()));
    ControlRecorder control(transport, supervisor.recorder(transport.rank()));
    control.enter(ControlPhase::start, options.first_step - 1);
    if (hooks.begin) {
      hooks.begin(worker, transport);
    } else {
      worker.initialise();
    }
    std::int64_t step = options.first_step;
    std::int64_t last = step - 1;  // run of the graph, by its first step
    std::vector<double> rates(to_size(plan.steps_per_run()));
    std::function<void()> report_last;  // empty once it was called
    std::int64_t ended_ns = now_ns();
    const CoreWaitMeter meter;
    int stop = stop_together(transport);
    for (int run = 0; run < options.runs; ++run) {
      // With weight stashing each microbatch is a step; its learning rate is that of its batch.
      for (std::size_t i = 0; i < rates.size(); ++i) {
        const std::int64_t batch = static_cast<std::int64_t>(i) * plan.batches() / std::ssize(rates);
        rates[i] = learning_rate_of(plan, options, step + batch);
      }
      if (stop != 0) {
        if (root) report.interrupted = true;
        if (root && stop != kStopAsked) report.signal = stop;
        if (report_last) report_last();
        control.enter(ControlPhase::checkpoint, last);
        if (hooks.at_stop) hooks.at_stop(worker, transport, step);
        return;
      }
      supervisor.begin_steps();
      last = step;
      const CoreWait before = meter.read();
      const std::int64_t began_ns = now_ns();
      worker.run(last, rates, report_last);
      step += plan.batches();
      const std::int64_t now = now_ns();
      const bool waited = !plan.on_devices() && !is_calm(meter.read() - before, now - began_ns, kMostCoreWait);
      const std::int64_t wall_ns = now - std::exchange(ended_ns, now);
      report_last = [this, &control, &worker, &transport, &stop, last, wall_ns, waited] {
        control.enter(ControlPhase::report, last);
        stop = report_run(worker, transport, last, wall_ns, waited);
      };
      const bool due = hooks.after_run && (!hooks.is_due || hooks.is_due(step));
      if (due || !plan.on_devices() || run + 1 == options.runs) std::exchange(report_last, nullptr)();
      control.enter(ControlPhase::checkpoint, last);
      if (due) hooks.after_run(worker, transport, step);
      control.enter(ControlPhase::next_step, last);
      // The hook may have taken long.
      if (due && run + 1 < options.runs) stop = stop_together(transport);
    }
  }

  std::uint8_t asked_to_stop() const {
    const auto signal = static_cast<std::uint8_t>(supervisor.stop_signal());
    return signal == 0 && options.stop != nullptr && options.stop->load() ? kStopAsked : signal;
  }

  int stop_together(Transport& transport) const {
    const std::uint8_t stop = asked_to_stop();
    return agree_on_stop(transport, transport.gather(std::as_bytes(std::span(&stop, 1))));
  }

  // Returns agree_on_stop: on devices, the report of a run is collected while the next one computes, and the decision
  // with it, so that no run waits for it.
  int report_run(Worker& worker, Transport& transport, std::int64_t first_step, std::int64_t wall_ns,
                 bool waited_for_cores) const {
    worker.read_times();
    const bool keep = options.keep_times != KeepTimes::none;
    const bool first_replica = of_first_replica(plan.layout(), transport.rank());
    if (first_replica) supervisor.expect(worker.starts(), worker.ends());
    auto all = transport.gather(note_of(asked_to_stop(), worker, keep && first_replica, waited_for_cores).bytes());
    if (transport.rank() != Transport::kRoot) return agree_on_stop(transport, all);
    const auto keep_report = [&] {
      RunReport of_run = read_notes(std::move(all), plan, keep, report.workers);
      of_run.first_step = first_step;
      of_run.wall_seconds = static_cast<double>(wall_ns) / 1e9;
      if (observer) observer(of_run);
      if (options.keep_times == KeepTimes::last && !report.runs.empty()) report.runs.back().clocks.clear();
      report.runs.push_back(std::move(of_run));
    };
    int stop = 0;
    try {
      stop = agree_on_stop(transport, all);
    } catch (const Stopped&) {
      keep_report();  // a rank that knew the decision before this one has failed in the next run
      throw;
    }
    keep_report();
    return stop;
  }

  // Creates a worker and trains it; passes its failure to the supervisor.
  void run_worker(std::unique_ptr<Worker>& worker, Transport& transport, const WorkerDevice& device) const {
    const int rank = transport.rank();
    run_watched(supervisor, transport, [&] {
      const WorkerServices services{.tokens = &tokens,
                                    .recorder = supervisor.recorder(rank),
                                    .faults = &faults,
                                    .device = device.device,
                                    .device_transport = device.transport,
                                    .queries = device.queries,
                                    .memory_margin = device.memory_margin};
      // Created by the thread that uses it, so that its memory is local to that.
      worker = make_worker(plan, rank, transport, services);
      try {
        train(*worker, transport);
      } catch (const Stopped&) {
        worker->rethrow_own_error();
        throw;
      }
    });
  }
};

// Faults may be injected up to the last step of the run; steps count from the beginning of training.
FaultPlan faults_of(const RunPlan& plan, const std::vector<RecorderOwner>& owners, const TrainingOptions& options) {
  const std::int64_t steps = options.first_step + std::int64_t{options.runs} * plan.batches();
  return FaultPlan(plan.graph(), owners, static_cast<int>(steps), options.faults, options.announce_fault);
}

}  // namespace

void train_with_threads(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options,
                        TrainingReport& report, const WorkerHooks& hooks, const RunObserver& observer) {
  const RunLayout& layout = plan.layout();
  const std::vector<int> workers_here(to_size(layout.pipeline), layout.data * layout.tensor);
  std::optional<ThreadDevices> thread_devices;
  if (plan.on_devices()) {
    check_device_memory(plan, *options.devices);
    thread_devices.emplace(layout.size(), *options.devices);
  } else {
    check_memory(plan, workers_here, available_memory_bytes());
  }
  const std::vector<RecorderOwner> owners = owners_of(plan);
  const FaultPlan faults = faults_of(plan, owners, options);
  ThreadFabric fabric(layout.size());
  // Workers outlive all threads: one that ends early keeps its buffers for those that still access them.
  std::vector<std::unique_ptr<Worker>> workers(to_size(layout.size()));
  std::vector<int> here(to_size(layout.size()));
  std::iota(here.begin(), here.end(), 0);
  const std::array graphs = {&plan.graph()};
  Supervisor supervisor(graphs, options.supervision, owners, here, [&] { fabric.worker(Transport::kRoot).stop(); });
  supervisor.watch();
  const TrainingJob job{plan, tokens, faults, options, supervisor, report, hooks, observer};
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < layout.size(); ++rank) {
      threads.emplace_back([&, rank] {
        WorkerDevice device;
        if (thread_devices) device = thread_devices->of(fabric.worker(rank));
        job.run_worker(workers[rank], fabric.worker(rank), device);
      });
    }
  }
  for (int rank = 0; rank < layout.size(); ++rank) {
    const Worker* const worker = workers[rank].get();
    if (options.keep_times == KeepTimes::none || !of_first_replica(layout, rank) || worker == nullptr) continue;
    report.broken.push_back(
        {{worker->starts().begin(), worker->starts().end()}, {worker->ends().begin(), worker->ends().end()}});
  }
  // Keep memory and events while other devices may access them.
  if (thread_devices) thread_devices->drain();
  for (const auto& worker : workers) {
    if (worker != nullptr) worker->settle();
  }
  workers.clear();
  supervisor.end();
  report.broken.clear();
}

void train_as_process(const RunPlan& plan, Transport& transport, const TokenSource& tokens,
                      const TrainingOptions& options, TrainingReport& report, const WorkerHooks& hooks,
                      const RunObserver& observer) {
  const RunLayout& layout = plan.layout();
  if (transport.size() != layout.size()) {
    throw InputError(fmt::format("expected {1} processes ({2} pipeline x {3} data x {4} tensor ranks), got {0}",
                                 transport.size(), layout.size(), layout.pipeline, layout.data, layout.tensor));
  }
  WorkerDevice device;
  std::optional<FaultPlan> faults;
  std::unique_ptr<Worker> worker;
  const WatchedPlans watched{{&plan}, options.supervision};
  const auto begin_check = [&](const std::vector<RecorderOwner>& owners, const std::vector<int>& workers_here) {
    if (plan.on_devices()) {
      check_device_memory(plan, *options.devices);
      device = {options.devices->devices[transport.rank()], options.devices->transport, nullptr,
                options.devices->memory_margin};
    } else {
      check_memory(plan, workers_here, available_memory_bytes());
    }
    faults.emplace(faults_of(plan, owners, options));
  };
  const std::unique_ptr<Supervisor> supervisor = watch_process(watched, transport, begin_check);
  report.began = true;
  const TrainingJob job{plan, tokens, *faults, options, *supervisor, report, hooks, observer};
  job.run_worker(worker, transport, device);
  worker.reset();
  supervisor->end();
}

}  // namespace sluice::exec
