#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/measure/part_bench.h"
#include "exec/run/run_devices.h"
#include "exec/transport/transport.h"
#include "kernels/stage.h"
#include "model/cost/profile.h"
#include "model/workload/transformer.h"

namespace sluice::exec {

// What is measured, by as many workers as there are in the transport, all at once.
struct ProfilingSpec {
  Transformer model;
  Precision precision = Precision::float32;
  const DeviceKernels* kernels = nullptr;  // of devices; null: the CPU
  bool recompute = false;
  int sequences = 1;  // of a microbatch
  std::int64_t sequence_length = 0;
  int tensor_parallel = 1;  // divides the workers
  int data_parallel = 1;    // so many ranks sum gradients
  int layers = 1;           // that are called in a row, as in a stage
  std::vector<ProfileCell> cells;
  std::string link = "threads";  // what the transport is called
  double budget_s = 10;
  int least_rounds = 3;  // whatever the budget
  std::uint64_t seed = 1;
};

// Lengths L, L/2, L/4 and L/8 where they are whole, each at the places where even slices of it begin, of L/8 at every
// second.
std::vector<ProfileCell> profile_grid(std::int64_t sequence_length);
// The part of one worker in measuring a profile. Parts of a model are measured one by one, on weights and buffers of
// this worker's own, as large as those of a run and taken in turn, so that caches are as cold as there; all workers are
// at work meanwhile, as in a run. A round measures everything once, in an order of its own, so that a slow moment of
// the machine does not fall on one point.
//
// Measured are: F, B, I and W of the embedding, of `layers` layers (a layer is their time over `layers`) and of the
// head, with everything in their calls, sums of tensor ranks included and recomputation not; what the executor takes an
// op around its kernels; steps of the optimizer and norms of gradients; messages between two workers of which one has
// been waiting for some time; sums over groups of workers.
class Profiler {
 public:
  // Allocates everything. Throws InputError for a model that the kernels cannot compute.
  Profiler(const ProfilingSpec& spec, Transport& transport, const WorkerDevice& device = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // All workers together; none begins before all have come. The first one does not count.
  void round();
  // Of all rounds of all workers so far, at rank 0; elsewhere empty. All workers together.
  Profile gather();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Told at rank 0 after each round: seconds gone.
using ProfilingObserver = std::function<void(double seconds)>;

// Rounds until the budget is spent. The profile is rank 0's; elsewhere it is empty.
Profile measure_profile(const ProfilingSpec& spec, Transport& transport, const ProfilingObserver& observer,
                        const WorkerDevice& device = {});

// With a thread for each of `workers`. Throws what the first failing one threw.
Profile profile_with_threads(const ProfilingSpec& spec, int workers, const ProfilingObserver& observer = {},
                             const RunDevices& devices = {});

}  // namespace sluice::exec
