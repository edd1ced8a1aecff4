#include "tools/command/mpi_ranks.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <thread>

#ifdef SLUICE_HAVE_MPI
#include <mpi.h>
#endif

#include "model/errors.h"

namespace sluice::tools {

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
