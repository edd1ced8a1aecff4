#include "tests/kernels/device_training_run.h"

#include <algorithm>
#include <barrier>
#include <mutex>
#include <thread>

#include "kernels/device_kernels.h"
#include "model/to_size.h"
#include "tests/kernels/rank_run.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

Element element_of(Precision precision) {
  return precision == Precision::float16 ? Element::float16 : Element::bfloat16;
}

struct Board {
  explicit Board(int size) : barrier(size), data(to_size(size)), sends(to_size(size)) {}
  std::barrier<> barrier;
  std::vector<std::vector<double>> data;
  std::vector<std::span<const ExchangeBlock>> sends;
};

// Waits for the stream, reduces on the host in the order of the ranks, and rounds once.
class HostGroup final : public StreamGroup {
 public:
  HostGroup(Board& board, int rank, Device& device) : board_(board), rank_(rank), device_(device) {}
  int size() const override { return static_cast<int>(board_.data.size()); }
  int rank() const override { return rank_; }
  void all_reduce_sum(void* data, std::int64_t count, Element element, Stream& stream) override {
    combine(data, count, element, stream, [](double a, double b) { return a + b; });
  }
  void all_reduce_max(float* data, std::int64_t count, Stream& stream) override {
    combine(data, count, Element::float32, stream, [](double a, double b) { return std::max(a, b); });
  }

  void all_gather(void*, std::int64_t, Stream&) override { throw std::logic_error("stages do not call all_gather"); }
  void exchange(std::span<const ExchangeBlock> sends, std::span<const ExchangeBlock> receives,
                Stream& stream) override {
    device_.synchronize(stream);
    board_.sends[rank_] = sends;
    board_.barrier.arrive_and_wait();
    std::vector<std::size_t> next(board_.sends.size(), 0);
    for (const ExchangeBlock& block : receives) {
      const auto from = board_.sends[block.rank];
      std::size_t& at = next[block.rank];
      while (at < from.size() && from[at].rank != rank_) ++at;
      if (at == from.size() || from[at].bytes != block.bytes) {
        throw std::logic_error("a receive without its send");
      }
      device_.copy(block.data, from[at++].data, block.bytes, stream);
    }
    device_.synchronize(stream);
    board_.barrier.arrive_and_wait();
  }

 private:
  template <class Combine>
  void combine(void* data, std::int64_t count, Element element, Stream& stream, const Combine& combined) {
    const std::int64_t bytes = count * bytes_of(element);
    std::byte* const host = device_.allocate_host(bytes);
    device_.copy(host, data, bytes, stream);
    device_.synchronize(stream);
    board_.data[rank_] = as_numbers(element, {host, to_size(bytes)});
    board_.barrier.arrive_and_wait();
    std::vector<double> result = board_.data.front();
    for (std::size_t rank = 1; rank < board_.data.size(); ++rank) {
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = combined(result[i], board_.data[rank][i]);
    }
    board_.barrier.arrive_and_wait();
    const std::vector<std::byte> back = as_bytes(element, result);
    std::copy(back.begin(), back.end(), host);
    device_.copy(data, host, bytes, stream);
    device_.synchronize(stream);
    device_.release_host(host);
  }

  Board& board_;
  int rank_;
  Device& device_;
};

// A device, for RankRun.
class DevicePlace {
 public:
  using Buffer = DeviceMemory;
  DevicePlace(const TrainingCase& training, Device& device, StreamGroup* group)
      : training_(training),
        device_(device),
        stream_(device.make_stream(StreamPriority::normal)),
        group_(group),
        loss_(device, *stream_, sizeof(float)),
        squares_(device, *stream_, sizeof(float)) {
    squares_.fill(std::byte{0});
  }

  std::unique_ptr<Stage> make_stage(const StageSpec& spec) const {
    return device_kernels()->make_stage(spec, training_.precision);
  }
  std::unique_ptr<Buffer> make_buffer(std::int64_t bytes) const {
    return std::make_unique<Buffer>(device_, *stream_, bytes);
  }
  std::vector<std::byte> as_bytes(const std::vector<double>& numbers) const {
    return test::as_bytes(element_of(training_.precision), numbers);
  }
  std::vector<double> gradient_numbers(const Buffer& gradients) const {
    return as_numbers(Element::float32, gradients.read());
  }
  void fill_tables(const Stage& stage, Buffer& tables, std::int64_t positions) const {
    stage.fill_tables(tables.data(), positions, *stream_);
  }
  template <class Op>
  void run(const Stage& stage, SliceCall& call, const Op& op) {
    call.stream = stream_.get();
    call.device = &device_;
    call.stream_group = group_;
    call.stream_experts = training_.expert_parallel > 1 ? group_ : nullptr;
    call.loss_on_device = reinterpret_cast<float*>(loss_.data());
    op(stage, call);
    device_.synchronize(*stream_);
  }
  double loss() const { return as_numbers(Element::float32, loss_.read()).front(); }
  void add_squares(const Stage& stage, const Buffer& gradients) {
    stage.add_squared_norm(gradients.data(), reinterpret_cast<float*>(squares_.data()), *stream_);
    device_.synchronize(*stream_);
  }
  double squares() const { return as_numbers(Element::float32, squares_.read()).front(); }

 private:
  const TrainingCase& training_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  StreamGroup* group_;
  DeviceMemory loss_;
  DeviceMemory squares_;
};

}  // namespace

TrainingResult run_on_devices(const TrainingCase& training, const Matrices& weights,
                              const std::function<void(Device&)>& inspect) {
  TrainingResult result;
  Board board(training.tensor_parallel);
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < training.tensor_parallel; ++t) {
    threads.emplace_back([&, t] {
      const std::unique_ptr<Device> device = make_test_device();
      device->make_current();
      HostGroup group(board, t, *device);
      DevicePlace place(training, *device, training.tensor_parallel == 1 ? nullptr : &group);
      RankRun<DevicePlace> rank(training, weights, t, place);
      rank.train();
      const std::lock_guard lock(mutex);
      rank.collect(result);
      if (inspect) inspect(*device);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

Matrices rounded(Precision precision, const Matrices& weights) {
  Matrices out;
  for (const auto& [name, matrix] : weights) out[name] = rounded(element_of(precision), matrix);
  return out;
}

}  // namespace sluice::test
