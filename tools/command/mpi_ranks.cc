#include "tools/command/mpi_ranks.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#ifdef SLUICE_HAVE_MPI
#include <mpi.h>
#endif

#include "exec/watch/process_state.h"
#include "model/errors.h"
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

MpiRanks::MpiRanks() : MpiRanks(kProcessWait) { limits_end_ = false; }

void MpiRanks::within(const std::string& what, const std::function<void()>& wait) const {
  waits_ ? waits_->within(what, wait) : wait();
}

#ifdef SLUICE_HAVE_MPI
namespace {

// Returns whether the environment has variables of a launcher: Open MPI, MPICH or Slurm.
bool launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

void check_mpi(int code, const char* what) {
  if (code != MPI_SUCCESS) throw std::runtime_error(std::string("MPI: ") + what + " failed");
}

// Variables that contradict each other are reported where they are used.
exec::LaunchedRank rank_of_launcher() {
  try {
    return exec::launched_rank();
  } catch (const InputError&) {
    return {};
  }
}

}  // namespace

MpiRanks::MpiRanks(std::chrono::milliseconds limit) : limits_end_(true) {
  if (!launched()) return;
  waits_ = std::make_unique<ProcessWaits>(rank_of_launcher(), limit);
  int provided = 0;
  within("MPI_Init",
         [&] { check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread"); });
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    throw InputError("this MPI library does not allow threads to take turns (MPI_THREAD_SERIALIZED)");
  }
  started_ = true;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
}

// MPI_Finalize waits for all processes. After an error it follows the message that the first process prints at its end:
// the launcher ends all processes when one of them exits with an error.
MpiRanks::~MpiRanks() {
  if (!started_) return;
  if (std::uncaught_exceptions() > 0 && std::atexit([] { MPI_Finalize(); }) == 0) return;
  limits_end_ ? within("MPI_Finalize", [] { MPI_Finalize(); }) : void(MPI_Finalize());
}

// The analyzer sees neither that `done` tests the requests nor that some are given up.
// NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
std::optional<std::vector<std::string>> MpiRanks::all_gather(const std::string& bytes,
                                                             const std::function<bool()>& give_up) const {
  if (size_ == 1) return std::vector{bytes};
  const auto done = [&](MPI_Request request) {
    int is_done = 0;
    while (true) {
      check_mpi(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
      if (is_done != 0) return true;
      if (give_up()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  MPI_Request request = MPI_REQUEST_NULL;
  const int mine = static_cast<int>(bytes.size());
  std::vector<int> sizes(static_cast<std::size_t>(size_));
  check_mpi(MPI_Iallgather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD, &request), "MPI_Iallgather");
  if (!done(request)) return std::nullopt;
  std::vector<int> begins(sizes.size(), 0);
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), 0);
  std::string all(static_cast<std::size_t>(begins.back() + sizes.back()), '\0');
  check_mpi(MPI_Iallgatherv(bytes.data(), mine, MPI_BYTE, all.data(), sizes.data(), begins.data(), MPI_BYTE,
                            MPI_COMM_WORLD, &request),
            "MPI_Iallgatherv");
  if (!done(request)) return std::nullopt;
  std::vector<std::string> out;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    out.push_back(all.substr(static_cast<std::size_t>(begins[rank]), static_cast<std::size_t>(sizes[rank])));
  }
  return out;
}

void MpiRanks::report_alone() const {
  for (int rank = 0; rank < size_; ++rank) {
    MPI_Request request = MPI_REQUEST_NULL;  // never completed: the process ends
    if (rank != rank_) check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, rank, 0, MPI_COMM_WORLD, &request), "MPI_Isend");
  }
}

// NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)

bool MpiRanks::others_report() const {
  int found = 0;
  if (size_ > 1) check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
  return found != 0;
}

#else

MpiRanks::MpiRanks(std::chrono::milliseconds) {}
MpiRanks::~MpiRanks() = default;
std::optional<std::vector<std::string>> MpiRanks::all_gather(const std::string& bytes,
                                                             const std::function<bool()>&) const {
  return std::vector{bytes};
}
void MpiRanks::report_alone() const {}
bool MpiRanks::others_report() const { return false; }

#endif

}  // namespace sluice::tools
