#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "exec/device/cudnn_api.h"

namespace sluice::exec {

// The functions of cuDNN that attention needs. Streams are passed as void*, so that the build needs no header of CUDA.
struct Cudnn {
  std::size_t (*get_version)();
  cudnnStatus_t (*create)(cudnnHandle_t*);
  cudnnStatus_t (*destroy)(cudnnHandle_t);
  cudnnStatus_t (*set_stream)(cudnnHandle_t, void*);
  const char* (*status_text)(cudnnStatus_t);
  void (*last_error)(char*, std::size_t);
  cudnnStatus_t (*create_descriptor)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t*);
  cudnnStatus_t (*destroy_descriptor)(cudnnBackendDescriptor_t);
  cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t);
  cudnnStatus_t (*set_attribute)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                                 std::int64_t, const void*);
  cudnnStatus_t (*get_attribute)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                                 std::int64_t, std::int64_t*, void*);
  cudnnStatus_t (*execute)(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t);
  int version;       // 91002 of 9.10.2
  std::string text;  // "9.10.2"
  std::string path;
};

// The earliest version whose attention is used: NVIDIA's cudnn-frontend excludes the backward pass of 9.10.0 and 9.10.1
// for known bugs.
inline constexpr int kLeastCudnn = 91002;

// Loads libcudnn.so.9, and cuBLASLt and NVRTC of the CUDA version that it was built for, from the loader's path or from
// one of `folders`. Throws DeviceError if one is not found, or if cuDNN is older than kLeastCudnn.
Cudnn load_cudnn(std::span<const std::string> folders);
// The library of cuda_library_folders(), loaded on first use. Throws on every call if it cannot be used.
const Cudnn& cudnn();

}  // namespace sluice::exec
