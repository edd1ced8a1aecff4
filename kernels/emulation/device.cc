#include "kernels/emulation/device.h"

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/emulation/block.h"
#include "kernels/emulation/lanes.h"
#include "kernels/stage.h"
#include "model/errors.h"

namespace sluice::kernels::emulation {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The first failure on a device.
class Failure {
 public:
  void set(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (what_.empty()) what_ = what;
  }
  void check() {
    const std::lock_guard lock(mutex_);
    if (!what_.empty()) throw DeviceError(what_);
  }
  // Called after each task; throws for the one that is to fail.
  void count_task(std::int64_t fails_at) {
    if (++tasks_ == fails_at) throw std::runtime_error("task " + std::to_string(fails_at) + " fails");
  }

 private:
  std::mutex mutex_;
  std::string what_;
  std::atomic<std::int64_t> tasks_{0};
};

// The memory of all emulated devices of the process.
class Memories {
 public:
  void add(const std::byte* memory, std::int64_t bytes, int ordinal) {
    const std::lock_guard lock(mutex_);
    blocks_[memory] = {memory + bytes, ordinal};
  }
  void remove(const std::byte* memory) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(memory);
  }
  // Throws if an aligned word of `arguments` is an address in the memory of another GPU.
  void check_access(std::span<const std::byte> arguments, int ordinal) {
    const std::lock_guard lock(mutex_);
    for (std::size_t at = 0; at + sizeof(void*) <= arguments.size(); at += alignof(void*)) {
      const std::byte* address = nullptr;
      std::memcpy(&address, arguments.data() + at, sizeof address);
      const auto after = blocks_.upper_bound(address);
      if (after == blocks_.begin()) continue;
      const auto& [end, owner] = std::prev(after)->second;
      if (address >= end || owner == ordinal) continue;
      throw std::runtime_error("a kernel accesses memory of GPU " + std::to_string(owner) + " without peer access");
    }
  }

 private:
  struct Block {
    const std::byte* end;
    int ordinal;
  };
  std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;
};
Memories& memories() {
  static Memories all;
  return all;
}

template <class T>
void raise_to(std::atomic<T>& most, T value) {
  for (T now = most.load(); now < value && !most.compare_exchange_weak(now, value);) {
  }
}

// What an event knows. Streams keep it for their tasks: as in CUDA, an event may be destroyed before they run.
class EventState {
 public:
  std::int64_t expect() {
    const std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  void reach(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    reached_ = std::max(reached_, number);
    time_ns_ = now_ns();
    changed_.notify_all();
  }
  std::int64_t recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  bool done() {
    const std::lock_guard lock(mutex_);
    return reached_ >= recorded_;
  }
  void wait(std::int64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= number; });
  }
  std::int64_t time_ns() {
    const std::lock_guard lock(mutex_);
    return time_ns_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t recorded_ = 0;
  std::int64_t reached_ = 0;
  std::int64_t time_ns_ = 0;
};

class EmulatedEvent final : public Event {
 public:
  void* native() const override { return nullptr; }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

class EmulatedStream final : public Stream {
 public:
  EmulatedStream(std::shared_ptr<Failure> failure, const EmulatedDeviceSpec& spec)
      : failure_(std::move(failure)), spec_(spec), thread_([this] {
          set_execution_order(spec_.order);
          serve();
        }) {}
  ~EmulatedStream() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void* native() const override { return const_cast<Stream*>(static_cast<const Stream*>(this)); }

  void put(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < spec_.queue_length; });
    tasks_.push_back(std::move(task));
    if (spec_.counters != nullptr) raise_to(spec_.counters->most_pending, tasks_.size());
    changed_.notify_all();
  }
  void launch(std::function<void()> task, std::span<const std::byte> arguments, const std::string& name) {
    failure_->check();
    try {
      if (!spec_.peer_access) memories().check_access(arguments, spec_.ordinal);
    } catch (const std::exception& error) {
      fail(error);
    }
    if (spec_.counters != nullptr) {
      ++spec_.counters->launches;
      const std::lock_guard lock(spec_.counters->mutex);
      spec_.counters->kernels.insert(name);
    }
    put(std::move(task));
    launched();
  }
  void wait_until_empty() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty(); });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      lock.unlock();
      try {
        tasks_.front()();
        failure_->count_task(spec_.fails_at);  // events are reached also after an error
      } catch (const std::exception& error) {
        fail(error);
      }
      lock.lock();
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  void fail(const std::exception& error) const { failure_->set("on " + spec_.name + ": " + error.what()); }

  std::shared_ptr<Failure> failure_;
  const EmulatedDeviceSpec spec_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the first one may be running
  bool ending_ = false;
  std::thread thread_;
};

EmulatedStream& emulated(Stream& stream) { return dynamic_cast<EmulatedStream&>(stream); }
std::shared_ptr<EventState> emulated(Event& event) { return dynamic_cast<EmulatedEvent&>(event).state(); }

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
Matrix read(const void* from, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  const T* const numbers = static_cast<const T*>(from);
  Matrix out(rows, columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out(i, j) = cuda::to_float(numbers[i * stride + j]);
  }
  return out;
}

template <class T>
void write(const Matrix& product, const GemmCall& how, void* to) {
  T* const numbers = static_cast<T*>(to);
  for (std::int64_t i = 0; i < product.rows(); ++i) {
    for (std::int64_t j = 0; j < product.cols(); ++j) {
      T& into = numbers[i * how.c_stride + j];
      const float before = how.beta == 0 ? 0 : how.beta * cuda::to_float(into);
      into = cuda::from_float<T>(how.alpha * product(i, j) + before);
    }
  }
}

template <class T>
void multiply_one(const GemmCall& how, const T* a, const T* b, void* c) {
  Matrix left = how.a_transposed ? Matrix(read<T>(a, how.inner, how.rows, how.a_stride).transpose())
                                 : read<T>(a, how.rows, how.inner, how.a_stride);
  Matrix right = how.b_transposed ? Matrix(read<T>(b, how.columns, how.inner, how.b_stride).transpose())
                                  : read<T>(b, how.inner, how.columns, how.b_stride);
  const Matrix product = left * right;
  switch (how.out) {
    case Element::float32: write<float>(product, how, c); break;
    case Element::float16: write<cuda::float16>(product, how, c); break;
    case Element::bfloat16: write<cuda::bfloat16>(product, how, c); break;
  }
}

template <class T>
void multiply_all(const GemmCall& how) {
  for (std::int64_t i = 0; i < how.batch; ++i) {
    multiply_one<T>(how, static_cast<const T*>(how.a) + i * how.a_step, static_cast<const T*>(how.b) + i * how.b_step,
                    static_cast<std::byte*>(how.c) + i * how.c_step * bytes_of(how.out));
  }
}

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(const EmulatedDeviceSpec& spec) : spec_(spec), failure_(std::make_shared<Failure>()) {}
  ~EmulatedDevice() override {
    for (const auto& [memory, bytes] : allocated_) free_memory(memory);
  }
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  std::string name() const override { return spec_.name; }
  int ordinal() const override { return spec_.ordinal; }
  int multiprocessors() const override { return spec_.multiprocessors; }
  int compute_capability() const override { return spec_.compute_capability; }
  bool has_bfloat16() const override { return spec_.compute_capability >= 80; }
  bool can_access(const Device& other) override { return spec_.peer_access || other.ordinal() == spec_.ordinal; }
  void reserve_multiprocessors(int count) override {
    if (spec_.counters != nullptr) spec_.counters->reserved = std::min(count, spec_.multiprocessors / 2);
  }
  void make_current() override { failure_->check(); }
  AttentionLibrary* attention_library() override { return spec_.attention; }

  std::byte* allocate(std::int64_t bytes) override {
    failure_->check();
    if (bytes > free_bytes()) {
      throw DoesNotFit(std::to_string(bytes) + " bytes on " + spec_.name + ", of which " +
                       std::to_string(free_bytes()) + " are free");
    }
    std::byte* const memory = keep(bytes);
    memories().add(memory, bytes, spec_.ordinal);
    return memory;
  }
  void release(std::byte* memory) noexcept override {
    allocated_.erase(memory);
    free_memory(memory);
  }
  std::byte* allocate_host(std::int64_t bytes) override {
    failure_->check();
    return keep(bytes);
  }
  void release_host(std::byte* memory) noexcept override { release(memory); }
  std::int64_t free_bytes() const override {
    std::int64_t held = 0;
    for (const auto& [memory, bytes] : allocated_) held += bytes;
    return spec_.memory_bytes - held;
  }

  std::unique_ptr<Stream> make_stream(StreamPriority) override {
    failure_->check();
    return std::make_unique<EmulatedStream>(failure_, spec_);
  }
  std::unique_ptr<Event> make_event() override {
    failure_->check();
    return std::make_unique<EmulatedEvent>();
  }

  void record(Event& event, Stream& stream) override {
    failure_->check();
    const auto of = emulated(event);
    const std::int64_t number = of->expect();
    emulated(stream).put([of, number] { of->reach(number); });
  }
  void wait(Stream& stream, Event& event) override {
    failure_->check();
    const auto of = emulated(event);
    emulated(stream).put([of, number = of->recorded()] { of->wait(number); });
  }
  bool done(Event& event) override {
    failure_->check();
    if (Counters* const counters = spec_.counters; counters != nullptr) {
      ++counters->queries;
      raise_to(counters->most_querying, ++counters->querying);
      std::this_thread::yield();  // a query takes time
      --counters->querying;
    }
    return emulated(event)->done();
  }
  void synchronize(Stream& stream) override {
    emulated(stream).wait_until_empty();
    failure_->check();
  }
  void synchronize(Event& event) override {
    emulated(event)->wait(emulated(event)->recorded());
    failure_->check();
  }
  std::int64_t nanoseconds_between(Event& first, Event& second) override {
    failure_->check();
    return emulated(second)->time_ns() - emulated(first)->time_ns();
  }

  void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) override {
    emulated(stream).launch([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }, {}, "copy");
  }
  void zero(void* memory, std::int64_t bytes, Stream& stream) override {
    emulated(stream).launch([=] { std::memset(memory, 0, static_cast<std::size_t>(bytes)); }, {}, "zero");
  }
  void begin_range(const char*) override {}
  void end_range() override {}
  void multiply(const GemmCall& product, Stream& stream) override {
    const auto run = [product] {
      switch (product.in) {
        case Element::float16: multiply_all<cuda::float16>(product); break;
        case Element::bfloat16: multiply_all<cuda::bfloat16>(product); break;
        case Element::float32: throw std::logic_error("GEMMs must have 16-bit inputs");
      }
    };
    const GemmCall& of = product;
    emulated(stream).launch(run, {},
                            "GEMM of " + std::to_string(of.rows) + " x " + std::to_string(of.columns) + " x " +
                                std::to_string(of.inner) + ", " + std::to_string(of.batch) + " times");
  }

 private:
  std::byte* keep(std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    auto* const memory = static_cast<std::byte*>(::operator new (size, std::align_val_t{kBufferAlignment}));
    std::memset(memory, 0, size);
    allocated_[memory] = bytes;
    return memory;
  }
  static void free_memory(std::byte* memory) {
    memories().remove(memory);
    ::operator delete (memory, std::align_val_t{kBufferAlignment});
  }

  EmulatedDeviceSpec spec_;
  std::shared_ptr<Failure> failure_;
  std::map<std::byte*, std::int64_t> allocated_;
};

}  // namespace

std::unique_ptr<Device> make_device(const EmulatedDeviceSpec& spec) { return std::make_unique<EmulatedDevice>(spec); }

void put(Stream& stream, std::function<void()> task) { emulated(stream).put(std::move(task)); }

void launch(Stream& stream, std::function<void()> task, std::span<const std::byte> arguments, const char* name) {
  emulated(stream).launch(std::move(task), arguments, name);
}

void run_grid(const std::array<int, 3>& blocks, int threads, int shared_bytes, const std::function<void()>& body) {
  BlockPlace place{.blocks = blocks, .threads = threads, .shared_bytes = shared_bytes};
  for (place.block[2] = 0; place.block[2] < blocks[2]; ++place.block[2]) {
    for (place.block[1] = 0; place.block[1] < blocks[1]; ++place.block[1]) {
      for (place.block[0] = 0; place.block[0] < blocks[0]; ++place.block[0]) run_block(place, body);
    }
  }
}

}  // namespace sluice::kernels::emulation
