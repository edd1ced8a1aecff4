#include "exec/measure/trial.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "exec/plan/host_memory.h"
#include "exec/run/worker.h"
#include "exec/steady_clock.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr int kVisits = 5;  // per plan

// Distributes the rounds of a profile over the runs.
class InterleavedProfiler {
 public:
  InterleavedProfiler(const ProfilingSpec& spec, Transport& transport, const WorkerDevice& device, int total_runs)
      : spec_(spec), transport_(transport), profiler_(spec, transport, device), total_runs_(total_runs) {
    profiler_.round();
  }

  void after_run(int runs_done) {
    const double fraction = static_cast<double>(runs_done) / total_runs_;
    while (true) {
      const bool wanted = spent_s_ < spec_.budget_s * fraction || rounds_ < spec_.least_rounds * fraction;
      std::byte more{wanted};
      transport_.broadcast({&more, 1});
      if (more == std::byte{0}) return;
      const std::int64_t began = now_ns();
      profiler_.round();
      spent_s_ += in_seconds(now_ns() - began);
      ++rounds_;
    }
  }
  Profile gather() { return profiler_.gather(); }
  bool disturbed() const { return profiler_.disturbed(); }

 private:
  const ProfilingSpec& spec_;
  Transport& transport_;
  Profiler profiler_;
  int total_runs_;
  double spent_s_ = 0;
  int rounds_ = 0;
};

// Sent by each worker, followed by its times.
struct TrialNote {
  std::int64_t held = 0;
  std::int64_t arena = 0;
  CoreWait wait;
  bool calm = true;
};

// Adds the results of a run, unless it is a warm-up, on all workers of the first replica to `trials`, on rank 0.
void gather_run(const RunPlan& plan, const TrialNote& note, const Worker& worker, Transport& transport, bool warm_up,
                PlanTrials& trials) {
  const std::size_t times = plan.graph().size() * sizeof(std::int64_t);
  const std::span<const std::byte> parts = std::as_bytes(worker.parts());
  std::vector<std::byte> bytes(sizeof note + 2 * times + parts.size());
  std::memcpy(bytes.data(), &note, sizeof note);
  std::memcpy(bytes.data() + sizeof note, worker.starts().data(), times);
  std::memcpy(bytes.data() + sizeof note + times, worker.ends().data(), times);
  std::copy(parts.begin(), parts.end(), bytes.end() - std::ssize(parts));
  const auto all = transport.gather(bytes);
  if (transport.rank() != 0) return;
  const auto ranks = to_size(plan.layout().pipeline);
  trials.held_bytes.resize(ranks);
  trials.arena_bytes.resize(ranks);
  std::vector<WorkerClock> clocks(ranks);
  bool calm = true;
  for (const auto& from : all) {
    TrialNote of;
    std::memcpy(&of, from.data(), sizeof of);
    calm = calm && of.calm;
    if (warm_up) continue;
    trials.longest_wait_ns = std::max(trials.longest_wait_ns, of.wait.nanoseconds);
    trials.switches += of.wait.switches;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto& from = all[plan.layout().world_rank(static_cast<int>(rank), 0, 0)];
    TrialNote of;
    std::memcpy(&of, from.data(), sizeof of);
    trials.held_bytes[rank] = std::max(trials.held_bytes[rank], of.held);
    trials.arena_bytes[rank] = of.arena;
    clocks[rank].starts.resize(plan.graph().size());
    clocks[rank].ends.resize(plan.graph().size());
    std::memcpy(clocks[rank].starts.data(), from.data() + sizeof of, times);
    std::memcpy(clocks[rank].ends.data(), from.data() + sizeof of + times, times);
    const std::size_t part_bytes = from.size() - sizeof of - 2 * times;
    clocks[rank].parts.resize(part_bytes / sizeof(VertexPart));
    if (part_bytes > 0) std::memcpy(clocks[rank].parts.data(), from.data() + from.size() - part_bytes, part_bytes);
  }
  if (!warm_up) (calm ? trials.clocks : trials.disturbed).push_back(std::move(clocks));
}

// Runs the graph once. Throws what the worker throws.
TrialNote run_once(const TrialSpec& spec, const RunPlan& plan, Worker& worker, const CoreWaitMeter& meter, int run) {
  const std::vector<double> rates(to_size(plan.steps_per_run()), plan.spec().optimizer.learning_rate);
  const CoreWait before = meter.read();
  const std::int64_t began = now_ns();
  try {
    worker.run(std::int64_t{run} * plan.batches(), rates, {});
    worker.read_times();
  } catch (const Stopped&) {
    worker.rethrow_own_error();
    throw;
  }
  TrialNote note{.held = worker.held_bytes(), .arena = worker.arena_bytes(), .wait = meter.read() - before};
  note.calm = plan.on_devices() || is_calm(note.wait, now_ns() - began, spec.most_wait);
  return note;
}

TrialReport run_trials(const TrialSpec& spec, Transport& transport, const WorkerDevice& device,
                       const TrialObserver& observer, Supervisor* supervisor) {
  Recorder* const recorder = supervisor == nullptr ? nullptr : supervisor->recorder(transport.rank());
  ControlRecorder control(transport, recorder);
  control.enter(ControlPhase::measurement, ControlRecorder::kNoStep);
  TrialReport report;
  report.plans.resize(spec.plans.size());
  const int total = spec.runs * static_cast<int>(spec.plans.size());
  std::unique_ptr<InterleavedProfiler> profile;
  if (spec.profiling != nullptr)
    profile = std::make_unique<InterleavedProfiler>(*spec.profiling, transport, device, total);
  const CoreWaitMeter meter;
  const int visits = std::min(spec.runs, kVisits);
  const auto runs_until = [&](int visit) { return spec.runs * visit / visits; };  // of a plan
  int done = 0;
  for (int visit = 0; visit < visits; ++visit) {
    for (std::size_t i = 0; i < spec.plans.size(); ++i) {
      const RunPlan& plan = *spec.plans[i];
      PlanTrials& trials = report.plans[i];
      if (device.device != nullptr) {
        check_device_memory(plan.arena(plan.layout().pipeline_rank(transport.rank())).total_bytes, device);
      }
      // The other workers are not in a graph either: they have taken part in the last collective.
      if (supervisor != nullptr) supervisor->use(transport.rank(), plan.graph());
      control.enter(ControlPhase::start, ControlRecorder::kNoStep);
      const std::unique_ptr<Worker> worker = make_worker(plan, transport.rank(), transport,
                                                         {.tokens = spec.tokens[i],
                                                          .recorder = recorder,
                                                          .device = device.device,
                                                          .device_transport = device.transport,
                                                          .queries = device.queries});
      worker->initialise();
      const int wanted = runs_until(visit + 1) - runs_until(visit);
      std::byte more{1};
      for (int run = 0; more != std::byte{0}; ++run) {
        transport.barrier();
        const TrialNote note = run_once(spec, plan, *worker, meter, run);
        const std::int64_t step = std::int64_t{run} * plan.batches();
        if (supervisor != nullptr) supervisor->expect(worker->starts(), worker->ends());
        control.enter(ControlPhase::report, step);
        gather_run(plan, note, *worker, transport, run == 0, trials);
        control.enter(ControlPhase::next_step, step);
        if (run == 0) continue;
        more = std::byte{std::ssize(trials.clocks) < runs_until(visit + 1) && run < TrialSpec::kMostRuns * wanted};
        transport.broadcast({&more, 1});
        const int so_far = done + (more == std::byte{0} ? wanted : std::min(run, wanted - 1));
        if (transport.rank() == 0 && observer) observer(so_far);
        if (!profile) continue;
        control.enter(ControlPhase::measurement, step);
        profile->after_run(so_far);
      }
      done += wanted;
    }
  }
  if (profile) {
    report.profile = profile->gather();
    report.profile_disturbed = profile->disturbed();
  }
  return report;
}

}  // namespace

TrialReport run_trials_as_process(const TrialSpec& spec, Transport& transport, const WorkerDevice& device,
                                  const TrialObserver& observer, const Supervision& supervision) {
  TrialReport report;
  work_as_process({spec.plans, supervision}, transport, device,
                  [&](Transport& to, const WorkerDevice& on, Supervisor* supervisor) {
                    report = run_trials(spec, to, on, observer, supervisor);
                  });
  return report;
}

TrialReport run_trials_with_threads(const TrialSpec& spec, const TrialObserver& observer,
                                    const Supervision& supervision) {
  const RunLayout& layout = spec.plans.front()->layout();
  const std::vector<int> workers_here(to_size(layout.pipeline), layout.data * layout.tensor);
  for (const RunPlan* plan : spec.plans) {
    plan->on_devices() ? check_device_memory(*plan, *spec.devices)
                       : check_memory(*plan, workers_here, available_memory_bytes());
  }
  TrialReport report;
  const RunDevices cpu;
  work_on_threads({spec.plans, supervision}, layout.size(), spec.devices != nullptr ? *spec.devices : cpu,
                  [&](Transport& transport, const WorkerDevice& device, Supervisor* supervisor) {
                    TrialReport own = run_trials(spec, transport, device, observer, supervisor);
                    if (transport.rank() == 0) report = std::move(own);
                  });
  return report;
}

}  // namespace sluice::exec
