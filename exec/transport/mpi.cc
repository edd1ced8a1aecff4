#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "exec/steady_clock.h"
#include "exec/transport/transport.h"

namespace sluice::exec {
namespace {

// MPI counts in int: a message above this is one element of a type of its size.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
constexpr std::size_t kRequestBytes = sizeof(MPI_Request);  // an integer or a pointer, depending on the library

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(fmt::format("{}: {}", what, std::string(text.data(), static_cast<std::size_t>(length))));
}

// The type and count of a message.
class MessageType {
 public:
  explicit MessageType(std::int64_t bytes) {
    if (bytes <= kMostBytes) {
      count_ = static_cast<int>(bytes);
      return;
    }
    constexpr std::int64_t kPiece = 1 << 20;
    MPI_Datatype piece = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(kPiece), MPI_BYTE, &piece), "MPI_Type_contiguous");
    const std::array<int, 2> counts = {static_cast<int>(bytes / kPiece), static_cast<int>(bytes % kPiece)};
    const std::array<MPI_Aint, 2> places = {0, static_cast<MPI_Aint>(bytes / kPiece * kPiece)};
    const std::array<MPI_Datatype, 2> types = {piece, MPI_BYTE};
    check_mpi(MPI_Type_create_struct(2, counts.data(), places.data(), types.data(), &type_), "MPI_Type_create_struct");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
    MPI_Type_free(&piece);
  }
  // A message that has been posted keeps its type.
  ~MessageType() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  MessageType(const MessageType&) = delete;
  MessageType& operator=(const MessageType&) = delete;
  MPI_Datatype type() const { return type_; }
  int count() const { return count_; }

 private:
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 1;
};

class MpiTransport final : public ProcessTransport {
 public:
  MpiTransport() {
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    for (MPI_Comm& comm : comms_) {
      check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
      MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    int* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found);
    if (found != 0) tag_bound_ = *bound;
  }
  ~MpiTransport() override {
    // After a stop other ranks may have exited; freeing would wait for them.
    if (stopped()) return;
    for (MPI_Comm& comm : comms_) MPI_Comm_free(&comm);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void post_send(Message& message) override { post(message, true); }
  void post_receive(Message& message) override { post(message, false); }

  bool poll(Message& message) override {
    if (message.done.load(std::memory_order_acquire)) return true;
    throw_if_stopped();
    MPI_Request request = request_of(message);
    int done = 0;
    {
      const std::lock_guard lock(mutex_);
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    }
    keep(message, request);
    if (done != 0) finish(message);
    return done != 0;
  }

  void sleep(Channel channel, std::uint32_t seen) override {
    // Another thread of this process wakes by the count; messages can only be polled.
    if (channel == Channel::collective && idle_collectives_.load()) {
      wait_for_change(channel, seen);
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static MPI_Request request_of(const Message& message) {
    MPI_Request request;
    static_assert(kRequestBytes <= sizeof message.native);
    std::memcpy(&request, message.native, kRequestBytes);
    return request;
  }
  static void keep(Message& message, MPI_Request request) { std::memcpy(message.native, &request, kRequestBytes); }

  void finish(Message& message) {
    message.done_ns = now_ns();
    if (message.channel == Channel::collective) count_collective(-1);
    message.done.store(true, std::memory_order_release);
  }

  void count_collective(int by) {
    collectives_under_way_ += by;
    idle_collectives_.store(collectives_under_way_ == 0);
  }

  void post(Message& message, bool sends) {
    message.done.store(false, std::memory_order_relaxed);
    if (message.channel == Channel::collective) count_collective(1);
    MPI_Comm comm = comms_[static_cast<std::size_t>(message.channel)];
    const int tag = static_cast<int>(message.id % (std::int64_t{tag_bound_} + 1));
    MPI_Request request = MPI_REQUEST_NULL;
    const std::lock_guard lock(mutex_);
    const MessageType as(message.bytes);
    if (sends) {
      // Synchronous: as with all transports, a send is done when it has been received.
      check_mpi(MPI_Issend(message.data, as.count(), as.type(), message.peer, tag, comm, &request), "MPI_Issend");
    } else {
      check_mpi(MPI_Irecv(message.data, as.count(), as.type(), message.peer, tag, comm, &request), "MPI_Irecv");
    }
    keep(message, request);  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): poll completes it
  }

  int rank_ = 0;
  int size_ = 1;
  int tag_bound_ = 32767;
  std::array<MPI_Comm, kNumChannels> comms_{};
  std::mutex mutex_;
  int collectives_under_way_ = 0;  // used by the thread of the collective channel only
  std::atomic<bool> idle_collectives_{true};
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport() { return std::make_unique<MpiTransport>(); }

}  // namespace sluice::exec
