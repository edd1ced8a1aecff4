#include "kernels/cuda/attention.h"

#include <algorithm>

#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/gemm_attention.h"

namespace sluice::kernels::cuda {

std::int64_t attention_scratch_bytes(const AttentionSizes& shape) {
  return std::max(gemm_attention_scratch_bytes(shape), flash_scratch_bytes(shape));
}

void attention_forward(const AttentionForward& call, Device& device, Stream& stream) {
  if (flash_fits(call.shape, device.compute_capability())) {
    flash_attention_forward(call, device, stream);
  } else {
    gemm_attention_forward(call, device, stream);
  }
}

void attention_backward(const AttentionBackward& call, Device& device, Stream& stream) {
  if (flash_fits(call.shape, device.compute_capability())) {
    flash_attention_backward(call, device, stream);
  } else {
    if (!call.accumulate) {
      // Its GEMMs accumulate.
      const std::int64_t elements = 2 * values_after(call.shape.rows(), call.shape.key_width());
      device.zero(call.keys.keys_gradient, elements * std::int64_t{sizeof(float)}, stream);
    }
    gemm_attention_backward(call, device, stream);
  }
}

}  // namespace sluice::kernels::cuda
