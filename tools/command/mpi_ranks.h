#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/transport/launcher.h"
#include "model/namespaces.h"

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

// The processes that a launcher (mpirun, srun) started together; without MPI or a launcher, only this process. MPI is
// initialized by the constructor and finalized by the destructor, which waits for all processes.
class MpiRanks {
 public:
  MpiRanks();
  // With a limit of its own for the wait of MPI_Init, and the same for that of MPI_Finalize.
  explicit MpiRanks(std::chrono::milliseconds limit);
  ~MpiRanks();
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const { return rank_; }
  bool started() const { return started_; }  // whether MPI was initialized
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }

  // Calls `wait`, which waits for the other processes in or for `what`, within the limit.
  void within(const std::string& what, const std::function<void()>& wait) const;

  // Returns the bytes of every rank, by rank, on every rank; nothing once `give_up`, called about every millisecond
  // while this rank waits for the others, returns true. The process must then end by std::_Exit.
  std::optional<std::vector<std::string>> all_gather(const std::string& bytes,
                                                     const std::function<bool()>& give_up) const;
  // After that: tells the others, without waiting for them, that this rank reports the results. `others_report` returns
  // whether another rank has done so.
  void report_alone() const;
  bool others_report() const;

 private:
  std::unique_ptr<ProcessWaits> waits_;  // null without a launcher
  bool limits_end_ = false;
  bool started_ = false;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace sluice::tools
