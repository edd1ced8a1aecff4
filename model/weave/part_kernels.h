// Public header.
#pragma once

#include <span>

#include "model/namespaces.h"

namespace sluice::model {

// The kernels of a part on the compute lane as a trace shows them. Weight gradients may use two streams.
struct PartKernels {
  double busy_s = 0;         // in which the stream that is busy longer executes kernels
  double second_busy_s = 0;  // the same of the other stream, or 0
  int kernels = 0;           // of the first stream
};

// What a part takes beyond the busy time of its first stream.
struct StreamGaps {
  double kernel_s = 0;        // idle time of a stream per kernel
  double second_exposed = 0;  // fraction of the second stream's busy time during which the first one waits
};

// Returns the time of a part from its first kernel to its last, in seconds.
double extent_s(const PartKernels& part, const StreamGaps& gaps);

// Returns the gaps of traced parts: medians over those with one stream and over those with two; 0 without such parts.
struct TracedExtent {
  PartKernels kernels;
  double seconds = 0;  // from the first kernel to the last
};
StreamGaps fit_gaps(std::span<const TracedExtent> parts);

}  // namespace sluice::model
