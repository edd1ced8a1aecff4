#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::exec {

// The value of an environment variable; null if it is not set.
using Environment = std::function<const char*(const char* name)>;
Environment process_environment();

// One of the processes that a launcher started together, as its environment tells it.
struct LaunchedRank {
  enum Launcher : unsigned char { none, mpirun, srun, torchrun };
  Launcher launcher = none;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // on its host
  int local_size = 0;  // on its host; 0: not told
  std::string run;     // names the run, the same in all of its processes and in no other run; empty: not told
};

const char* to_string(LaunchedRank::Launcher launcher);

// mpirun (Open MPI, MPICH), srun (inside a step: a batch script by itself is one process) or torchrun; the innermost,
// where one has started the other. Throws InputError, naming the variables, if some are missing, are no numbers, do not
// go together, or two launchers contradict each other.
LaunchedRank launched_rank(const Environment& environment = process_environment());

// The variables of launchers that are set, as NAME=value, in the order of their launchers.
std::vector<std::string> launcher_variables(const Environment& environment = process_environment());

// Where processes without MPI leave each other a word: a file in the temporary folder if all are on one host.
// Throws InputError if they may not be, or if the run has no name.
std::string bootstrap_path(const LaunchedRank& rank);

// What rank 0 has in `bytes`, for all ranks, by a file in a folder that all of them see. It is written under a
// temporary name and renamed, with the run's name in it: one that another run has left is not taken, but replaced.
class FileBootstrap {
 public:
  // `run` is not empty.
  FileBootstrap(std::string path, std::string run, int rank);
  // Rank 0 removes the file: by then all have read it.
  ~FileBootstrap();
  FileBootstrap(const FileBootstrap&) = delete;
  FileBootstrap& operator=(const FileBootstrap&) = delete;

  // Once. Throws InputError if the file cannot be written; or if it has not come, or is of another run or another
  // length, until `timeout` has passed: says which.
  void broadcast(std::span<std::byte> bytes, std::chrono::milliseconds timeout);

 private:
  std::string path_;
  std::string run_;
  int rank_;
  bool written_ = false;
};

}  // namespace sluice::exec
