#pragma once

#include <memory>
#include <string>

#include "exec/layout.h"
#include "exec/transport/transport.h"
#include "tools/mpi_ranks.h"

namespace sluice::tools {

// How the workers of a command reach each other: as threads of this process, or as the processes of a launcher.
class RunTransport {
 public:
  // `asked` is threads, mpi or auto (mpi under a launcher). Throws InputError for mpi without MPI, and for threads
  // under a launcher.
  RunTransport(const std::string& asked, const MpiRanks& ranks);
  ~RunTransport();

  // Null: threads.
  Transport* get() const { return mpi_.get(); }
  // Throws InputError if there are not as many processes as workers.
  void check(const RunLayout& layout) const;

 private:
  std::unique_ptr<Transport> mpi_;
};

}  // namespace sluice::tools
