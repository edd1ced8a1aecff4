#pragma once

#include <memory>

#include "exec/transport/transport.h"

namespace sluice::exec {

// Returns a transport between MPI processes, one worker each. MPI is initialised with MPI_THREAD_SERIALIZED or better.
// Waiting polls and yields. Throws std::runtime_error if MPI reports an error.
std::unique_ptr<Transport> make_mpi_transport();

}  // namespace sluice::exec
