#pragma once

#include "model/cost/gemm.h"

namespace sluice::model {

// What dispatch and combine take from the kernels beside them, as fractions of the GPU: the multiprocessors on which
// they run, and the memory bandwidth that their bytes need.
struct Contention {
  double multiprocessors = 0;
  double memory = 0;

  // Returns the time of a kernel beside them: arithmetic and memory traffic have what they leave, and launches take as
  // long as alone. A kernel that is bound by memory loses multiprocessors only where it would then be bound by these.
  KernelTime beside(const KernelTime& alone) const {
    return {.compute_s = alone.compute_s / (1 - multiprocessors),
            .memory_s = alone.memory_s / (1 - memory),
            .launch_s = alone.launch_s};
  }
};

}  // namespace sluice::model
