#pragma once

#include <string>

#include "tools/run/run_place.h"

namespace sluice::tools {

// The folder of the flight recorders of a run, shared by its processes. The first process holds a lock on it, by which
// other runs know that it is in use. A temporary folder is removed at the end, unless the run failed; one that a killed
// run has left is removed by the next run of the user.
class RecorderFolder {
 public:
  // Called by all processes. `requested`: the value of --recorder; if empty, the folder is a temporary one. Throws
  // InputError if it cannot be created or is in use by another run.
  RecorderFolder(const std::string& requested, const RunPlace& place);
  ~RecorderFolder();
  RecorderFolder(const RecorderFolder&) = delete;
  RecorderFolder& operator=(const RecorderFolder&) = delete;

  const std::string& path() const { return path_; }
  // Keeps a temporary folder, also beyond later runs. Called by any process.
  void keep();

 private:
  std::string path_;
  bool temporary_ = false;
  bool first_ = true;
  int lock_ = -1;  // descriptor of the folder
};

}  // namespace sluice::tools
