#pragma once

#include <atomic>
#include <cstdint>

#include "exec/transport/transport.h"

namespace sluice::test {

// A transport that passes everything on to another one.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Transport& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void post_send(Message& message) override { inner_.post_send(message); }
  void post_receive(Message& message) override { inner_.post_receive(message); }
  bool poll(Message& message) override { return inner_.poll(message); }
  std::uint32_t changes(Channel channel) const override { return inner_.changes(channel); }
  void sleep(Channel channel, std::uint32_t seen) override { inner_.sleep(channel, seen); }
  void wake(Channel channel) override { inner_.wake(channel); }
  bool stopped() const override { return inner_.stopped(); }

 protected:
  void stop_waiting() override { inner_.stop(); }
  void quiesce() override {}

 private:
  Transport& inner_;
};

// Counts the control messages that its worker sends.
class CountingTransport final : public ForwardingTransport {
 public:
  CountingTransport(Transport& inner, std::atomic<int>& count) : ForwardingTransport(inner), count_(count) {}
  void post_send(Message& message) override {
    if (message.channel == Channel::control) ++count_;
    ForwardingTransport::post_send(message);
  }

 private:
  std::atomic<int>& count_;
};

}  // namespace sluice::test
