#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/cost/analytic.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// What a kernel's time would fall with.
enum class Limit : std::uint8_t {
  tensor_cores,  // arithmetic
  memory,        // bytes through the GPU's memory
  launch,        // start and end of the kernel
  host,          // issuing kernels
  link,          // bytes and steps of a collective
};
std::string_view name_of(Limit limit);  // "tensor cores"

// A row of an explanation: all calls of one kernel in an op.
struct ExplainedKernel {
  std::string part;  // "layer"
  std::string name;
  int count = 0;  // over all layers
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
  Limit limit = Limit::memory;
};

// How an op comes to its price. Where the host issues kernels more slowly than the GPU runs them, what it is slower by
// is a row of its own, "waiting for the host".
struct ExplainedOp {
  std::string op;  // "F", "B", "I", "W", "recompute"
  int stage = 0;
  int slice = 0;
  SliceSize size;
  std::vector<ExplainedKernel> kernels;
  double seconds = 0;  // of the rows, and what the cost model prices the op at, but for rounding
};

// The stages to explain: the first of each content, in order.
std::vector<int> distinct_stages(const AnalyticCost& cost, int num_stages);

// F, then what its schedule has of I, W and B, then recomputation if there is any: of each slice of a microbatch of
// `shape` in `stage`.
std::vector<ExplainedOp> explain_stage(const AnalyticCost& cost, const Schedule& schedule, int stage,
                                       const MicrobatchShape& shape);

}  // namespace sluice::model
