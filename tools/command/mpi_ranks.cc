#include "tools/command/mpi_ranks.h"

#include <cstdlib>
#include <numeric>
#include <stdexcept>

#ifdef SLUICE_HAVE_MPI
#include <mpi.h>
#endif

#include "model/errors.h"

namespace sluice::tools {

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

}  // namespace

MpiRanks::MpiRanks() {
  if (!launched()) return;
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    throw InputError("this MPI library does not allow threads to take turns (MPI_THREAD_SERIALIZED)");
  }
  started_ = true;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
}

MpiRanks::~MpiRanks() {
  if (started_) MPI_Finalize();
}

std::vector<std::string> MpiRanks::all_gather(const std::string& bytes) const {
  if (size_ == 1) return {bytes};
  const int mine = static_cast<int>(bytes.size());
  std::vector<int> sizes(static_cast<std::size_t>(size_));
  check_mpi(MPI_Allgather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  std::vector<int> begins(sizes.size(), 0);
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), 0);
  std::string all(static_cast<std::size_t>(begins.back() + sizes.back()), '\0');
  check_mpi(
      MPI_Allgatherv(bytes.data(), mine, MPI_BYTE, all.data(), sizes.data(), begins.data(), MPI_BYTE, MPI_COMM_WORLD),
      "MPI_Allgatherv");
  std::vector<std::string> out;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    out.push_back(all.substr(static_cast<std::size_t>(begins[rank]), static_cast<std::size_t>(sizes[rank])));
  }
  return out;
}

#else

MpiRanks::MpiRanks() = default;
MpiRanks::~MpiRanks() = default;
std::vector<std::string> MpiRanks::all_gather(const std::string& bytes) const { return {bytes}; }

#endif

}  // namespace sluice::tools
