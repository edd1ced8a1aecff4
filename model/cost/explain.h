#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/cost/analytic.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// What bounds a kernel's time.
enum class Limit : std::uint8_t {
  tensor_cores,  // arithmetic
  memory,        // bytes through the GPU's memory
  launch,        // launch latency of the kernel
  host,          // the host's time to launch kernels
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
  bool measured = false;  // `seconds` is a measured time
};

// The kernels of an op and their times. Where the host launches kernels more slowly than the GPU executes them, the
// difference is a row of its own, "waiting for the host".
struct ExplainedOp {
  std::string op;  // "F", "B", "I", "W", "recompute"
  int stage = 0;
  int slice = 0;
  SliceShape size;
  std::vector<ExplainedKernel> kernels;
  double seconds = 0;  // the sum of the rows, and the price of the op up to rounding
};

// Returns the stages to explain: the first of each distinct content, in order.
std::vector<int> distinct_stages(const AnalyticCost& cost, int num_stages);

// Explains F, those of I, W and B that the schedule has, and recomputation if there is any, for each slice of a
// microbatch of `shape` on `stage`.
std::vector<ExplainedOp> explain_stage(const AnalyticCost& cost, const Schedule& schedule, int stage,
                                       const MicrobatchShape& shape);

}  // namespace sluice::model
