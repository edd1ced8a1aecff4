#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "exec/transport/nccl_functions.h"

namespace sluice::test {

// NCCL for ranks that are threads of one process, on emulated devices. Like a kernel of NCCL, an operation blocks its
// stream until its peers have issued theirs. Stricter than NCCL: an operation in progress is enqueued only after enough
// calls of ncclCommGetAsyncError, and misuse is recorded.
class FakeNccl {
 public:
  FakeNccl();  // at most one at a time
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const NcclFunctions& functions() const { return functions_; }

  // Returns violations of NCCL's rules: different sizes on two ends, overlapping operations of one thread, use of a
  // communicator after its end or while an operation is in progress.
  std::vector<std::string> misuse() const;
  // Returns the number of communicators that were neither destroyed nor aborted; and the maximum number that a rank
  // aborted concurrently.
  int alive() const;
  int most_aborts_at_once() const;

  // Returns the number of operations so far, for each of which NCCL starts a thread: calls outside of groups, and
  // groups.
  int operations() const;

  // Makes operations of connected communicators take this number of calls of ncclCommGetAsyncError until they are
  // enqueued, as those of NCCL do; initially none.
  void take_looks(int looks);
  // Makes later aborts wait until this number of them run concurrently (0: no wait), or forever.
  void abort_waits_for(int others);
  void abort_hangs();
  // Makes ncclCommGetAsyncError report an error for communicators of this world rank.
  void fail(int world_rank);

 private:
  NcclFunctions functions_;
};

}  // namespace sluice::test
