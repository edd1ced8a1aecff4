#include "exec/run/core_wait.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>

namespace sluice::exec {

CoreWaitMeter::CoreWaitMeter() : file_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}

CoreWaitMeter::~CoreWaitMeter() {
  if (file_ >= 0) ::close(file_);
}

// The file has three numbers: time on a core, time waiting for one, and the number of time slices.
CoreWait CoreWaitMeter::read() const {
  CoreWait wait;
  std::array<char, 128> text{};
  if (file_ >= 0 && ::pread(file_, text.data(), text.size() - 1, 0) > 0) {
    if (const char* const second = std::strchr(text.data(), ' ')) {
      std::from_chars(second + 1, text.data() + text.size(), wait.nanoseconds);
    }
  }
  rusage usage{};
  if (::getrusage(RUSAGE_THREAD, &usage) == 0) wait.switches = usage.ru_nivcsw;
  return wait;
}

bool is_calm(const CoreWait& wait, std::int64_t duration_ns, double most) {
  constexpr double kWakingUp_ns = 2'500'000;  // 2 % of it are 50 us
  return static_cast<double>(wait.nanoseconds) <= most * (static_cast<double>(duration_ns) + kWakingUp_ns);
}

}  // namespace sluice::exec
