#pragma once

#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs the built `sluice` with `arguments`, as a user would. `environment` adds NAME=value words.
CommandResult run_sluice(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// The same of another program, by its path.
CommandResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment = {});

// The words of a line, split at blanks.
std::vector<std::string> words(const std::string& line);

// A folder that is removed with its content at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name = "") const { return folder_ + "/" + name; }
  int num_files() const;

 private:
  std::string folder_;
};

}  // namespace sluice::test
