#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs the built `sluice` with `arguments`. `environment` is a list of additional NAME=value variables.
CommandResult run_sluice(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// Runs `sluice` likewise, which must succeed, and returns what it prints; the second one of JSON.
std::string output_of(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
nlohmann::json json_of(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// Runs the program at a path.
CommandResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment = {});

// The same, and sends `signal` to the program as soon as it has a handler for it and, if `after_output`, has printed
// something.
CommandResult run_program_and_signal(const std::string& program, const std::vector<std::string>& arguments, int signal,
                                     bool after_output = false);

// Splits a line at whitespace.
std::vector<std::string> words(const std::string& line);

// A temporary folder, removed with its contents by the destructor.
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
