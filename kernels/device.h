#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "model/namespaces.h"

namespace sluice::kernels {

class AttentionLibrary;

// Storage type of numbers on a device. GEMMs of 16-bit numbers accumulate in float32.
enum class Element : std::uint8_t { float16, bfloat16, float32 };
constexpr int bytes_of(Element element) { return element == Element::float32 ? 4 : 2; }

// A call to the runtime of a device, or work on the device, failed. The message names the call, the device and the
// error.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A queue of a device: work runs asynchronously, in the order in which it was enqueued. Created by a Device, which must
// outlive it.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void* native() const = 0;  // cudaStream_t; the emulation's own otherwise

  // Sets a function that is called after each kernel, copy and GEMM is enqueued, by the thread that enqueues it.
  void on_launch(std::function<void()> observe) { on_launch_ = std::move(observe); }
  // Called by whatever enqueues work.
  void launched() const {
    if (on_launch_) on_launch_();
  }

 private:
  std::function<void()> on_launch_;
};

// A point in a stream, as of the latest `record`. Waiting for an event that was never recorded returns immediately.
// Created by a Device, which must outlive it.
class Event {
 public:
  virtual ~Event() = default;
  virtual void* native() const = 0;
};

// C = alpha op(A) op(B) + beta C, row-major; op(A) is [rows, inner], op(B) [inner, columns], C [rows, columns].
// Strides are the distance between stored rows, steps the distance between matrices of a batch, in elements. C is not
// read if beta is 0.
struct GemmCall {
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

// Runs kernels: a whole GPU, a partition of its multiprocessors, or streams on a GPU that is shared. Calls are
// asynchronous unless documented otherwise. Must be used by one thread at a time, which has called make_current; `done`
// may be called by any thread. An error of the device is sticky: every later call throws it, except those that free.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "NVIDIA H200 (GPU 0, green partition 1 of 4: 32 of 132 SMs)"
  virtual int ordinal() const = 0;
  virtual int multiprocessors() const = 0;     // number that this device may use
  virtual int compute_capability() const = 0;  // 90 of sm_90
  virtual bool has_bfloat16() const = 0;       // GEMMs in hardware: sm_80 and later
  // Returns whether kernels of this device may access the memory of another device of this process. Copies always may.
  virtual bool can_access(const Device& other) = 0;
  // Makes GEMMs leave this number of multiprocessors, half of them at most, to kernels that wait on the device.
  virtual void reserve_multiprocessors(int count) = 0;

  // Makes this the device of the calling thread's launches and allocations.
  virtual void make_current() = 0;

  // Allocates zeroed memory of the device, or pinned memory of the host. Synchronous. Throws DoesNotFit, with the
  // number of free bytes, or DeviceError. Releasing ignores errors, which other calls report, and null.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* memory) noexcept = 0;
  virtual std::byte* allocate_host(std::int64_t bytes) = 0;
  virtual void release_host(std::byte* memory) noexcept = 0;
  virtual std::int64_t free_bytes() const = 0;

  virtual std::unique_ptr<Stream> make_stream(StreamPriority priority) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;  // with a timestamp

  virtual void record(Event& event, Stream& stream) = 0;
  // Makes later work of `stream` wait for `event`, which may belong to another device of this process.
  virtual void wait(Stream& stream, Event& event) = 0;
  // Returns whether all work before the event is complete. Throws DeviceError if work on the device has failed.
  virtual bool done(Event& event) = 0;
  // Waits for all work of a stream, or for an event. Throws as `done`.
  virtual void synchronize(Stream& stream) = 0;
  virtual void synchronize(Event& event) = 0;
  // Waits for all work of a stream and ignores errors, which other calls report. For destructors.
  void settle(Stream& stream) noexcept {
    try {
      synchronize(stream);
    } catch (const std::exception&) {
      // After an error nothing runs any more.
    }
  }
  // Returns the time from the first to the second of two completed events, in nanoseconds; may be negative.
  virtual std::int64_t nanoseconds_between(Event& first, Event& second) = 0;

  // Copies between memory of this device, of other devices of this process, and pinned memory of the host.
  virtual void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) = 0;
  virtual void zero(void* memory, std::int64_t bytes, Stream& stream) = 0;
  virtual void multiply(const GemmCall& gemm, Stream& stream) = 0;
  // Returns a library that computes attention, which belongs to the device, or null.
  virtual AttentionLibrary* attention_library() { return nullptr; }

  // Names work enqueued until end_range, for profilers (NVTX). `name` must outlive the range.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;
};

}  // namespace sluice::kernels
