#include "exec/transport/expert_exchange.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "exec/steady_clock.h"

namespace sluice::exec {
namespace {

constexpr std::int64_t kIdsPerExchange = std::int64_t{1} << 20;

}  // namespace

ExpertExchange::ExpertExchange(Transport& transport, Channel channel, std::vector<int> members, int group,
                               std::size_t most_messages)
    : transport_(transport),
      channel_(channel),
      members_(std::move(members)),
      first_id_(group * kIdsPerExchange),
      messages_(most_messages),
      sent_(members_.size(), 0),
      received_(members_.size(), 0) {
  me_ = static_cast<int>(std::find(members_.begin(), members_.end(), transport.rank()) - members_.begin());
}

Message& ExpertExchange::next(int rank, std::byte* data, std::int64_t bytes, std::int64_t& number) {
  if (in_flight_ == messages_.size()) throw std::logic_error("too many messages between the ranks of an expert group");
  Message& message = messages_[in_flight_++];
  message.peer = members_[rank];
  message.channel = channel_;
  message.id = first_id_ + number++ % kIdsPerExchange;
  message.data = data;
  message.bytes = bytes;
  return message;
}

void ExpertExchange::send(int rank, const std::byte* data, std::int64_t bytes) {
  transport_.post_send(next(rank, const_cast<std::byte*>(data), bytes, sent_[rank]));
}

void ExpertExchange::receive(int rank, std::byte* data, std::int64_t bytes) {
  transport_.post_receive(next(rank, data, bytes, received_[rank]));
}

void ExpertExchange::finish() {
  if (notify_) notify_(true);
  const std::int64_t until = now_ns() + latency_.count();
  while (latency_.count() > 0 && now_ns() < until && !transport_.stopped()) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<std::int64_t>(until - now_ns(), 1'000'000)));
  }
  for (std::size_t i = 0; i < in_flight_; ++i) transport_.wait(messages_[i]);
  in_flight_ = 0;
  if (notify_) notify_(false);
}

}  // namespace sluice::exec
