#pragma once

namespace sluice::tools {

// Exit codes of the command line (docs/architecture.md).
enum ExitCode : int {
  kDone = 0,
  kInternalError = 1,
  kWrongInput = 2,
  kNotFeasible = 3,  // valid input, but no feasible configuration, such as a model that does not fit in memory
  kInvalidSchedule = 4,
  kOutsideTolerance = 5,
  kWorkerLost = 6,        // a worker process died
  kRunStuck = 7,          // an op exceeded its deadline, or ranks wait for each other in a cycle
  kNotFinite = 8,         // an op produced a number that is not finite
  kStoppedByAnother = 9,  // another process failed, and reports why
  kMachineBusy = 10,      // ranks waited for cores: measurements allow no verdict
  kInterrupted = 130,     // by SIGINT; by SIGTERM: kTerminated
  kTerminated = 143,
};

}  // namespace sluice::tools
