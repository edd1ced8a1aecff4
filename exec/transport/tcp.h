#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "exec/transport/transport.h"

namespace sluice::exec {

using Broadcast = std::function<void(std::span<std::byte>)>;  // sends the bytes of rank 0 to all ranks

// Returns the transport of Channel::control between the hosts of processes without MPI. A connection is made when two
// ranks first have a message; all ranks begin with one to rank 0, whose address `broadcast` carries in its only call. A
// send is done when the kernel has its bytes. Called by all ranks together. Throws std::runtime_error if the others do
// not arrive within `patience`, and from poll if the process of the other end has ended.
std::unique_ptr<Transport> make_tcp_transport(int rank, int size, const Broadcast& broadcast,
                                              std::chrono::milliseconds patience);

}  // namespace sluice::exec
