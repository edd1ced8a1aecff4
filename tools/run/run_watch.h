#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "exec/watch/failure.h"
#include "exec/watch/supervisor.h"
#include "tools/run/run_place.h"

namespace sluice::tools {

// The folder of the flight recorders of a run, shared by its processes; by those of a host, if hosts do not share it.
// The first process holds a lock on it, by which other runs know that it is in use. A temporary folder is removed at
// the end, unless the run failed; one that a killed run has left is removed by one of the next runs of the user, which
// search for such folders for a limited time.
class RecorderFolder {
 public:
  // Called by all processes. `requested`: the value of --recorder; if empty, the folder is a temporary one. Throws
  // InputError if it cannot be created or is in use by another run.
  RecorderFolder(const std::string& requested, const RunPlace& place, const MpiRanks& ranks);
  ~RecorderFolder();
  RecorderFolder(const RecorderFolder&) = delete;
  RecorderFolder& operator=(const RecorderFolder&) = delete;

  const std::string& path() const { return path_; }
  // Keeps a temporary folder, also beyond later runs, because a message names it. Called by any process. Returns
  // whether this is the first process of those that share the folder to call it: one message suffices.
  bool keep();
  // Called before the process ends without the destructor: removes a temporary folder, unless it was kept or other
  // processes may still name it in a message.
  void leave() const;

 private:
  std::string path_;
  bool temporary_ = false;
  bool first_ = true;    // has created the folder
  bool shared_ = false;  // between processes
  int lock_ = -1;        // descriptor of the folder
};

// The flags that set how runs and measurements are watched.
struct WatchFlags {
  std::string recorders;
  double deadline = 30;
  double start_timeout = 600;

  void add_to(CLI::App& command);
  std::chrono::milliseconds start_limit() const {
    return std::chrono::milliseconds(static_cast<std::int64_t>(start_timeout * 1e3));
  }
};

// The exit codes of failures, for the footers of commands.
inline constexpr const char* kFailureCodes =
    "6 a worker process died, 7 an op exceeded its deadline, or ranks wait for each other or for a suspended process, "
    "8 "
    "a number is not finite, 9 another process failed";

// Watches the workers of a command on this machine: their flight recorders, and the report of a failure.
class RunWatch {
 public:
  // Called by all processes. Throws InputError as RecorderFolder does.
  RunWatch(const WatchFlags& flags, const RunPlace& place, const MpiRanks& ranks);
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // Refers to this.
  Supervision supervision();

  // Calls `work`, which takes part in the run with the other processes. Reports a failure of the run and returns its
  // exit code; with several processes, ends this one, because the state of the others is unknown. Returns kDone after
  // success. Other exceptions leave it.
  int run(const std::function<void()>& work, const std::function<void()>& after_failure = {});
  // Reports a failure of this process while others wait for it, and ends it.
  [[noreturn]] void end_alone(const std::exception& failure) const;

 private:
  int report(const std::exception& failure, int code);
  void print(const std::exception& failure);

  const RunPlace& place_;
  RecorderFolder recorders_;
  double deadline_;
  double start_timeout_;
};

}  // namespace sluice::tools
