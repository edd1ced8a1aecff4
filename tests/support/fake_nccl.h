#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "exec/transport/nccl_functions.h"

namespace sluice::test {

// NCCL for ranks that are threads of one process, on emulated devices. Like a kernel of NCCL, an operation blocks its
// stream until its peers have issued theirs. Like blocking communicators, creation and first use block the caller until
// all members have called them; an abort ends both with an error. Misuse is recorded.
class FakeNccl {
 public:
  FakeNccl();  // at most one at a time
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const NcclFunctions& functions() const { return functions_; }

  // Returns violations of NCCL's rules: different sizes on two ends, use of a communicator after its end or by two
  // calls at a time.
  std::vector<std::string> misuse() const;
  // Returns the number of communicators that were neither destroyed nor aborted; and the maximum number that a rank
  // aborted concurrently.
  int alive() const;
  int most_aborts_at_once() const;

  // Returns the number of calls that wait for other ranks.
  int waiting() const;

  // Makes the first uses of communicators by this world rank, and those of its peers, block until they are aborted.
  void never_connect(int world_rank);
  // The same for ncclCommFinalize on this world rank.
  void never_finalize(int world_rank);
  // Makes later aborts wait until this number of them run concurrently (0: no wait), or forever.
  void abort_waits_for(int others);
  void abort_hangs();
  // Makes ncclCommGetAsyncError report an error for communicators of this world rank.
  void fail(int world_rank);

 private:
  NcclFunctions functions_;
};

}  // namespace sluice::test
