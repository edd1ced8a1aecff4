#include "tools/run_transport.h"

#include <fmt/format.h>

#include "model/errors.h"
#ifdef SLUICE_HAVE_MPI
#include "exec/transport/mpi.h"
#endif

namespace sluice::tools {

RunTransport::RunTransport(const std::string& asked, const MpiRanks& ranks) {
  const bool processes = asked == "mpi" || (asked == "auto" && ranks.size() > 1);
  if (!processes && ranks.size() > 1) {
    throw InputError("--transport threads: this is one of several processes that a launcher started");
  }
  if (!processes) return;
#ifdef SLUICE_HAVE_MPI
  mpi_ = make_mpi_transport();
#else
  throw InputError("--transport mpi: this sluice was built without MPI");
#endif
}

RunTransport::~RunTransport() = default;

void RunTransport::check(const RunLayout& layout) const {
  if (mpi_ == nullptr || mpi_->size() == layout.size()) return;
  throw InputError(fmt::format("{} pipeline x {} data x {} tensor ranks are {} workers, but {} processes were started",
                               layout.pipeline, layout.data, layout.tensor, layout.size(), mpi_->size()));
}

}  // namespace sluice::tools
