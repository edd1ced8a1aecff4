// Public header.
#pragma once

#include "model/graph/op_graph.h"

namespace sluice::model {

struct CommunicatorOptions;
struct OffloadOptions;

// What an iteration has besides the schedule's own ops.
struct LoweringOptions {
  const Footprint* footprint = nullptr;  // zero bytes without one
  int data_parallel = 1;                 // if above 1: a gradient reduction per stage and step
  bool reduce_gradients = true;          // false: the ops do it
  bool overlap_grad_reduce =
      false;  // reductions start when the gradients of their stage are complete, not at the end of the rank's list
  // With overlapped reductions or gathers and a flush: all buckets of a stage but one (StageBytes) are communicated
  // beside the op that completes its gradients, of T, or that is the first to need its parameters. Of a reduction that
  // takes R in n buckets, max(R / n, R - T) is exposed, if the rank's collectives wait for nothing else.
  bool buckets = false;
  bool reduce_runs = false;        // and also whenever the rank's next backward is of another stage (flush only)
  bool gather_parameters = false;  // distributed optimizer: an all-gather after each step
  // The schedule's UNSHARD and REDUCE_GRAD, where it has them for a stage, are the gather before the ops after it and
  // the reduction (ZeRO 3), instead of one before the first forward and one after the last backward.
  bool sharded_actions = false;
  bool overlap_param_gather = false;  // with gather_parameters and a flush: before the first forward of the stage
  bool tied_embedding = false;        // the embedding's gradient is all-reduced between the first and the loss stages
  std::vector<int> mtp_stages;        // these share the embedding with the first one too (multi-token prediction)
  std::vector<int> loss_stages;       // they share the output layer; empty: the last
  bool global_norm = false;           // every step waits for the norm over all ranks (flush only)
  bool recompute = false;             // a recompute vertex before every B and I
  bool blocking_transfers = false;    // a rank's next op waits until its previous sends have arrived
  // Transfers also wait in the queues of communicators; the schedule then has communication.
  const CommunicatorOptions* queues = nullptr;
  const OffloadOptions* offload = nullptr;  // of activations to host memory
};

// Lowers a schedule to its OpGraph. Data edges: F(s,m,i) needs F(s-1,m,i), through a transfer if that is on another
// rank, and F(s,m,i-1); B or I(s,m,i) needs F(s,m,i), B or I(s+1,m,i) and B or I(s,m,i+1); W(s,m,i) needs I(s,m,i); a
// step needs the weight gradients of its stage; with weight versions, a forward needs the step that wrote its version.
// `schedule` must outlive the graph. Throws ScheduleError with the shortest cycle of ops if the schedule deadlocks, or
// with the first receive whose order differs from that of the sends (check_communication_order), and
// InputError for options that its weight policy does not support, or for more bytes than fit in 64 bits.
OpGraph lower(const Schedule& schedule, const LoweringOptions& options = {});

}  // namespace sluice::model
