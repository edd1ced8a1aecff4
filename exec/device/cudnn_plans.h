#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "exec/device/cudnn.h"
#include "kernels/attention_library.h"

namespace sluice::exec {

// A descriptor of cuDNN's graph interface. All functions throw DeviceError with cuDNN's own text.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const Cudnn& library, cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : library_(other.library_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void finalize();
  // Returns the number of elements, at most `count`; of all elements if `count` is 0.
  std::int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                   void* values) const;
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  const Cudnn* library_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

// Throws DeviceError, with the last error that cuDNN reports, unless the call succeeded.
void check_cudnn(const Cudnn& library, cudnnStatus_t status, const char* call);

// What a plan is built for: the device of a handle; or, without one, the device that cuDNN's description of it in JSON
// describes (cuDNN 9.8), which needs no GPU. The number of multiprocessors is that of the whole GPU: for sm_90,
// cuDNN 9.28 has no engine for fewer.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::string properties;
};

// The tensors that a caller supplies, by the unique ids of the graphs.
enum class AttentionTensor : std::int64_t {
  queries = 1,
  keys,
  values,
  out,
  log_sums,  // [sequences, heads, tokens]
  out_gradient,
  queries_gradient,
  keys_gradient,
  values_gradient,
  dot_products,       // float [sequences, heads, tokens]: workspace of the backward pass
  queries_float,      // float [sequences, heads, tokens, head_dim]: likewise, the gradient of queries
  scale,              // float, by value, as are the following
  one,                // float 1
  minus_infinity,     // float
  number_of_keys,     // int32
  number_of_queries,  // int32
};

struct CudnnPlan {
  CudnnDescriptor plan;
  std::int64_t workspace_bytes = 0;    // of the plan itself
  std::vector<CudnnDescriptor> parts;  // of its graph
};

// Build a plan, which compiles kernels. The graphs are those that cuDNN documents for fused attention: causal with the
// last query aligned to the last key, heads grouped, in any version from kLeastCudnn. Throw DeviceError for what cuDNN
// or this version of it does not support.
CudnnPlan plan_attention_forward(const Cudnn& library, const CudnnTarget& target, const AttentionProblem& problem);
CudnnPlan plan_attention_backward(const Cudnn& library, const CudnnTarget& target, const AttentionProblem& problem);

}  // namespace sluice::exec
