#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "exec/transport/transport.h"
#include "kernels/collective.h"

namespace sluice::exec {

// All-reduce over a group of workers. Reduces in the order of the group, so that all members get the same bits over any
// transport. Arrays are reduced in pieces: each member reduces its shard of a piece and sends it to the others
// (reduce-scatter, all-gather), so that 2 (g-1)/g of the bytes move.
class AllReduceGroup : public TensorGroup {
 public:
  // `members`: ranks of the transport in the order of the reduction, including this worker. Calls of two groups on one
  // channel that share two members must not overlap, unless their `group` numbers differ.
  AllReduceGroup(Transport& transport, Channel channel, std::vector<int> members, int group);

  int size() const override { return static_cast<int>(members_.size()); }
  int rank() const override { return me_; }
  void all_reduce_sum(float* data, std::int64_t count) override;
  void all_reduce_sum(double* data, std::int64_t count) override;
  void all_reduce_max(float* data, std::int64_t count) override;
  void all_reduce_max(double* data, std::int64_t count) override;

  // Sets a function that is called with true when a reduction begins to wait for the others and with false when it is
  // done.
  void on_wait(std::function<void(bool)> notify) { notify_ = std::move(notify); }

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
  std::function<void(bool)> notify_;
  std::vector<std::byte> staging_;  // a shard of a piece from each member
  std::vector<Message> sends_;
  std::vector<Message> receives_;
};

}  // namespace sluice::exec
