#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "exec/transport/transport.h"
#include "kernels/collective.h"
#include "model/units.h"

namespace sluice::exec {

// Messages between the workers of an expert group, over any transport.
class ExpertExchange : public ExpertGroup {
 public:
  // `members`: ranks of the transport in the order of the group, including this worker; `group` distinguishes the
  // messages of groups on one channel. At most `most_messages` sends and receives are in flight between two calls of
  // `finish`.
  ExpertExchange(Transport& transport, Channel channel, std::vector<int> members, int group, std::size_t most_messages);

  int size() const override { return static_cast<int>(members_.size()); }
  int rank() const override { return me_; }
  void send(int rank, const std::byte* data, std::int64_t bytes) override;
  void receive(int rank, std::byte* data, std::int64_t bytes) override;
  void finish() override;

  // Makes every exchange, from now on, take this much longer: `finish` begins to wait for messages later.
  void set_latency(Duration latency) { latency_ = latency; }
  // Sets a function that is called with true when `finish` begins to wait for the others and with false when it is
  // done.
  void on_wait(std::function<void(bool)> notify) { notify_ = std::move(notify); }

 private:
  Message& next(int rank, std::byte* data, std::int64_t bytes, std::int64_t& number);

  Transport& transport_;
  Channel channel_;
  std::vector<int> members_;
  int me_ = 0;
  std::int64_t first_id_;
  std::function<void(bool)> notify_;
  Duration latency_{0};
  std::vector<Message> messages_;
  std::size_t in_flight_ = 0;
  std::vector<std::int64_t> sent_;  // number of messages, by member
  std::vector<std::int64_t> received_;
};

}  // namespace sluice::exec
