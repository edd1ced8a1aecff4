#include "kernels/cuda/buffers.h"
#include "kernels/cuda/stage.h"
#include "kernels/device_kernels.h"

namespace sluice::kernels {
namespace {

class CudaKernels final : public DeviceKernels {
 public:
  std::unique_ptr<Stage> make_stage(const StageSpec& spec, Precision precision) const override {
    return cuda::make_stage(spec, precision);
  }
  void add(Stream& stream, Element element, const void* from, std::int64_t count, void* into) const override {
    cuda::add(stream, element, from, count, into);
  }
  void maximum(Stream& stream, const float* from, std::int64_t count, float* into) const override {
    cuda::maximum(stream, from, count, into);
  }
  void flag_not_finite(Stream& stream, Element element, const void* data, std::int64_t count,
                       std::int32_t* flag) const override {
    cuda::flag_not_finite(stream, element, data, count, flag);
  }
  void fill_not_a_number(Stream& stream, Element element, void* data, std::int64_t count) const override {
    cuda::fill_not_a_number(stream, element, data, count);
  }
  void gradient_scale(Stream& stream, const float* squares, float clip, float loss_scale, float* scale,
                      float* norm) const override {
    cuda::gradient_scale(stream, squares, clip, loss_scale, scale, norm);
  }
};

}  // namespace

const DeviceKernels* device_kernels() {
  static const CudaKernels kernels;
  return &kernels;
}

}  // namespace sluice::kernels
