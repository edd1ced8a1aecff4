#pragma once

#include <cstdint>

#include "exec/device/cudnn.h"

namespace sluice::test {

// What the functions below count, and how they behave. One per process.
struct FakeCudnnState {
  int calls = 0;        // of all functions but those that destroy and that report errors
  int fails_at = 0;     // the call, counted from 1, that fails; 0: none
  int descriptors = 0;  // that exist
  int handles = 0;
  int executed = 0;  // passes
  std::int64_t workspace_bytes = 256;
};
FakeCudnnState& fake_cudnn_state();

// cuDNN's graph interface on streams of emulated devices: a plan interprets its graph in double, by the documented
// meaning of the operations and the strides of the tensors. A graph that computes attention here computes it there if
// cuDNN accepts it. Fails for descriptors that are incomplete, unfinished, or set again.
const Cudnn& fake_cudnn();

}  // namespace sluice::test
