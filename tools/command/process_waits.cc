#include "tools/command/process_waits.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "exec/watch/process_state.h"
#include "tools/command/exit_codes.h"
#include "tools/command/messages.h"

namespace sluice::tools {
namespace {

constexpr std::chrono::seconds kNotice{10};
constexpr int kMostNamed = 8;

// An address without a file: it disappears with its process.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

int new_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// Returns the id of the process that listens there, 0 if it is unknown; nothing if there is none.
std::optional<pid_t> listener(const std::string& name) {
  const int fd = new_socket();
  if (fd < 0) return 0;
  const auto [address, length] = abstract_address(name);
  const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0;
  const bool none = !connected && errno == ECONNREFUSED;
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = connected && ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  ::close(fd);
  if (none) return std::nullopt;
  return known ? peer.pid : 0;
}

// Returns an id of the run that its processes on one host share.
std::string run_of(const exec::LaunchedRank& own) {
  if (const char* const job = std::getenv("PMIX_NAMESPACE")) return job;
  return own.run.empty() ? fmt::format("parent {}", ::getppid()) : own.run;
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

}  // namespace

ProcessWaits::ProcessWaits(exec::LaunchedRank own, std::chrono::milliseconds limit)
    : own_(std::move(own)), limit_(limit), run_(run_of(own_)) {
  if (own_.size == 1) return;
  listens_ = new_socket();
  if (listens_ < 0) return;
  const auto [address, length] = abstract_address(this->address(own_.local_rank));
  // Without it, others take this process for one that has not come, in a message.
  (void)!::bind(listens_, reinterpret_cast<const sockaddr*>(&address), length);
  (void)!::listen(listens_, SOMAXCONN);
}

ProcessWaits::~ProcessWaits() {
  if (listens_ >= 0) ::close(listens_);
}

std::string ProcessWaits::address(int local_rank) const {
  return fmt::format("sluice {} {} {}", ::geteuid(), run_, local_rank);
}

ProcessWaits::Absence ProcessWaits::absence() const {
  const bool one_host = own_.local_size == own_.size;
  std::vector<std::string> absent;
  Absence out;
  for (int rank = 0; rank < own_.local_size; ++rank) {
    if (rank == own_.local_rank) continue;
    const std::optional<pid_t> process = listener(address(rank));
    const std::string name = one_host ? fmt::format("rank {}", rank) : fmt::format("local rank {} of this host", rank);
    if (!process) {
      absent.push_back(name + ", which has not called MPI_Init or has ended");
    } else if (*process > 0 && exec::process_state(*process) == exec::ProcessState::suspended) {
      absent.push_back(fmt::format("{}, which is suspended (process {})", name, *process));
    } else if (rank < own_.local_rank) {
      out.speaks = false;
    }
  }
  const auto more = std::ssize(absent) - kMostNamed;
  if (more > 0) absent.resize(kMostNamed);
  out.text = absent.empty() ? (one_host ? "other processes" : "processes on other hosts")
                            : fmt::format("{}", fmt::join(absent, ", and for "));
  if (more > 0) out.text += fmt::format(", and for {} more", more);
  return out;
}

void ProcessWaits::within(const std::string& what, const std::function<void()>& wait) const {
  if (own_.size == 1) return wait();
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::thread timer([&] {
    std::unique_lock lock(mutex);
    const auto began = std::chrono::steady_clock::now();
    if (limit_ > kNotice) {
      if (changed.wait_until(lock, began + kNotice, [&] { return over; })) return;
      const Absence why = absence();
      if (why.speaks) {
        print_message(fmt::format("rank {} has waited {} in {} for {}; it ends after {}", own_.rank, seconds(kNotice),
                                  what, why.text, seconds(limit_)));
      }
    }
    if (changed.wait_until(lock, began + limit_, [&] { return over; })) return;
    print_message(fmt::format("rank {} has waited {} in {} for {}", own_.rank, seconds(limit_), what, absence().text));
    std::fflush(nullptr);
    std::_Exit(kRunStuck);
  });
  const auto end = [&] {
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_all();
    timer.join();
  };
  try {
    wait();
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace sluice::tools
