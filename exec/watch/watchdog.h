#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/watch/recorder.h"
#include "exec/watch/wait_chain.h"
#include "model/graph/op_graph.h"

namespace sluice::exec {

// Keeps SIGTERM and SIGINT from ending the process as long as it lives, so that a Watchdog can take them, whichever
// thread they reach (the BLAS has threads of its own before main begins). What no watchdog has taken comes once it
// ends. One at a time.
class HeldSignals {
 public:
  // Throws std::system_error if there is no descriptor left for it.
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
  bool take_signals = false;  // those of HeldSignals, which must be there
};

// Why a watchdog barks.
struct Alarm {
  WaitReport report;
  int signal = 0;  // SIGTERM or SIGINT; the report then is what there is to say, at fault or not
};

// A thread that looks at what all workers whose recorders it can read do, and calls `on_alarm` when one of them is at
// fault for longer than the limits allow, once and for all, and whenever a signal comes before that. It makes no call
// of MPI or of a device, so it goes on when those hang. Workers on other hosts are not seen: each host has its own
// watchdogs.
//
// While the whole process was stopped, or got no time, nothing is late: waits count from when it goes on.
class Watchdog {
 public:
  // To be made when all recorders are there. `owners` by world rank; where they name processes, recorders of others are
  // not looked at. `on_alarm` is called on the watchdog's thread and throws nothing. `graph` outlives this.
  Watchdog(const OpGraph& graph, std::vector<RecorderOwner> owners, WatchdogOptions options,
           std::function<void(const Alarm&)> on_alarm);
  // Ends the thread, without an alarm if there was none; from inside `on_alarm` it must not be called.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // What the workers do now, for a caller that has learnt of a failure in another way. By any thread.
  WaitReport look();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::exec
