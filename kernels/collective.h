#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.h"

namespace sluice::kernels {

// Collectives over the tensor-parallel ranks of one stage, in place, called by kernels inside an op. All ranks of the
// group must make the same calls in the same order. The order of summation is that of the ranks, so that all get
// bitwise equal results. Throws if another rank has failed.
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual void all_reduce_sum(float* data, std::int64_t count) = 0;
  virtual void all_reduce_sum(double* data, std::int64_t count) = 0;
  virtual void all_reduce_max(float* data, std::int64_t count) = 0;
  virtual void all_reduce_max(double* data, std::int64_t count) = 0;
};

// Messages between the ranks over which the experts of a layer are distributed, inside an op. The messages from one
// rank to another are received in the order in which they are sent, with equal sizes. `send` and `receive` return
// immediately, and `finish` returns once all of them are done; buffers stay in place until then. Throw if another rank
// has failed.
class ExpertGroup {
 public:
  virtual ~ExpertGroup() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual void send(int rank, const std::byte* data, std::int64_t bytes) = 0;
  virtual void receive(int rank, std::byte* data, std::int64_t bytes) = 0;
  virtual void finish() = 0;
};

// Part of StreamGroup::exchange: memory that is sent to a member of the group, or received from it.
struct ExchangeBlock {
  int rank = 0;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

// A TensorGroup on a device: calls are enqueued on a stream, and later work of the stream sees the result. All ranks
// get bitwise equal results.
class StreamGroup {
 public:
  virtual ~StreamGroup() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual void all_reduce_sum(void* data, std::int64_t count, Element element, Stream& stream) = 0;
  virtual void all_reduce_max(float* data, std::int64_t count, Stream& stream) = 0;
  // All-gather in place: `data` has size() shards of equal size, in the order of the ranks, `bytes` in total. Each rank
  // provides its own shard and receives the others.
  virtual void all_gather(void* data, std::int64_t bytes, Stream& stream) = 0;
  // All-to-all. The blocks from one rank to another have the same order and sizes at both ends, and none is empty; a
  // rank sends none to itself. The spans are read during the call only.
  virtual void exchange(std::span<const ExchangeBlock> sends, std::span<const ExchangeBlock> receives,
                        Stream& stream) = 0;
};

}  // namespace sluice::kernels
