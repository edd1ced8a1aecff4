#include "exec/training_run.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "exec/failure.h"
#include "exec/host_memory.h"
#include "exec/transport/threads.h"

namespace sluice {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// What a worker tells the root of a run of the graph, as bytes.
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

Note note_of(const Worker& worker, bool keep_clock) {
  Note note;
  note.put_all(worker.losses());
  note.put(worker.gradient_norm());
  note.put(worker.held_bytes());
  note.put(worker.arena_bytes());
  note.put(worker.times());
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (const std::int64_t start : worker.starts()) first = start > 0 ? std::min(first, start) : first;
  for (const std::int64_t end : worker.ends()) last = std::max(last, end);
  note.put(first);
  note.put(last);
  if (keep_clock) {
    note.put_all(worker.starts());
    note.put_all(worker.ends());
  }
  return note;
}

// Whether the worker is of the replica and the tensor share whose times are kept.
bool of_first_replica(const RunLayout& layout, int world_rank) {
  return layout.data_rank(world_rank) == 0 && layout.tensor_rank(world_rank) == 0;
}

RunReport read_notes(std::vector<std::vector<std::byte>> all, const RunPlan& plan, bool keep,
                     std::vector<WorkerReport>& workers) {
  const RunLayout& layout = plan.layout();
  RunReport report;
  report.losses.assign(index(plan.batches()), 0);
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (int rank = 0; rank < layout.size(); ++rank) {
    Note note(std::move(all[index(rank)]));
    const auto losses = note.take_all<double>(report.losses.size());
    // Tensor ranks have the same losses; replicas, and the two ranks of a replicated last stage, their own.
    for (std::size_t i = 0; layout.tensor_rank(rank) == 0 && i < losses.size(); ++i) report.losses[i] += losses[i];
    report.gradient_norm = std::max(report.gradient_norm, note.take<double>());
    WorkerReport& worker = workers[index(rank)];
    worker.held_bytes = std::max(worker.held_bytes, note.take<std::int64_t>());
    worker.arena_bytes = note.take<std::int64_t>();
    worker.times = note.take<WorkerTimes>();
    const auto its_first = note.take<std::int64_t>();
    const auto its_last = note.take<std::int64_t>();
    if (!of_first_replica(layout, rank)) continue;
    first = std::min(first, its_first);
    last = std::max(last, its_last);
    if (!keep) continue;
    WorkerClock clock;
    clock.starts = note.take_all<std::int64_t>(plan.graph().size());
    clock.ends = note.take_all<std::int64_t>(plan.graph().size());
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

TrainingReport train(Worker& worker, Transport& transport, const RunPlan& plan, const TrainingOptions& options,
                     const WorkerHooks& hooks, const RunObserver& observer) {
  const bool root = transport.rank() == 0;
  TrainingReport report;
  report.workers.resize(index(root ? transport.size() : 0));
  if (hooks.begin) {
    hooks.begin(worker, transport);
  } else {
    worker.initialise();
  }
  std::int64_t step = options.first_step;
  std::vector<double> rates(index(plan.steps_per_run()));
  for (int run = 0; run < options.runs; ++run) {
    // Of stashed weights each microbatch is a step of its own; the rate follows its batch.
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const std::int64_t batch = static_cast<std::int64_t>(i) * plan.batches() / std::ssize(rates);
      rates[i] = learning_rate_of(plan, options, step + batch);
    }
    transport.barrier();
    worker.run(step, rates);
    const bool keep = options.keep_timelines && of_first_replica(plan.layout(), transport.rank());
    auto all = transport.gather(note_of(worker, keep).bytes());
    step += plan.batches();
    if (root) {
      RunReport of_run = read_notes(std::move(all), plan, options.keep_timelines, report.workers);
      of_run.first_step = step - plan.batches();
      if (observer) observer(of_run);
      report.runs.push_back(std::move(of_run));
    }
    if (hooks.after_run) hooks.after_run(worker, transport, step);
  }
  return report;
}

TrainingReport train_with_threads(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options,
                                  const WorkerHooks& hooks, const RunObserver& observer) {
  const RunLayout& layout = plan.layout();
  const std::vector<int> workers_here(index(layout.pipeline), layout.data * layout.tensor);
  check_memory(plan, workers_here, available_memory_bytes());
  ThreadFabric fabric(layout.size());
  std::vector<std::unique_ptr<Worker>> workers(index(layout.size()));
  TrainingReport report;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto fail = [&](std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::move(error);
  };
  const auto body = [&](int rank) {
    Transport& transport = fabric.worker(rank);
    try {
      // Made by the thread that uses it, so that its memory is near.
      workers[index(rank)] = std::make_unique<Worker>(plan, rank, transport, WorkerServices{.tokens = &tokens});
      TrainingReport own = train(*workers[index(rank)], transport, plan, options, hooks, observer);
      if (rank == 0) report = std::move(own);
    } catch (const Stopped&) {
      try {
        if (workers[index(rank)]) workers[index(rank)]->rethrow_collective_error();
      } catch (const Stopped&) {
      } catch (...) {
        fail(std::current_exception());
      }
    } catch (...) {
      fail(std::current_exception());
      transport.stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < layout.size(); ++rank) threads.emplace_back(body, rank);
  }
  // Collective threads end with their workers; the fabric outlives them.
  workers.clear();
  if (failure) std::rethrow_exception(failure);
  return report;
}

}  // namespace sluice
