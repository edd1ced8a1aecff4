#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

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

}  // namespace sluice::tools
