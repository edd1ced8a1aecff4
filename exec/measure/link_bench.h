#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/run/run_devices.h"
#include "exec/transport/transport.h"

namespace sluice::exec {

// Messages between workers and sums over groups of them, as runs have them, timed. All workers make the same calls.
class LinkBench {
 public:
  virtual ~LinkBench() = default;

  // Between workers 2i and 2i + 1, the receiver waiting: seconds of one, of several each way; at the first of each
  // pair.
  virtual std::vector<double> time_messages(std::int64_t bytes) = 0;
  // A sum of float32 over groups of `ranks`: seconds since this worker called. Precondition: one of the group sizes.
  virtual double time_sum(int ranks, std::int64_t bytes) = 0;
  // That of a stage's tensor ranks, for ops: one is null, both where the stage is not split.
  virtual TensorGroup* tensor() = 0;
  virtual StreamGroup* stream_tensor() = 0;
};

struct LinkBenchSpec {
  int tensor_parallel = 1;
  std::vector<int> group_sizes;  // of blocks of workers; each divides their number
  std::int64_t most_bytes = 0;   // of a message or sum
};

std::unique_ptr<LinkBench> make_link_bench(const LinkBenchSpec& spec, Transport& transport, const WorkerDevice& device);

}  // namespace sluice::exec
