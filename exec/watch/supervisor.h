#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "exec/watch/failure.h"
#include "exec/watch/recorder.h"
#include "exec/watch/wait_chain.h"
#include "exec/watch/watchdog.h"
#include "model/graph/op_graph.h"

namespace sluice::exec {

// How the workers of a run are watched, and what happens when they do not make progress.
struct Supervision {
  // Existing folder for the flight recorders, shared by the processes of a host. Empty: the run is not watched.
  std::string folder;
  // expected_ns is set by the supervisor: the duration of each op in the previous run of the graph.
  WaitLimits limits;
  // Handle SIGTERM and SIGINT, for which HeldSignals must exist. The first one ends the run after the current run of
  // the graph, or on devices possibly after the next one (`stop_signal`), but no later than `grace` afterwards; a
  // second one, or one before the first step, ends the process immediately. A SIGTERM that a launcher sends because
  // another process has died ends the run with a report of the wait-for chain.
  bool signals = false;
  std::chrono::milliseconds grace{25000};
  std::chrono::milliseconds patience{4000};  // for workers to end once the run has been stopped
  // Called when some workers do not end in that time: ends the process.
  std::function<void(const RunFailure&)> give_up;
  // Called for a second signal, or one before the first step (`in_step` is false): ends the process.
  std::function<void(int signal, bool in_step)> end_now;
};

// What the workers of one process share besides messages: their recorders, the watchdog and the first failure.
class Supervisor {
 public:
  // `owners` of all workers, by world rank; `here` are the world ranks of this process. `stop` ends all waiting of the
  // workers of this process. `graphs`: those that the workers will run, from the first one on. They and `supervision`
  // outlive this.
  Supervisor(std::span<const OpGraph* const> graphs, const Supervision& supervision, std::vector<RecorderOwner> owners,
             const std::vector<int>& here, std::function<void()> stop);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Null if the run is not watched or the worker belongs to another process.
  Recorder* recorder(int world_rank);
  // Starts the watchdog. Precondition: the recorders of all processes exist.
  void watch();
  // The worker runs this graph from now on. Called by all workers of all processes between the same two collectives.
  void use(int world_rank, const OpGraph& graph);
  // Called when the first step begins: from then on, a signal ends the run after the current step.
  void begin_steps() { in_steps_.store(true); }
  // Takes a worker's times of the last run of the graph (by vertex, ns; 0 if unknown) as expectation for the next.
  void expect(std::span<const std::int64_t> starts, std::span<const std::int64_t> ends);
  // The signal that has asked this process to end the run, or 0.
  int stop_signal() const { return stop_signal_.load(); }

  // Reports that a worker has ended because of `error`, and stops the others. The first error is the run's failure,
  // unless another process has already found one, or has died.
  void fail(int world_rank, const std::exception_ptr& error);
  // Ends supervision once all workers of this process have ended. Throws the run's failure, if there was one.
  void end();

 private:
  void alarm(const Alarm& alarm);
  void asked_to_stop(const Alarm& alarm);
  void fail_now(const RunFailure& failure);
  std::exception_ptr agreed(int world_rank, const std::exception_ptr& error);
  std::exception_ptr death_of_another(int world_rank);

  const OpGraph& first_graph_;
  const Supervision& supervision_;
  std::vector<RecorderOwner> owners_;
  int first_here_;
  std::function<void()> stop_;
  std::vector<std::unique_ptr<Recorder>> recorders_;  // by world rank; null for other processes
  std::vector<std::atomic<std::int64_t>> expected_;   // by vertex, ns
  std::atomic<bool> in_steps_{false};
  std::atomic<int> stop_signal_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  bool ended_ = false;
  std::thread grace_;                   // ends the run when the grace period is over
  std::unique_ptr<Watchdog> watchdog_;  // last: its thread uses all of the above
};

}  // namespace sluice::exec
