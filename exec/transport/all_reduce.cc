#include "exec/transport/all_reduce.h"

#include <algorithm>
#include <cstring>

namespace sluice::exec {
namespace {

constexpr std::int64_t kIdsPerGroup = std::int64_t{1} << 20;

}  // namespace

AllReduceGroup::AllReduceGroup(Transport& transport, Channel channel, std::vector<int> members, int group)
    : transport_(transport),
      channel_(channel),
      members_(std::move(members)),
      first_id_(group * kIdsPerGroup),
      staging_(members_.size() > 1 ? kPieceBytes + 64 * members_.size() : 0),
      sends_(members_.size()),
      receives_(members_.size()) {
  me_ = static_cast<int>(std::find(members_.begin(), members_.end(), transport.rank()) - members_.begin());
}

void AllReduceGroup::post(Message& message, int member, bool send, std::byte* data, std::int64_t bytes,
                          std::int64_t id) {
  message.peer = members_[member];
  message.channel = channel_;
  message.id = id;
  message.data = data;
  message.bytes = bytes;
  send ? transport_.post_send(message) : transport_.post_receive(message);
}

template <typename Scalar, typename Combine>
void AllReduceGroup::reduce_piece(Scalar* data, std::int64_t count, Combine combine) {
  const int group = size();
  const auto begin = [&](int member) { return count * member / group; };
  const auto shard = [&](int member) { return begin(member + 1) - begin(member); };
  const auto bytes = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(Scalar)); };
  const auto as_bytes = [](Scalar* at) { return reinterpret_cast<std::byte*>(at); };
  const std::int64_t mine = shard(me_);
  const std::int64_t id = first_id_ + calls_ * 2 % kIdsPerGroup;
  ++calls_;
  const auto others = [&](auto&& visit) {
    for (int member = 0; member < group; ++member) {
      if (member != me_) visit(member, static_cast<std::size_t>(member));
    }
  };
  const auto finish = [&] {
    others([&](int, std::size_t i) { transport_.wait(receives_[i]); });
    others([&](int, std::size_t i) { transport_.wait(sends_[i]); });
  };
  auto* from = reinterpret_cast<Scalar*>(staging_.data());
  others([&](int member, std::size_t i) {
    post(receives_[i], member, false, as_bytes(from + member * mine), bytes(mine), id);
  });
  others([&](int member, std::size_t i) {
    post(sends_[i], member, true, as_bytes(data + begin(member)), bytes(shard(member)), id);
  });
  finish();
  Scalar* own = data + begin(me_);
  const auto part = [&](int member) { return member == me_ ? own : from + member * mine; };
  for (std::int64_t i = 0; i < mine; ++i) {
    Scalar total = part(0)[i];
    for (int member = 1; member < group; ++member) total = combine(total, part(member)[i]);
    own[i] = total;
  }
  others([&](int member, std::size_t i) {
    post(receives_[i], member, false, as_bytes(data + begin(member)), bytes(shard(member)), id + 1);
  });
  others([&](int member, std::size_t i) { post(sends_[i], member, true, as_bytes(own), bytes(mine), id + 1); });
  finish();
}

template <typename Scalar, typename Combine>
void AllReduceGroup::reduce(Scalar* data, std::int64_t count, Combine combine) {
  if (size() == 1) return;
  constexpr auto kPiece = kPieceBytes / static_cast<std::int64_t>(sizeof(Scalar));
  if (notify_) notify_(true);
  for (std::int64_t at = 0; at < count; at += kPiece) reduce_piece(data + at, std::min(kPiece, count - at), combine);
  if (notify_) notify_(false);
}

namespace {
constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kMaximum = [](auto a, auto b) { return std::max(a, b); };
}  // namespace

void AllReduceGroup::all_reduce_sum(float* data, std::int64_t count) { reduce(data, count, kAdd); }
void AllReduceGroup::all_reduce_sum(double* data, std::int64_t count) { reduce(data, count, kAdd); }
void AllReduceGroup::all_reduce_max(float* data, std::int64_t count) { reduce(data, count, kMaximum); }
void AllReduceGroup::all_reduce_max(double* data, std::int64_t count) { reduce(data, count, kMaximum); }

}  // namespace sluice::exec
