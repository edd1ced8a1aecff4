#include "exec/measure/link_bench.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>
#include <utility>

#include "exec/steady_clock.h"
#include "exec/transport/all_reduce.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/expert_exchange.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr int kTensorGroup = 1;
constexpr int kBenchExpertGroup = 2;
constexpr int kFirstAllReduceGroup = 16;
// Time that a receiver has waited when its message is sent: long enough to be asleep, as in a run.
constexpr std::int64_t kWaitBeforeMessage_ns = 100'000;
constexpr int kMessages = 4;  // round trips per size

std::vector<int> block(int rank, int size) {
  std::vector<int> members(to_size(size));
  std::iota(members.begin(), members.end(), rank / size * size);
  return members;
}

class HostLinkBench final : public LinkBench {
 public:
  HostLinkBench(const LinkBenchSpec& spec, Transport& transport)
      : transport_(transport), array_(to_size(spec.most_bytes)) {
    const int me = transport.rank();
    if (spec.tensor_parallel > 1) {
      tensor_ =
          std::make_unique<AllReduceGroup>(transport, Channel::tensor, block(me, spec.tensor_parallel), kTensorGroup);
    }
    if (spec.expert_parallel > 1) {
      experts_ = std::make_unique<ExpertExchange>(transport, Channel::tensor, block(me, spec.expert_parallel),
                                                  kBenchExpertGroup, 2 * to_size(spec.experts));
    }
    for (const int size : spec.group_sizes) {
      groups_.push_back(std::make_unique<AllReduceGroup>(transport, Channel::collective, block(me, size),
                                                         kFirstAllReduceGroup + static_cast<int>(groups_.size())));
    }
  }

  // A round trip is measured by one clock.
  std::vector<double> time_messages(std::int64_t bytes) override {
    std::vector<double> seconds;
    const int me = transport_.rank();
    const int peer = me ^ 1;
    if (peer >= transport_.size()) return seconds;
    for (int repeat = 0; repeat < kMessages; ++repeat) {
      const std::int64_t id = messages_++;
      Message there;
      Message back;
      there.data = back.data = array_.data();
      there.bytes = back.bytes = bytes;
      there.peer = back.peer = peer;
      there.id = 2 * id;
      back.id = 2 * id + 1;
      if (me < peer) {
        transport_.post_receive(back);
        spin(kWaitBeforeMessage_ns);
        const std::int64_t began = now_ns();
        transport_.post_send(there);
        transport_.wait(back);
        seconds.push_back(in_seconds(now_ns() - began - kWaitBeforeMessage_ns) / 2);
        transport_.wait(there);
      } else {
        transport_.post_receive(there);
        transport_.wait(there);
        spin(kWaitBeforeMessage_ns);
        transport_.post_send(back);
        transport_.wait(back);
      }
    }
    return seconds;
  }

  double time_sum(int ranks, std::int64_t bytes) override {
    std::fill_n(array_.begin(), bytes, std::byte{0});
    const auto group =
        std::find_if(groups_.begin(), groups_.end(), [&](const auto& each) { return each->size() == ranks; });
    transport_.barrier();
    const std::int64_t began = now_ns();
    (*group)->all_reduce_sum(reinterpret_cast<float*>(array_.data()), bytes / 4);
    return in_seconds(now_ns() - began);
  }
  OpGroups groups() override { return {.tensor = tensor_.get(), .experts = experts_.get()}; }

 private:
  static void spin(std::int64_t nanoseconds) {
    const std::int64_t until = now_ns() + nanoseconds;
    while (now_ns() < until) {
    }
  }

  Transport& transport_;
  std::unique_ptr<AllReduceGroup> tensor_;
  std::unique_ptr<ExpertExchange> experts_;
  std::vector<std::unique_ptr<AllReduceGroup>> groups_;
  std::vector<std::byte> array_;
  std::int64_t messages_ = 0;
};

class DeviceLinkBench final : public LinkBench {
 public:
  DeviceLinkBench(const LinkBenchSpec& spec, Transport& transport, const WorkerDevice& device)
      : transport_(transport), device_(*device.device), sizes_(spec.group_sizes) {
    DeviceLinks links;
    for (int rank = 0; rank + 1 < transport.size(); rank += 2) {
      links.edges.emplace_back(rank, rank + 1);
      links.edges.emplace_back(rank + 1, rank);
    }
    const auto add_blocks = [&](int size) {
      for (int rank = 0; rank < transport.size(); rank += size) links.groups.push_back(block(rank, size));
    };
    if (spec.tensor_parallel > 1) {
      tensor_ = static_cast<std::ptrdiff_t>(links.groups.size()) + transport.rank() / spec.tensor_parallel;
      add_blocks(spec.tensor_parallel);
    }
    if (spec.expert_parallel > 1) {
      const std::size_t first = links.groups.size();
      experts_ = static_cast<std::ptrdiff_t>(first) + transport.rank() / spec.expert_parallel;
      add_blocks(spec.expert_parallel);
      for (std::size_t group = first; group < links.groups.size(); ++group) links.exchanges.push_back(group);
    }
    for (const int size : sizes_) {
      first_of_size_.push_back(links.groups.size());
      add_blocks(size);
    }
    device_.make_current();
    connection_ = device.transport->connect(links, device_);
    stream_ = device_.make_stream(StreamPriority::high);
    for (auto& event : events_) event = device_.make_event();
    array_ = device_.allocate(std::max<std::int64_t>(spec.most_bytes, 64));
  }
  ~DeviceLinkBench() override {
    device_.settle(*stream_);
    connection_.reset();
    device_.release(array_);
  }

  // Half a round trip, from the time when the data of the sender are complete, by the clock of one device.
  std::vector<double> time_messages(std::int64_t bytes) override {
    std::vector<double> seconds;
    const int me = transport_.rank();
    if ((me ^ 1) >= transport_.size()) return seconds;
    const std::size_t out = to_size(me / 2 * 2 + me % 2);  // edges of a pair: forth, back
    const std::size_t in = to_size(me / 2 * 2 + 1 - me % 2);
    for (int repeat = 0; repeat < kMessages; ++repeat) {
      DeviceMessage send{.data = array_, .bytes = bytes, .edge = out, .id = 2 * messages_ + me % 2};
      DeviceMessage receive{.data = array_, .bytes = bytes, .edge = in, .id = 2 * messages_ + 1 - me % 2};
      ++messages_;
      send.started = events_[0].get();
      send.done = events_[1].get();
      receive.started = events_[2].get();
      receive.done = events_[3].get();
      connection_->receive(receive);
      if (me % 2 == 0) {
        device_.record(*events_[4], *stream_);
        send.ready = events_[4].get();
        connection_->send(send);
        finish(receive);
        seconds.push_back(in_seconds(device_.nanoseconds_between(*events_[4], *receive.done)) / 2);
      } else {
        wait_for(receive);
        send.ready = receive.done;
        connection_->send(send);
        finish(receive);
      }
      finish(send);
    }
    return seconds;
  }

  double time_sum(int ranks, std::int64_t bytes) override {
    const auto size = to_size(std::find(sizes_.begin(), sizes_.end(), ranks) - sizes_.begin());
    StreamGroup* const group = connection_->group(first_of_size_[size] + to_size(transport_.rank() / ranks));
    transport_.barrier();
    device_.record(*events_[0], *stream_);
    group->all_reduce_sum(array_, bytes / 4, Element::float32, *stream_);
    device_.record(*events_[1], *stream_);
    device_.synchronize(*events_[1]);
    return in_seconds(device_.nanoseconds_between(*events_[0], *events_[1]));
  }
  OpGroups groups() override {
    const auto group = [&](std::ptrdiff_t at) { return at < 0 ? nullptr : connection_->group(to_size(at)); };
    return {.stream_tensor = group(tensor_), .stream_experts = group(experts_)};
  }

 private:
  void wait_for(DeviceMessage& message) {
    while (!message.placed.load(std::memory_order_acquire)) {
      connection_->progress();
      std::this_thread::yield();
    }
  }
  void finish(DeviceMessage& message) {
    wait_for(message);
    device_.synchronize(*message.done);
  }

  Transport& transport_;
  Device& device_;
  std::vector<int> sizes_;
  std::vector<std::size_t> first_of_size_;
  std::ptrdiff_t tensor_ = -1;
  std::ptrdiff_t experts_ = -1;
  std::unique_ptr<DeviceConnection> connection_;
  std::unique_ptr<Stream> stream_;
  std::array<std::unique_ptr<Event>, 5> events_;
  std::byte* array_ = nullptr;
  std::int64_t messages_ = 0;
};

}  // namespace

std::unique_ptr<LinkBench> make_link_bench(const LinkBenchSpec& spec, Transport& transport,
                                           const WorkerDevice& device) {
  if (device.device != nullptr) return std::make_unique<DeviceLinkBench>(spec, transport, device);
  return std::make_unique<HostLinkBench>(spec, transport);
}

}  // namespace sluice::exec
