#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/watch/recorder.h"
#include "model/cost/cost_model.h"
#include "model/graph/op_graph.h"
#include "model/units.h"

namespace sluice::exec {

enum class FaultKind : std::uint8_t {
  delay,    // the op takes longer
  drop,     // the message is not sent, but its sender continues
  kill,     // SIGKILL to the own process inside the op
  stop,     // the worker hangs in the op until it is aborted
  nan,      // the output of the op, or the gradients that an optimizer step or a collective reads, become NaN
  latency,  // every exchange of tokens of experts in the op takes longer
};

// One `--fault`. Unset fields match everything; the fault is injected at every matching op.
struct Fault {
  FaultKind kind = FaultKind::delay;
  // Of `op`: compute (for a drop: the op whose result is sent), optimizer step or collective.
  std::optional<VertexKind> vertex;
  OpKind op = OpKind::F;
  CollectiveKind collective = CollectiveKind::gradient_reduce;
  std::optional<int> rank;  // world rank; for a drop: of the sender
  std::optional<int> stage;
  std::optional<int> microbatch;
  std::optional<int> slice;
  std::optional<int> step;  // of training, from 1 as in the log
  Duration delay{0};        // of a delay or latency
  std::string text;         // as given
};

// Parses "delay:rank=1,op=F,stage=1,mb=2,step=3,seconds=2". Kinds: delay, drop, kill, stop, nan, latency. Keys: rank,
// op (F, B, I, W, optimizer, gradient-reduce, replica-reduce, tied-embedding, global-norm, parameter-gather), stage,
// mb, slice, step, and seconds (required for a delay and a latency). A drop needs F, B or I, whose result is sent; so
// does a latency, because W exchanges nothing. Default op: any of F, B, I and W. Throws InputError "--fault 'text':
// rule, got value".
Fault parse_fault(std::string_view text);

// The faults to inject at a vertex.
struct FaultAction {
  Duration delay{0};
  Duration latency{0};
  bool drop = false;
  bool kill = false;
  bool stop = false;
  bool poison = false;

  friend bool operator==(const FaultAction&, const FaultAction&) = default;
};

// The faults of a run.
class FaultPlan {
 public:
  // `owners` by world rank; `graph` outlives this. `announce` is called with a sentence before a process is killed.
  // Throws InputError for a fault that matches no op of the first `steps` steps, and for a latency without expert
  // parallelism.
  FaultPlan(const OpGraph& graph, std::span<const RecorderOwner> owners, int steps, std::vector<Fault> faults,
            std::function<void(const std::string&)> announce = {});

  bool empty() const { return faults_.empty(); }
  // Returns the faults when `world_rank` runs `v`: one of its compute ops, optimizer steps or collectives, or a
  // transfer that it sends. A joint vertex matches by either of its ops. `step` counts from 0.
  FaultAction at(int world_rank, int step, VertexId v) const;
  // Announces the fault and sends SIGKILL to the own process.
  [[noreturn]] void kill(int world_rank, int step, VertexId v) const;

 private:
  bool matches(const Fault& fault, VertexId v) const;

  const OpGraph& graph_;
  std::vector<Fault> faults_;
  std::function<void(const std::string&)> announce_;
};

}  // namespace sluice::exec
