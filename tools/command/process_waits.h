#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "exec/transport/launcher.h"

namespace sluice::tools {

// The default limit of a wait for the other processes of a launcher.
inline constexpr std::chrono::milliseconds kProcessWait = std::chrono::minutes(10);

// Limits the waits of a process for the others that its launcher started, where neither a watchdog observes them nor a
// call returns before the others have come: MPI_Init, MPI_Finalize and the first messages. After some seconds the first
// process on a host that waits prints for which ones; after the limit all that wait print it, and end.
class ProcessWaits {
 public:
  // From now on the other processes of this host know that this one has come.
  ProcessWaits(exec::LaunchedRank own, std::chrono::milliseconds limit);
  ~ProcessWaits();
  ProcessWaits(const ProcessWaits&) = delete;
  ProcessWaits& operator=(const ProcessWaits&) = delete;

  // Calls `wait`, which waits in or for `what` ("MPI_Init"). Ends the process with kRunStuck after the limit.
  void within(const std::string& what, const std::function<void()>& wait) const;

 private:
  struct Absence {
    std::string text;    // "rank 1, which is suspended", or for several
    bool speaks = true;  // whether this is the first process of the host that waits
  };
  Absence absence() const;
  std::string address(int local_rank) const;

  exec::LaunchedRank own_;
  std::chrono::milliseconds limit_;
  std::string run_;
  int listens_ = -1;  // descriptor: a socket by which other processes find this one
};

}  // namespace sluice::tools
