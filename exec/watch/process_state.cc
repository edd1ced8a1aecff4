#include "exec/watch/process_state.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>

namespace sluice::exec {
namespace {

struct Status {
  char state = '?';
  std::uint64_t started = 0;
};

// Reads /proc/PID/stat: "pid (command) state ...", with the start time as the 20th field counted from the state
// (proc(5)).
std::optional<Status> status_of(std::int64_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::array<char, 1024> buffer;
  const ssize_t size = ::read(fd, buffer.data(), buffer.size());
  ::close(fd);
  if (size <= 0) return std::nullopt;
  std::string_view text(buffer.data(), static_cast<std::size_t>(size));
  const std::size_t command = text.rfind(')');  // the command itself may contain blanks and parentheses
  if (command == std::string_view::npos || command + 2 >= text.size()) return std::nullopt;
  text.remove_prefix(command + 2);
  Status status{.state = text.front()};
  for (int word = 1; word < 20; ++word) {
    const std::size_t blank = text.find(' ');
    if (blank == std::string_view::npos) return status;
    text.remove_prefix(blank + 1);
  }
  std::from_chars(text.data(), text.data() + text.size(), status.started);
  return status;
}

}  // namespace

ProcessState process_state(std::int64_t process, std::uint64_t started) {
  // 0 and negative ids address process groups in kill().
  if (process <= 0 || (::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH)) return ProcessState::dead;
  const std::optional<Status> status = status_of(process);
  if (!status) return ProcessState::running;  // not readable, but kill() found it
  if (started != 0 && status->started != 0 && status->started != started) return ProcessState::dead;
  switch (status->state) {
    case 'Z':
    case 'X': return ProcessState::dead;
    case 'T':
    case 't': return ProcessState::suspended;
    default: return ProcessState::running;
  }
}

std::uint64_t process_start(std::int64_t process) {
  const std::optional<Status> status = status_of(process);
  return status ? status->started : 0;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

}  // namespace sluice::exec
