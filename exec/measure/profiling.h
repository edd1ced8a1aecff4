#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/measure/part_bench.h"
#include "exec/run/run_devices.h"
#include "exec/run/watched.h"
#include "exec/transport/transport.h"
#include "kernels/stage.h"
#include "model/cost/profile.h"
#include "model/workload/transformer.h"

namespace sluice::exec {

// What to measure. All workers of the transport measure concurrently.
struct ProfilingSpec {
  Transformer model;
  Precision precision = Precision::float32;
  const DeviceKernels* kernels = nullptr;  // of devices; null: on the CPU
  bool recompute = false;
  AttentionChoice attention = AttentionChoice::gemm;  // on devices
  int sequences = 1;                                  // per microbatch
  std::int64_t sequence_length = 0;
  int tensor_parallel = 1;  // divides the workers
  int data_parallel = 1;    // ranks that reduce gradients
  int layers = 1;           // called in a row, as in a stage
  // With experts: divides tensor_parallel x data_parallel; the tokens that are routed, of a batch of that number of
  // microbatches per replica. Null: random tokens.
  int expert_parallel = 1;
  const TokenSource* tokens = nullptr;
  int microbatches = 1;
  std::vector<ProfileCell> cells;
  std::string link = "threads";  // name of the transport
  double budget_s = 10;
  int least_rounds = 3;  // even if they exceed the budget
  // Calls in which a worker waited for a core for more than this fraction of them are used only if others are missing.
  double most_wait = std::numeric_limits<double>::infinity();
  std::uint64_t seed = 1;
};

// Times of an exchange on one rank of an expert group, by repetition, and whether the rank waited for a core.
struct ExchangeTimes {
  std::vector<double> seconds;
  std::vector<char> disturbed;
};
// Returns the exchanges without waits for other ranks: by repetition the time of the rank that waits least. Disturbed
// if any rank was.
ExchangeTimes without_waits(std::span<const ExchangeTimes> group);
// Adds a wait in an exchange to the samples of the same kind, slice length and rows of the part that the others are
// still computing: attention before a dispatch of F and a combine of I, else experts. So op times do not change, but a
// joint block does not hide the wait, which the slowest rank does not have.
void move_wait(const ProfileSample& exchange, double wait_s, std::vector<ProfileSample>& samples);

// Returns slices of lengths L, L/2, L/4 and L/8, where they are integers, each at the offsets of even slices; for L/8
// at every second offset.
std::vector<ProfileCell> profile_grid(std::int64_t sequence_length);
// One worker of a profile measurement. The parts of a model are measured one by one, on weights and buffers of this
// worker that are as large as in a run and used in turn, so that caches are as cold; all workers are busy meanwhile, as
// in a run. A round measures every point once, in random order, so that a disturbance does not affect one point only.
//
// Layers with experts are measured part by part, with their exchanges. The layers of a worker are `layers` consecutive
// ones of the model, others for each pipeline rank, with the weights and inputs that they have in the first step of a
// run, so that routers distribute rows as unevenly; their times are means over all workers, layers and microbatches.
// Waits for other ranks in exchanges are moved to compute (move_wait).
//
// Measured are: F, B, I and W of the embedding, of `layers` layers (a layer is 1/`layers` of their time) and of the
// head, including everything in their calls such as all-reduces of tensor-parallel ranks, but not recomputation; the
// overhead of the executor per op; optimizer steps and gradient norms; messages between two workers of which one has
// been waiting; all-reduces over groups of workers.
class Profiler {
 public:
  // Allocates all memory. Called by all workers together. Throws InputError for a model that the kernels do not
  // support, and for experts with recomputation.
  Profiler(const ProfilingSpec& spec, Transport& transport, const WorkerDevice& device = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Called by all workers together; begins when all have arrived. The first round does not count.
  void round();
  // Returns the profile of all rounds of all workers so far on rank 0, and an empty one elsewhere. Called by all
  // workers together.
  Profile gather();
  // After `gather`, on rank 0: whether some times are of calls in which a worker waited for a core, because too few
  // were without.
  bool disturbed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Called on rank 0 after each round with the elapsed seconds.
using ProfilingObserver = std::function<void(double seconds)>;

// Measures rounds until the budget is spent, as one process of many. Returns the profile on rank 0, and an empty one
// elsewhere. Throws RunFailure if another process makes no progress, and what Profiler throws.
Profile profile_as_process(const ProfilingSpec& spec, Transport& transport, const ProfilingObserver& observer,
                           const WorkerDevice& device = {}, const WatchedPlans& watched = {});

// The same with one thread per worker. Throws the exception of the first worker that fails.
Profile profile_with_threads(const ProfilingSpec& spec, int workers, const ProfilingObserver& observer = {},
                             const RunDevices& devices = {}, const WatchedPlans& watched = {});

}  // namespace sluice::exec
