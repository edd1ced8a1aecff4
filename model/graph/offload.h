#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/units.h"

namespace sluice::model {

// Which activations are copied to host memory after their forward and back before their backward (PipeOffload,
// arXiv:2503.01328). The times are those that pricing gives the same ops.
struct OffloadOptions {
  // Of what each rank's forwards store: the chunks that hold it longest first. Nothing: all that delays no op.
  std::optional<double> fraction;
  // A forward whose activation is copied waits until the copy of the one this many before it has ended; 0: never.
  int window = 0;
  // Seconds of an op with its recomputation, or of a joint block.
  std::function<double(const Schedule&, const Op&, const Op* partner)> compute_s;
  // Seconds of the copy of all that a forward stores, in one direction.
  std::function<double(const Schedule&, const Op&)> copy_s;
  // The fraction of what a forward stores that may be copied.
  std::function<double(const Schedule&, const Op&)> most;
};

// The copies of one activation. Positions are those of a rank's list.
struct OffloadCopy {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t forward = 0;
  std::uint32_t backward = 0;   // its B or I
  std::uint32_t after = kNone;  // the op after which the copy back may start, so that memory is taken late
  std::uint32_t part = 0;       // of what the forward stores, in units of 1 / kOffloadUnit
};
inline constexpr std::uint32_t kOffloadUnit = 1U << 16U;

// Returns what a forward of one of `num_slices` slices stores that may be copied.
OffloadBytes stored_bytes(const SliceBytes& bytes, int num_slices);

// Returns the time of the copy of a part, in one direction.
Duration offload_time(double whole_s, std::uint32_t part);

// Returns the copies of each rank, by their forwards. An activation whose backward is the rank's next op stays. Times
// are counted on a clock of the rank that runs while it computes. On it, each direction copies in the order of the
// forwards or backwards, and a copy back starts as late as it can so that it and all later ones end in time. With a
// fraction, everything else is copied, in time or not. Otherwise the chunks that hold activations longest come first,
// each with the eighths that leave the least peak of what the rank holds, and only what ends in time: since idle time
// of the rank only adds to the time between two of its ops, no op is then delayed.
std::vector<std::vector<OffloadCopy>> plan_offload(const Schedule& schedule, const OffloadOptions& options);

// Adds the copies to a lowered graph: a vertex of kind `offload` with op F after a forward, on a lane of its rank to
// the host, and one with op B before the backward, which waits for it, on a lane back. Without a window, nothing but
// the copy back waits for a copy to the host: a rank that copies slower than it computes holds activations longer.
// Throws ScheduleError for schedules with vocabulary passes.
void add_offload(OpGraph::Data& graph, const OffloadOptions& options);

}  // namespace sluice::model
