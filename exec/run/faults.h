#pragma once

#include <cstdint>
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
  delay,  // the op takes that much longer
  drop,   // the message is not sent, though its sender goes on as if it were
  kill,   // SIGKILL to the own process in the middle of the op
  stop,   // the worker hangs in the op until it is aborted
  nan,    // what the op makes is poisoned
};

// One `--fault`. What it does not say matches everything, and it happens at every op that matches.
struct Fault {
  FaultKind kind = FaultKind::delay;
  // Of `op`: a compute op's kind (of a drop: that of the op whose message it is), an optimizer step, a collective.
  std::optional<VertexKind> vertex;
  OpKind op = OpKind::F;
  CollectiveKind collective = CollectiveKind::gradient_reduce;
  std::optional<int> rank;  // world rank; of a drop: the sender
  std::optional<int> stage;
  std::optional<int> microbatch;
  std::optional<int> slice;
  std::optional<int> step;  // of the run, from 0
  Duration delay{0};
  std::string text;  // as given
};

// Reads "delay:rank=1,op=F,stage=1,mb=2,step=3,seconds=2". The kind is delay, drop, kill, stop or nan; the keys are
// rank, op (F, B, I, W, optimizer, gradient-reduce, replica-reduce, tied-embedding, global-norm, parameter-gather),
// stage, mb, slice, step, and seconds (of a delay, required). A drop is of a message, so its op is F, B or I; nan is of
// F, B, I and W. Without an op: any of F, B, I and W. Throws InputError "--fault 'text': rule, got value".
Fault parse_fault(std::string_view text);

// What happens at a vertex.
struct FaultAction {
  Duration delay{0};
  bool drop = false;
  bool kill = false;
  bool stop = false;
  bool poison = false;

  friend bool operator==(const FaultAction&, const FaultAction&) = default;
};

// The faults of a run.
class FaultPlan {
 public:
  // `owners` by world rank; `graph` outlives this. Throws InputError for a fault that no op of the first `steps` steps
  // matches.
  FaultPlan(const OpGraph& graph, std::span<const RecorderOwner> owners, int steps, std::vector<Fault> faults);

  bool empty() const { return faults_.empty(); }
  // What happens when `world_rank` runs `v`: one of its compute ops, optimizer steps or collectives, or a transfer that
  // it sends. A joint block matches by either of its ops.
  FaultAction at(int world_rank, int step, VertexId v) const;

 private:
  bool matches(const Fault& fault, VertexId v) const;

  const OpGraph& graph_;
  std::vector<Fault> faults_;
};

// SIGKILL to the own process.
[[noreturn]] void kill_own_process();

}  // namespace sluice::exec
