#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "traces/measured/measured_run.h"

namespace sluice::test {

// Steps of replicas of a 1F1B pipeline, executed op by op: an oracle for the analysis of measured timelines.
struct MeasuredPipeline {
  int replicas = 2;
  int ranks = 4;
  int microbatches = 8;
  int steps = 5;
  double forward_ms = 20;
  double backward_ms = 40;
  double transfer_ms = 0.5;
  double reduce_ms = 10;
  double noise = 0.02;  // relative standard deviation of passes and transfers
  std::uint64_t seed = 1;
  bool transfers = true;  // are recorded
  // Changes the duration (ms) of a pass or of the transfer that leaves it.
  struct Pass {
    int step = 0;
    int replica = 0;
    int rank = 0;
    int microbatch = 0;
    bool forward = true;
  };
  std::function<double(const Pass&, double ms)> pass = [](const Pass&, double ms) { return ms; };
  std::function<double(const Pass&, double ms)> transfer = [](const Pass&, double ms) { return ms; };
};
std::deque<traces::RawMeasuredOp> measured_pipeline(const MeasuredPipeline& pipeline);

}  // namespace sluice::test
