#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/measure/part_bench.h"
#include "exec/run/run_devices.h"
#include "exec/transport/transport.h"

namespace sluice::exec {

// Times messages between workers and all-reduces over groups of them, as they occur in runs. All workers make the same
// calls.
class LinkBench {
 public:
  virtual ~LinkBench() = default;

  // Times messages between workers 2i and 2i + 1, the receiver waiting. Returns the one-way time of each of several
  // round trips, in seconds, on the first worker of each pair; elsewhere nothing.
  virtual std::vector<double> time_messages(std::int64_t bytes) = 0;
  // Times an all-reduce of float32 over groups of `ranks` workers; returns the seconds since this worker called it.
  // Precondition: one of the group sizes.
  virtual double time_sum(int ranks, std::int64_t bytes) = 0;
  // The groups for ops: of the tensor-parallel ranks of a stage, and of its expert groups.
  virtual OpGroups groups() = 0;
};

struct LinkBenchSpec {
  int tensor_parallel = 1;
  int expert_parallel = 1;
  int experts = 0;               // of a layer
  std::vector<int> group_sizes;  // of consecutive workers; each divides the number of workers
  std::int64_t most_bytes = 0;   // of a message or all-reduce
};

std::unique_ptr<LinkBench> make_link_bench(const LinkBenchSpec& spec, Transport& transport, const WorkerDevice& device);

}  // namespace sluice::exec
