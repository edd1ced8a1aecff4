// Public header.
#pragma once

#include <cstdint>
#include <string>

#include "model/namespaces.h"

namespace sluice::model {

// What delays the start of an item besides the queues of its communicators and its data.
enum class HostWait : std::uint8_t {
  device,  // nothing
  stream,  // communication also waits for all compute issued before it, as in PyTorch
  host,    // the rank blocks on each item
};

// Where receives are posted if a schedule has no communication of its own.
enum class Receives : std::uint8_t {
  early,     // when the matching send is posted, as PyTorch's runtime places them
  deferred,  // as PyTorch does with defer_pp_recv
  late,      // immediately before the op that reads them
};

// How messages are communicated.
struct CommunicatorOptions {
  std::string communicators;  // a mapping's name or file
  HostWait wait = HostWait::stream;
  bool serialized = false;
  bool batched = false;
  Receives receives = Receives::early;
};

}  // namespace sluice::model
