#pragma once

#include <functional>
#include <memory>
#include <string>

#include "exec/device/cudnn.h"
#include "kernels/attention_library.h"

namespace sluice::exec {

// The device of a CudnnAttention, which is current whenever a function of it is called.
struct CudnnDevice {
  std::string name;
  int compute_capability = 0;  // 90 of sm_90
};

// Attention by cuDNN. `load` returns the library or throws DeviceError; it is called with the first problem, and again
// only if that succeeds. Plans live as long as the object. A pass that fails is not tried again.
std::unique_ptr<AttentionLibrary> make_cudnn_attention(std::function<const Cudnn&()> load, CudnnDevice device);

// Returns why cuDNN `version` does not compute the pass correctly, or an empty string. Also without a device.
std::string why_not_cudnn(int version, int compute_capability, const AttentionProblem& problem, bool backward);

}  // namespace sluice::exec
