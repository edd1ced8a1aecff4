#pragma once

#include <atomic>

#include "model/namespaces.h"
#include "sim/planner/auto_setup.h"

namespace sluice::tools {

// During its lifetime, the first interrupt (SIGINT, SIGTERM) sets a flag instead of ending the process; the second one
// ends it. At most one object may exist at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>* flag() const;
  bool came() const { return *flag(); }
  // The exit code for the last signal that came to any: kInterrupted or kTerminated.
  static int exit_code();

 private:
  void (*interrupted_)(int);
  void (*terminated_)(int);
};

// Calls `planned_with_progress`; SIGINT or SIGTERM ends the search.
PlannedSetup planned_until_interrupted(const Scenario& scenario);

// Returns the exit code of the signal that ended the search, or else `exit_code`.
int interrupted_or(int exit_code, const PlannedSetup& planned);

}  // namespace sluice::tools
