#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::tools {

// A progress line on standard error with the remaining time. Shown only on a terminal, after one second, and updated at
// most ten times per second; erased by the destructor. `done` may be called from any thread.
class Progress {
 public:
  Progress(std::string what, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void done(std::int64_t count);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  std::int64_t total_;
  bool terminal_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = begin_;
  bool visible_ = false;
  std::int64_t most_ = 0;
  std::mutex mutex_;
};

// Prints "sluice: MESSAGE" on one line of standard error, its control characters escaped; an empty message is not
// printed. A standard error that is closed or full loses the message and nothing else.
void print_message(std::string_view message);

// Opens /dev/null on those of the descriptors 0 to 2 that are closed, so that no file that is opened later takes their
// place. Reading the standard input and writing the standard output fail then.
void open_standard_descriptors();

}  // namespace sluice::tools
