#include "exec/transport/tcp.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "exec/steady_clock.h"

namespace sluice::exec {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kHandshakePatience{2000};  // for a process that listens where a rank is expected
constexpr int kLookMs = 5;                        // between two looks at whether the run has been stopped

std::string text_of(int error) { return std::generic_category().message(error); }

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

void set_option(const Socket& socket, int level, int option, int value) {
  ::setsockopt(socket.get(), level, option, &value, sizeof value);
}

// A host's address, IPv4 as ::ffff:a.b.c.d.
struct Address {
  std::array<unsigned char, 16> bytes{};
  std::uint16_t port = 0;

  bool is_v4() const {
    return std::all_of(bytes.begin(), bytes.begin() + 10, [](auto byte) { return byte == 0; }) && bytes[10] == 0xff;
  }
  bool is_loopback() const {
    return is_v4() ? bytes[12] == 127
                   : bytes == std::array<unsigned char, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  }
  bool is_unknown() const { return bytes == std::array<unsigned char, 16>{}; }
};

Address address_of(const sockaddr* from) {
  Address out;
  if (from->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, from, sizeof v4);
    out.bytes[10] = out.bytes[11] = 0xff;
    std::memcpy(out.bytes.data() + 12, &v4.sin_addr, 4);
    out.port = ntohs(v4.sin_port);
  } else {
    sockaddr_in6 v6{};
    std::memcpy(&v6, from, sizeof v6);
    std::memcpy(out.bytes.data(), &v6.sin6_addr, 16);
    out.port = ntohs(v6.sin6_port);
  }
  return out;
}

// What rank 0 tells all ranks: where it listens, and what distinguishes its run from others.
struct Root {
  std::array<std::uint64_t, 2> token{};
  std::uint16_t port = 0;
  std::uint16_t count = 0;
  std::array<Address, 16> addresses;
};

// The first words of a rank on a new connection. Rank 0, which has several addresses, answers with the same.
struct Hello {
  std::array<std::uint64_t, 2> token{};
  std::int32_t rank = 0;
  std::int32_t port = 0;
};

// The addresses of this host, those of networks first.
std::vector<Address> own_addresses() {
  std::vector<Address> out;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
      const int family = each->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      const Address address = address_of(each->ifa_addr);
      const bool of_link = !address.is_v4() && address.bytes[0] == 0xfe;  // needs the number of an interface
      if (!of_link) out.push_back(address);
    }
    ::freeifaddrs(list);
  }
  std::stable_sort(out.begin(), out.end(), [](const Address& a, const Address& b) {
    return std::pair(a.is_loopback(), !a.is_v4()) < std::pair(b.is_loopback(), !b.is_v4());
  });
  return out;
}

// Waits until a socket is readable or writable. Returns whether it is before the deadline.
bool wait_for(const Socket& socket, short events, steady_clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd each{.fd = socket.get(), .events = events, .revents = 0};
    const int ready = ::poll(&each, 1, static_cast<int>(std::min<std::int64_t>(left, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Move all bytes before the deadline; return false if the other end has closed, or the time is over.
bool write_all(const Socket& socket, std::span<const std::byte> bytes, steady_clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t moved = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
    } else if (errno != EINTR && (errno != EAGAIN || !wait_for(socket, POLLOUT, deadline))) {
      return false;
    }
  }
  return true;
}
bool read_all(const Socket& socket, std::span<std::byte> bytes, steady_clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t moved = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (moved == 0) return false;
    if (moved > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
    } else if (errno != EINTR && (errno != EAGAIN || !wait_for(socket, POLLIN, deadline))) {
      return false;
    }
  }
  return true;
}
template <typename Value>
std::span<std::byte> bytes_of(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Socket connected(const Address& to, steady_clock::time_point deadline) {
  const bool v4 = to.is_v4();
  Socket socket(::socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  sockaddr_in at4{};
  sockaddr_in6 at6{};
  at4.sin_family = AF_INET;
  at4.sin_port = at6.sin6_port = htons(to.port);
  std::memcpy(&at4.sin_addr, to.bytes.data() + 12, 4);
  at6.sin6_family = AF_INET6;
  std::memcpy(&at6.sin6_addr, to.bytes.data(), 16);
  const auto* const at = v4 ? reinterpret_cast<const sockaddr*>(&at4) : reinterpret_cast<const sockaddr*>(&at6);
  int error = ::connect(socket.get(), at, v4 ? sizeof at4 : sizeof at6) == 0 ? 0 : errno;
  if (error == EINPROGRESS && wait_for(socket, POLLOUT, deadline)) {
    socklen_t size = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  return error == 0 ? std::move(socket) : Socket();
}

// Listens on all addresses of the host, on a port that the kernel chooses.
Socket listening(std::uint16_t& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    if (family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* const at = reinterpret_cast<sockaddr*>(&any);
    if (::bind(socket.get(), at, size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) continue;
    if (::getsockname(socket.get(), at, &size) != 0) continue;
    port = address_of(at).port;
    return socket;
  }
  throw std::runtime_error(fmt::format("control messages: no TCP port can be opened: {}", text_of(errno)));
}

// Rank 0 has a connection to each rank: more than the usual limit of open files allows in large runs.
void allow_files(int count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(count)) return;
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(count));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Messages between two ranks have the order in which they are posted, at both ends.
struct Link {
  struct Header {
    std::int64_t id = 0;
    std::int64_t bytes = 0;
  };
  // The messages in one direction that are not done. Of the first, header and then data have moved.
  struct Lane {
    std::deque<Message*> posted;
    Header header;
    std::int64_t moved = 0;
  };
  Socket socket;
  Lane out;
  Lane in;
};

class TcpTransport final : public ProcessTransport {
 public:
  TcpTransport(int rank, int size, const Broadcast& broadcast, milliseconds patience)
      : rank_(rank), size_(size), patience_(patience), links_(static_cast<std::size_t>(size)) {
    listener_ = listening(port_);
    addresses_.resize(links_.size());
    Root root;
    if (rank == kRoot) {
      std::random_device random;
      for (auto& word : root.token) word = (std::uint64_t{random()} << 32U) | random();
      const std::vector<Address> own = own_addresses();
      root.port = port_;
      root.count = static_cast<std::uint16_t>(std::min(own.size(), root.addresses.size()));
      std::copy_n(own.begin(), root.count, root.addresses.begin());
      allow_files(size + 256);
    }
    broadcast(bytes_of(root));
    token_ = root.token;
    const auto deadline = steady_clock::now() + patience;
    rank == kRoot ? welcome_all(deadline) : reach_root(root, deadline);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void post_send(Message& message) override { post(message, true); }
  void post_receive(Message& message) override { post(message, false); }

  bool poll(Message& message) override {
    if (message.done.load(std::memory_order_acquire)) return true;
    throw_if_stopped();
    if (waits_for_connection()) accept_one(steady_clock::now());
    for (int peer = 0; peer < size_; ++peer) {
      Link& link = link_of(peer);
      if (!link.socket) continue;
      while (!link.out.posted.empty() && write(link, peer)) finish(link.out);
      while (!link.in.posted.empty() && read(link, peer)) finish(link.in);
    }
    return message.done.load(std::memory_order_acquire);
  }

  void sleep(Channel channel, std::uint32_t seen) override {
    if (channel != Channel::control) return wait_for_change(channel, seen);
    std::vector<pollfd> all;
    for (const Link& link : links_) {
      const auto events = (link.in.posted.empty() ? 0 : POLLIN) | (link.out.posted.empty() ? 0 : POLLOUT);
      if (link.socket && events != 0) all.push_back({link.socket.get(), static_cast<short>(events), 0});
    }
    if (waits_for_connection()) all.push_back({listener_.get(), POLLIN, 0});
    ::poll(all.data(), all.size(), kLookMs);
  }

 private:
  Link& link_of(int rank) { return links_[static_cast<std::size_t>(rank)]; }

  void hold(int peer, Socket socket) {
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    // A host that is gone is noticed after a minute.
    set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
    link_of(peer).socket = std::move(socket);
  }

  // Accepts a connection of a rank of this run, if there is one. Returns the rank, or -1; others are closed.
  int accept_one(steady_clock::time_point until) {
    if (until > steady_clock::now() && !wait_for(listener_, POLLIN, until)) return -1;
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    Socket socket(
        ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return -1;
    const auto deadline = steady_clock::now() + kHandshakePatience;
    Hello hello;
    if (!read_all(socket, bytes_of(hello), deadline) || hello.token != token_) return -1;
    if (hello.rank < 0 || hello.rank >= size_ || link_of(hello.rank).socket) return -1;
    Hello answer{.token = token_, .rank = rank_};
    if (rank_ == kRoot && !write_all(socket, bytes_of(answer), deadline)) return -1;
    Address& at = addresses_[static_cast<std::size_t>(hello.rank)];
    at = address_of(reinterpret_cast<const sockaddr*>(&from));
    at.port = static_cast<std::uint16_t>(hello.port);
    hold(hello.rank, std::move(socket));
    return hello.rank;
  }

  // Connects to a rank that listens at an address. Returns whether it is that rank of this run.
  bool reach(int peer, const Address& at, steady_clock::time_point deadline) {
    Socket socket = connected(at, deadline);
    Hello hello{.token = token_, .rank = rank_, .port = port_};
    if (!socket || !write_all(socket, bytes_of(hello), deadline)) return false;
    Hello answer;
    if (peer == kRoot && (!read_all(socket, bytes_of(answer), deadline) || answer.token != token_)) return false;
    hold(peer, std::move(socket));
    return true;
  }

  void reach_root(const Root& root, steady_clock::time_point deadline) {
    Address reached;
    for (int attempt = 0; !link_of(kRoot).socket; ++attempt) {
      if (steady_clock::now() > deadline) throw std::runtime_error(not_reached(kRoot));
      for (std::size_t i = 0; i < root.count && !link_of(kRoot).socket; ++i) {
        reached = root.addresses[i];
        reached.port = root.port;
        reach(kRoot, reached, std::min(deadline, steady_clock::now() + kHandshakePatience));
      }
      if (!link_of(kRoot).socket) std::this_thread::sleep_for(milliseconds(10));
    }
    if (!read_all(link_of(kRoot).socket, std::as_writable_bytes(std::span(addresses_)), deadline)) {
      throw std::runtime_error(not_reached(kRoot));
    }
    // On the host of rank 0.
    for (Address& each : addresses_) {
      if (each.is_loopback() || each.is_unknown()) each.bytes = reached.bytes;
    }
  }

  void welcome_all(steady_clock::time_point deadline) {
    for (int left = size_ - 1; left > 0;) {
      if (accept_one(deadline) >= 0) --left;
      if (left > 0 && steady_clock::now() > deadline) {
        const auto missing =
            std::find_if(links_.begin() + 1, links_.end(), [](const Link& link) { return !link.socket; });
        throw std::runtime_error(not_reached(static_cast<int>(missing - links_.begin())));
      }
    }
    for (int peer = 1; peer < size_; ++peer) {
      if (!write_all(link_of(peer).socket, std::as_bytes(std::span(addresses_)), deadline)) {
        throw std::runtime_error(not_reached(peer));
      }
    }
  }

  std::string not_reached(int peer) const {
    return fmt::format(
        "control messages: rank {} has waited {} s for rank {}: its process has not arrived, or its host "
        "cannot be reached over TCP",
        rank_, std::chrono::duration_cast<std::chrono::duration<double>>(patience_).count(), peer);
  }

  void post(Message& message, bool sends) {
    if (message.channel != Channel::control) throw std::logic_error("TCP carries only control messages");
    message.done.store(false, std::memory_order_relaxed);
    Link& link = link_of(message.peer);
    // Of two ranks the higher one connects.
    if (!link.socket && rank_ > message.peer &&
        !reach(message.peer, addresses_[static_cast<std::size_t>(message.peer)], steady_clock::now() + patience_)) {
      throw std::runtime_error(not_reached(message.peer));
    }
    Link::Lane& lane = sends ? link.out : link.in;
    if (sends && lane.posted.empty()) lane.header = {message.id, message.bytes};
    lane.posted.push_back(&message);
  }

  bool waits_for_connection() const {
    return std::any_of(links_.begin(), links_.end(), [](const Link& link) {
      return !link.socket && !(link.in.posted.empty() && link.out.posted.empty());
    });
  }

  // Moves bytes of the first message of a lane. Returns whether it is complete.
  template <typename Move>
  bool move(Link::Lane& lane, int peer, const char* direction, const Move& move_some) {
    constexpr std::int64_t kHeader = sizeof(Link::Header);
    Message& message = *lane.posted.front();
    while (lane.moved < kHeader + message.bytes) {
      const bool header = lane.moved < kHeader;
      std::byte* const from = header ? bytes_of(lane.header).data() + lane.moved : message.data + lane.moved - kHeader;
      const ssize_t moved =
          move_some(from, static_cast<std::size_t>((header ? kHeader : kHeader + message.bytes) - lane.moved));
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EAGAIN) return false;
      if (moved <= 0) {
        throw std::runtime_error(fmt::format("control message {} rank {}: its process has ended ({})", direction, peer,
                                             moved == 0 ? "the connection is closed" : text_of(errno)));
      }
      lane.moved += moved;
      if (lane.moved == kHeader && (lane.header.id != message.id || lane.header.bytes != message.bytes)) {
        throw std::logic_error(fmt::format("control message {} rank {}: {} of {} bytes instead of {} of {}", direction,
                                           peer, lane.header.id, lane.header.bytes, message.id, message.bytes));
      }
    }
    return true;
  }
  bool write(Link& link, int peer) {
    return move(link.out, peer, "to", [&](const std::byte* from, std::size_t bytes) {
      return ::send(link.socket.get(), from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
  }
  bool read(Link& link, int peer) {
    return move(link.in, peer, "from",
                [&](std::byte* to, std::size_t bytes) { return ::recv(link.socket.get(), to, bytes, MSG_DONTWAIT); });
  }

  static void finish(Link::Lane& lane) {
    Message& message = *lane.posted.front();
    lane.posted.pop_front();
    lane.moved = 0;
    if (!lane.posted.empty()) lane.header = {lane.posted.front()->id, lane.posted.front()->bytes};
    message.done_ns = now_ns();
    message.done.store(true, std::memory_order_release);
  }

  int rank_;
  int size_;
  milliseconds patience_;
  std::vector<Link> links_;         // by rank
  std::vector<Address> addresses_;  // where the ranks listen
  std::array<std::uint64_t, 2> token_{};
  std::uint16_t port_ = 0;
  Socket listener_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(int rank, int size, const Broadcast& broadcast, milliseconds patience) {
  return std::make_unique<TcpTransport>(rank, size, broadcast, patience);
}

}  // namespace sluice::exec
