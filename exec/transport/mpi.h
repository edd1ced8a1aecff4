#pragma once

#include <memory>

#include "exec/transport/transport.h"

namespace sluice::exec {

// Workers that are MPI processes, one each. MPI is initialised with MPI_THREAD_SERIALIZED or better.
// Waiting tests and yields. Throws std::runtime_error if MPI reports an error.
std::unique_ptr<Transport> make_mpi_transport();

}  // namespace sluice::exec
