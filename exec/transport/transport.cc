#include "exec/transport/transport.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <utility>

namespace sluice::exec {
namespace {

void set(Message& message, int peer, std::int64_t id, std::byte* data, std::int64_t bytes) {
  message.peer = peer;
  message.channel = Channel::control;
  message.id = id;
  message.data = data;
  message.bytes = bytes;
}

// Collectives go along a binomial tree: the parent of a rank is the rank without its lowest bit, so that below a rank
// are the ranks up to the next with such a bit. Returns their number with the rank itself, among `size` ranks; 0 ranks:
// without this limit.
int tree_span(int rank, int size) {
  const int lowest = rank & -rank;
  if (size == 0) return lowest;
  return lowest == 0 ? size : std::min(lowest, size - rank);
}

// The bytes of ranks, in order, each after their number.
void pack(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  const auto count = static_cast<std::int64_t>(bytes.size());
  const auto number = std::as_bytes(std::span(&count, 1));
  out.insert(out.end(), number.begin(), number.end());
  out.insert(out.end(), bytes.begin(), bytes.end());
}
std::vector<std::vector<std::byte>> unpacked(std::span<const std::byte> packed, int ranks) {
  std::vector<std::vector<std::byte>> out;
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t count = 0;
    std::memcpy(&count, packed.data(), sizeof count);
    const auto bytes = packed.subspan(sizeof count, static_cast<std::size_t>(count));
    out.emplace_back(bytes.begin(), bytes.end());
    packed = packed.subspan(sizeof count + bytes.size());
  }
  return out;
}

}  // namespace

void Transport::stop() {
  stop_waiting();
  const std::lock_guard lock(ending_);
  if (end_elsewhere_) end_elsewhere_();
}

void Transport::on_stop(std::function<void()> end) {
  const std::lock_guard lock(ending_);
  end_elsewhere_ = std::move(end);
}

void Transport::wait_for_control(Message& message) {
  if (poll(message)) return;
  if (on_control_wait_) on_control_wait_(message.peer);
  wait(message);
  if (on_control_wait_) on_control_wait_(-1);
}

std::vector<std::vector<std::byte>> Transport::gather(std::span<const std::byte> mine) {
  const std::int64_t id = control_messages_;
  control_messages_ += 2;
  std::vector<std::byte> packed;
  pack(packed, mine);
  std::int64_t bytes = 0;
  Message message;
  for (int span = 1; span < tree_span(rank(), size()); span *= 2) {
    const int peer = rank() + span;
    set(message, peer, id, reinterpret_cast<std::byte*>(&bytes), sizeof bytes);
    post_receive(message);
    wait_for_control(message);
    const std::size_t before = packed.size();
    packed.resize(before + static_cast<std::size_t>(bytes));
    set(message, peer, id + 1, packed.data() + before, bytes);
    post_receive(message);
    wait_for_control(message);
  }
  if (rank() == kRoot) return unpacked(packed, size());
  const int parent = rank() - tree_span(rank(), 0);
  bytes = std::ssize(packed);
  set(message, parent, id, reinterpret_cast<std::byte*>(&bytes), sizeof bytes);
  post_send(message);
  wait_for_control(message);
  set(message, parent, id + 1, packed.data(), bytes);
  post_send(message);
  wait_for_control(message);
  return {};
}

void Transport::broadcast(std::span<std::byte> bytes) {
  const std::int64_t id = control_messages_++;
  const auto count = static_cast<std::int64_t>(bytes.size());
  if (rank() != kRoot) {
    Message message;
    set(message, rank() - tree_span(rank(), 0), id, bytes.data(), count);
    post_receive(message);
    wait_for_control(message);
  }
  std::deque<Message> messages;
  for (int span = std::bit_floor(unsigned(tree_span(rank(), size()) - 1)); span > 0; span /= 2) {
    set(messages.emplace_back(), rank() + span, id, bytes.data(), count);
    post_send(messages.back());
  }
  for (Message& message : messages) wait_for_control(message);
}

void Transport::send(int peer, std::span<const std::byte> bytes) {
  Message message;
  set(message, peer, control_messages_, const_cast<std::byte*>(bytes.data()), std::ssize(bytes));
  post_send(message);
  wait_for_control(message);
}

void Transport::receive(int peer, std::span<std::byte> bytes) {
  Message message;
  set(message, peer, control_messages_, bytes.data(), std::ssize(bytes));
  post_receive(message);
  wait_for_control(message);
}

void Transport::barrier() {
  gather({});
  std::byte nothing{};
  broadcast({&nothing, 1});
}

}  // namespace sluice::exec
