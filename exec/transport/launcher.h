#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::exec {

// Returns the value of an environment variable; null if it is not set.
using Environment = std::function<const char*(const char* name)>;
Environment process_environment();

// One process of a group that a launcher started, as described by its environment.
struct LaunchedRank {
  enum Launcher : unsigned char { none, mpirun, srun, torchrun };
  Launcher launcher = none;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // on its host
  int local_size = 0;  // on its host; 0: unknown
  std::string run;     // id of the run, shared by its processes and unique to it; empty: unknown
};

const char* to_string(LaunchedRank::Launcher launcher);

// Detects mpirun (Open MPI, MPICH), srun (within a job step: a batch script is a single process) or torchrun; the
// innermost if one has started the other. Throws InputError, naming the variables, if some are missing, not numbers or
// inconsistent, or if two launchers contradict each other.
LaunchedRank launched_rank(const Environment& environment = process_environment());

// Returns the launcher variables that are set as NAME=value, in the order of the launchers.
std::vector<std::string> launcher_variables(const Environment& environment = process_environment());

// Returns the path of a file through which processes without MPI on one host find each other, in a folder "sluice-UID"
// of the temporary folder that other users cannot access. Throws InputError if the processes may be on several hosts,
// if the run has no id, or if there is such a folder or file that other users can access.
std::string bootstrap_path(const LaunchedRank& rank);

// Broadcasts bytes of rank 0 through a file in a folder that all ranks can access. The file is written under a
// temporary name and renamed, and contains the id of the run: one left by another run is ignored and replaced.
class FileBootstrap {
 public:
  // `run` is not empty.
  FileBootstrap(std::string path, std::string run, int rank);
  // Rank 0 removes the file: all ranks must have read it.
  ~FileBootstrap();
  FileBootstrap(const FileBootstrap&) = delete;
  FileBootstrap& operator=(const FileBootstrap&) = delete;

  // Called once. Throws InputError if the file cannot be written, or if after `timeout` it is missing, belongs to
  // another run or has another length; the message names the reason.
  void broadcast(std::span<std::byte> bytes, std::chrono::milliseconds timeout);

 private:
  std::string path_;
  std::string run_;
  int rank_;
  bool written_ = false;
};

}  // namespace sluice::exec
