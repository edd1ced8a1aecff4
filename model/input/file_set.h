#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/input/files.h"

namespace sluice::model {

// Files PREFIX + name that are written together: until `commit`, none of them exists or changes. They are written in a
// folder PREFIX.HOST.PROCESS.NUMBER.tmp beside them, and then renamed one after the other. The folder is removed by the
// destructor or, if the process is killed, by the next FileSet of the prefix. Errors are InputErrors that name a file.
class FileSet {
 public:
  explicit FileSet(std::string prefix);
  ~FileSet();
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  // Writes the content that `produce` passes piece by piece, whose exceptions are passed on.
  void write(const std::string& name, const std::function<void(const ByteSink&)>& produce);
  void commit();

 private:
  std::string prefix_;
  std::string folder_;
  std::vector<std::string> names_;
};

}  // namespace sluice::model
