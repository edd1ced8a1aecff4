#include "exec/transport/transport.h"

namespace sluice::exec {
namespace {

void set(Message& message, int peer, std::int64_t id, std::byte* data, std::int64_t bytes) {
  message.peer = peer;
  message.channel = Channel::control;
  message.id = id;
  message.data = data;
  message.bytes = bytes;
}

}  // namespace

void Transport::wait_for_control(Message& message) {
  if (poll(message)) return;
  if (on_control_wait_) on_control_wait_(message.peer);
  wait(message);
  if (on_control_wait_) on_control_wait_(-1);
}

std::vector<std::vector<std::byte>> Transport::gather(std::span<const std::byte> mine) {
  const std::int64_t id = control_messages_;
  control_messages_ += 2;
  std::vector<std::vector<std::byte>> all;
  auto bytes = static_cast<std::int64_t>(mine.size());
  Message message;
  if (rank() != kRoot) {
    set(message, kRoot, id, reinterpret_cast<std::byte*>(&bytes), sizeof bytes);
    post_send(message);
    wait_for_control(message);
    set(message, kRoot, id + 1, const_cast<std::byte*>(mine.data()), bytes);
    post_send(message);
    wait_for_control(message);
    return all;
  }
  all.resize(size());
  all[kRoot].assign(mine.begin(), mine.end());
  for (int peer = 1; peer < size(); ++peer) {
    set(message, peer, id, reinterpret_cast<std::byte*>(&bytes), sizeof bytes);
    post_receive(message);
    wait_for_control(message);
    auto& theirs = all[peer];
    theirs.resize(static_cast<std::size_t>(bytes));
    set(message, peer, id + 1, theirs.data(), bytes);
    post_receive(message);
    wait_for_control(message);
  }
  return all;
}

void Transport::broadcast(std::span<std::byte> bytes) {
  const std::int64_t id = control_messages_++;
  if (rank() != kRoot) {
    Message message;
    set(message, kRoot, id, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    post_receive(message);
    return wait_for_control(message);
  }
  std::vector<Message> messages(static_cast<std::size_t>(size()));
  for (int peer = 1; peer < size(); ++peer) {
    Message& message = messages[peer];
    set(message, peer, id, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    post_send(message);
  }
  for (int peer = 1; peer < size(); ++peer) wait_for_control(messages[peer]);
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
