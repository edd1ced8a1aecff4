#pragma once

#include <cstddef>
#include <functional>
#include <latch>
#include <span>
#include <string>
#include <vector>

#include "exec/transport/nccl_functions.h"

namespace sluice::test {

// NCCL for ranks that are threads of one process, on emulated devices: what is issued waits on its stream for the other
// end, as a kernel of NCCL does, and holds up all that follows there. Stricter than NCCL: what is in progress gets to
// its stream only when somebody has looked at it often enough, and misuse is remembered.
class FakeNccl {
 public:
  FakeNccl();  // the only one at a time
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const NcclFunctions& functions() const { return functions_; }

  // What was done against the rules: unequal sizes of two ends, operations of one thread that overlap, a communicator
  // that was used after its end, or while something was in progress.
  std::vector<std::string> misuse() const;
  // Communicators that were made and not yet destroyed or aborted; and the most that a rank was aborting at once.
  int alive() const;
  int most_aborts_at_once() const;

  // From now on: aborting waits until so many are at it (0: does not), or for ever.
  void abort_waits_for(int others);
  void abort_hangs();
  // From now on, looking at a communicator of this world rank shows an error.
  void fail(int world_rank);

 private:
  NcclFunctions functions_;
};

// How ranks that are threads learn the id of their world: rank 0's is everybody's. Outlives what it gave.
class FirstSays {
 public:
  std::function<void(std::span<std::byte>)> to(int rank);

 private:
  NcclId id_{};
  std::latch written_{1};
};

}  // namespace sluice::test
