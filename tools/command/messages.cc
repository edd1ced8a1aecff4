#include "tools/command/messages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "model/input/printable.h"

namespace sluice::tools {

Progress::Progress(std::string what, std::int64_t total)
    : what_(std::move(what)), total_(total), terminal_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (visible_) std::fputs("\r\x1b[K", stderr);
}

void Progress::done(std::int64_t count) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  most_ = std::max(most_, count);
  const Clock::time_point now = Clock::now();
  if (now - begin_ < std::chrono::seconds(1) || now - shown_ < std::chrono::milliseconds(100)) return;
  shown_ = now;
  visible_ = true;
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const double left = elapsed / static_cast<double>(most_) * static_cast<double>(total_ - most_);
  std::fputs(fmt::format("\r\x1b[K{} {}/{}, {:.0f} s left", what_, most_, total_, left).c_str(), stderr);
  std::fflush(stderr);
}

void print_message(std::string_view message) {
  if (message.empty()) return;
  std::string line = fmt::format("sluice: {}", model::printable(message));
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
}

void open_standard_descriptors() {
  const int wrong_way[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) == -1) (void)!::open("/dev/null", wrong_way[descriptor]);
  }
}

}  // namespace sluice::tools
