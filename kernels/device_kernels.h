#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device.h"
#include "kernels/stage.h"

namespace sluice::kernels {

// What a build has for its devices: stages, and the few kernels that an executor itself needs. All are put on a stream.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  // Precision::float16 or bfloat16: weights, activations and what goes between stages are 16-bit; gradients, master
  // weights and moments float32. The plan of its memory needs no device. Throws as make_cpu_stage.
  virtual std::unique_ptr<Stage> make_stage(const StageSpec& spec, Precision precision) const = 0;

  // into += from
  virtual void add(Stream& stream, Element element, const void* from, std::int64_t count, void* into) const = 0;
  virtual void maximum(Stream& stream, const float* from, std::int64_t count, float* into) const = 0;
  // Sets *flag (of the device, or pinned memory of the host) to 1 if any number is not finite; else leaves it.
  virtual void flag_not_finite(Stream& stream, Element element, const void* data, std::int64_t count,
                               std::int32_t* flag) const = 0;
  virtual void fill_not_a_number(Stream& stream, Element element, void* data, std::int64_t count) const = 0;
  // What gradients are to be multiplied with, from the sum of their squares as they are: 1 / loss_scale, less if their
  // norm without the loss scale is above `clip` (0: no clipping), not a number if the sum is not finite. `norm` gets
  // the norm without the loss scale.
  virtual void gradient_scale(Stream& stream, const float* squares, float clip, float loss_scale, float* scale,
                              float* norm) const = 0;
};

// Those of this build; null where it has none.
const DeviceKernels* device_kernels();

}  // namespace sluice::kernels
