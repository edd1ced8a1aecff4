#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/watch/failure.h"
#include "exec/watch/recorder.h"
#include "exec/watch/wait_chain.h"
#include "model/graph/op_graph.h"

namespace sluice::exec {

// Handles SIGTERM and SIGINT during its lifetime, whichever thread receives them (the BLAS has threads of its own
// before main begins). Until a Watchdog takes signals, they end the process with exit code 128 + signal. From then on,
// they are held for watchdogs, and those that none has taken are raised again when it ends. At most one may exist.
class HeldSignals {
 public:
  // Throws std::system_error if there is no file descriptor left.
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  struct sigaction terminate_before_ {};
  struct sigaction interrupt_before_ {};
};

struct WatchdogOptions {
  std::string folder;  // of the workers' recorder files, named by recorder_name
  WaitLimits limits;
  std::chrono::milliseconds period{50};
  bool take_signals = false;  // handle the signals of HeldSignals, which must exist
  // Returns the failure that another process has found, once there is one. May be empty.
  std::function<std::optional<RunFailure>()> found_by_others;
};

// The reason for an alarm.
struct Alarm {
  WaitReport report;
  int signal = 0;  // SIGTERM or SIGINT, or 0; after a signal the report may have no root at fault
  std::optional<RunFailure> found_by_others;  // if set, there is no report
};

// A thread that observes all workers whose recorders it can read. Calls `on_alarm` once when one of them is at fault
// for longer than the limits allow or another process has found a failure, and for every signal before that. It calls
// neither MPI nor a device, so that it keeps running when those hang. Workers on other hosts are not observed: each
// host has its own watchdogs.
//
// Time in which the whole process was stopped, or got no CPU time, does not count: waits are counted from when it
// continues.
class Watchdog {
 public:
  // Precondition: all recorders exist. `owners` by world rank; recorders of processes that they do not name are
  // ignored. `on_alarm` is called on the thread of the watchdog and must not throw. `graph` outlives this.
  Watchdog(const OpGraph& graph, std::vector<RecorderOwner> owners, WatchdogOptions options,
           std::function<void(const Alarm&)> on_alarm);
  // Ends the thread; without an alarm if there was none. Must not be called from `on_alarm`.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Expects workers in vertices of another graph from now on, which outlives this or the next `use`. Called when no
  // worker of any process is in a vertex: between two collectives of all workers. Thread-safe.
  void use(const OpGraph& graph);
  // Examines the workers now, for a caller that has learnt of a failure in another way. Thread-safe.
  WaitReport look();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::exec
