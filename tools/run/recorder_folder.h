#pragma once

#include <string>

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

}  // namespace sluice::tools
