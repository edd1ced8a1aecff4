#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "exec/transport/transport.h"
#include "kernels/collective.h"

namespace sluice::exec {

// Sums over a group of workers, in the order of the group: all get the same bits, over any transport. An array goes in
// pieces; each member sums its share of a piece and hands it to the others, so that 2 (g-1)/g of the bytes move.
class GroupSum : public TensorGroup {
 public:
  // `members` are ranks of the transport, in the order of the sum; this worker is one of them. Calls of one group on
  // one channel must not overlap those of another group that shares two members, unless `group` tells them apart.
  GroupSum(Transport& transport, Channel channel, std::vector<int> members, int group);

  int size() const override { return static_cast<int>(members_.size()); }
  int rank() const override { return me_; }
  void all_reduce_sum(float* data, std::int64_t count) override;
  void all_reduce_sum(double* data, std::int64_t count) override;
  void all_reduce_max(float* data, std::int64_t count) override;
  void all_reduce_max(double* data, std::int64_t count) override;

  // Calls `tell` with true when a sum begins to wait for the others, and with false when it is done.
  void tell_of_calls(std::function<void(bool)> tell) { tell_ = std::move(tell); }

  static constexpr std::int64_t kPieceBytes = 1 << 18;

 private:
  template <typename Scalar, typename Combine>
  void reduce(Scalar* data, std::int64_t count, Combine combine);
  template <typename Scalar, typename Combine>
  void reduce_piece(Scalar* data, std::int64_t count, Combine combine);
  void post(Message& message, int member, bool send, std::byte* data, std::int64_t bytes, std::int64_t id);

  Transport& transport_;
  Channel channel_;
  std::vector<int> members_;
  int me_ = 0;
  std::int64_t first_id_;
  std::int64_t calls_ = 0;
  std::function<void(bool)> tell_;
  std::vector<std::byte> staging_;  // a share of a piece from each member
  std::vector<Message> sends_;
  std::vector<Message> receives_;
};

}  // namespace sluice::exec
