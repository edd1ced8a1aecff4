#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/device.h"

namespace sluice::kernels::cuda {

// Throws DeviceError with the call, the device and the runtime's error unless `error` is cudaSuccess.
inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  int ordinal = -1;
  const bool known = cudaGetDevice(&ordinal) == cudaSuccess;
  throw DeviceError(std::string(call) + (known ? " on GPU " + std::to_string(ordinal) : std::string()) + ": " +
                    cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

}  // namespace sluice::kernels::cuda

#define SLUICE_CUDA_CHECK(call) ::sluice::kernels::cuda::check((call), #call)
