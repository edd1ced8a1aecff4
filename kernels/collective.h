#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace sluice::kernels {

// What a kernel may call inside an op: sums over the tensor-parallel ranks of one stage. Every rank of the group makes
// the same calls in the same order; each gets the same bits, summed in the order of the ranks. Throws what ends the
// run if another rank has failed.
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual void sum(float* data, std::int64_t count) = 0;
  virtual void sum(double* data, std::int64_t count) = 0;
  virtual void maximum(float* data, std::int64_t count) = 0;
  virtual void maximum(double* data, std::int64_t count) = 0;
};

// The same on a device: calls are put on a stream, whose later work sees the sums. Every rank of the group gets the
// same bits.
class StreamGroup {
 public:
  virtual ~StreamGroup() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual void sum(void* data, std::int64_t count, Element element, Stream& stream) = 0;
  virtual void maximum(float* data, std::int64_t count, Stream& stream) = 0;
  // `data` is `bytes` long, a multiple of size(): each rank has its share of it, shares in the order of the ranks, and
  // gets those of the others.
  virtual void gather(void* data, std::int64_t bytes, Stream& stream) = 0;
};

}  // namespace sluice::kernels
