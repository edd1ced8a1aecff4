#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device.h"
#include "kernels/stage.h"

namespace sluice::kernels {

// The device kernels of a build: stages, and the few kernels that the executor needs. All are enqueued on a stream.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  // Creates a stage of Precision::float16 or bfloat16: weights, activations and tensors sent between stages are 16-bit;
  // gradients, master weights and Adam moments are float32. Memory sizes can be computed without a device. Throws as
  // make_cpu_stage.
  virtual std::unique_ptr<Stage> make_stage(const StageSpec& spec, Precision precision) const = 0;

  // Element-wise: into += from; into = max(into, from).
  virtual void add(Stream& stream, Element element, const void* from, std::int64_t count, void* into) const = 0;
  virtual void maximum(Stream& stream, const float* from, std::int64_t count, float* into) const = 0;
  // Sets *flag (device memory or pinned host memory) to 1 if any number is not finite, and leaves it unchanged
  // otherwise.
  virtual void flag_not_finite(Stream& stream, Element element, const void* data, std::int64_t count,
                               std::int32_t* flag) const = 0;
  virtual void fill_not_a_number(Stream& stream, Element element, void* data, std::int64_t count) const = 0;
  // Computes the factor for gradients from the sum of their squares, which includes the loss scale: 1 / loss_scale, or
  // less if the unscaled norm exceeds `clip` (0: no clipping), or NaN if the sum is not finite. Writes the unscaled
  // norm to `norm`.
  virtual void gradient_scale(Stream& stream, const float* squares, float clip, float loss_scale, float* scale,
                              float* norm) const = 0;
};

// Returns the kernels of this build, or null if it has none.
const DeviceKernels* device_kernels();

}  // namespace sluice::kernels
