#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "model/namespaces.h"

namespace sluice::kernels {

// What a number is stored as on a device. Products of 16-bit numbers accumulate in float32.
enum class Element : std::uint8_t { float16, bfloat16, float32 };
constexpr int bytes_of(Element element) { return element == Element::float32 ? 4 : 2; }

// A call of a device's software failed, or what ran there did: says the call, the device and what it answered.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A queue of a device: what is put on it runs in that order, later. Made by a Device, which outlives it.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void* native() const = 0;  // cudaStream_t; the emulation's own otherwise
};

// A mark in a stream. Recorded again, it stands for the later place. Waiting for one that was never recorded is not
// waiting. Made by a Device, which outlives it.
class Event {
 public:
  virtual ~Event() = default;
  virtual void* native() const = 0;
};

// C = alpha op(A) op(B) + beta C, row-major; op(A) is [rows, inner], op(B) [inner, columns], C [rows, columns].
// Strides are elements from one row of what is stored to the next, steps from one matrix of a batch to the next.
// Where beta is 0, C is not read.
struct MatrixProduct {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  const void* a = nullptr;
  std::int64_t a_stride = 0;
  bool a_transposed = false;  // stored as [inner, rows]
  const void* b = nullptr;
  std::int64_t b_stride = 0;
  bool b_transposed = false;  // stored as [columns, inner]
  void* c = nullptr;
  std::int64_t c_stride = 0;
  Element in = Element::bfloat16;  // of A and B: 16-bit
  Element out = Element::bfloat16;
  float alpha = 1;
  float beta = 0;
  std::int64_t batch = 1;
  std::int64_t a_step = 0;
  std::int64_t b_step = 0;
  std::int64_t c_step = 0;
};

enum class StreamPriority : std::uint8_t { normal, high };

// What kernels run on: a whole GPU, a partition of one, or a part of one by streams alone. All calls but those that say
// otherwise return before the work is done. Used by one thread at a time, which has called make_current; `done` and
// `failure` by any.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "NVIDIA H200 (GPU 0, green partition 1 of 4: 32 of 132 SMs)"
  virtual int ordinal() const = 0;
  virtual int multiprocessors() const = 0;     // that this device may use: kernels that fill it ask
  virtual int compute_capability() const = 0;  // 90 of sm_90
  virtual bool has_bfloat16() const = 0;       // with products in hardware: from sm_80

  // The calling thread's launches and allocations go to this device from now on.
  virtual void make_current() = 0;

  // Memory of the device, zeroed; pinned memory of the host. Both wait. Throws DoesNotFit with what is free;
  // DeviceError.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  virtual std::byte* allocate_host(std::int64_t bytes) = 0;
  virtual void release_host(std::byte* memory) = 0;
  virtual std::int64_t free_bytes() const = 0;

  virtual std::unique_ptr<Stream> make_stream(StreamPriority priority) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;  // that keeps its time

  virtual void record(Event& event, Stream& stream) = 0;
  // What is put on `stream` from now on runs after what `event` stands for, of whichever device of this process.
  virtual void wait(Stream& stream, Event& event) = 0;
  // Whether all before the mark is done. Throws DeviceError if something on the device has failed.
  virtual bool done(Event& event) = 0;
  // Waits for the stream, or an event. Throws as `done`.
  virtual void synchronize(Stream& stream) = 0;
  virtual void synchronize(Event& event) = 0;
  // Of two events that are done: how long the second came after the first, in nanoseconds; negative if before.
  virtual std::int64_t nanoseconds_between(Event& first, Event& second) = 0;

  // Between any two of memory of this device, of another device of this process, and pinned memory of the host.
  virtual void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) = 0;
  virtual void zero(void* memory, std::int64_t bytes, Stream& stream) = 0;
  virtual void multiply(const MatrixProduct& product, Stream& stream) = 0;

  // What profilers are to call what is put on streams from now on, until end_range; `name` is kept by the caller.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;
};

}  // namespace sluice::kernels
