#include "exec/transport/in_process.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "model/to_size.h"

namespace sluice::exec {
namespace {

// Sends of an edge that the receiver has not matched.
struct DeviceMailbox {
  std::mutex mutex;
  std::vector<DeviceMessage*> sends;
};

// Barrier of the members of a group, used repeatedly, at which each publishes a buffer and an event.
struct Meeting {
  struct Brought {
    std::byte* data = nullptr;
    Event* event = nullptr;
    const Device* device = nullptr;
    std::span<const ExchangeBlock> sends{};
  };
  explicit Meeting(std::size_t size) : members(size) {
    for (auto& round : brought) round.resize(size);
  }
  std::size_t members;
  std::atomic<std::int64_t> arrivals{0};
  std::array<std::vector<Brought>, 2> brought;  // of even and odd rounds: no member is two rounds ahead
};

}  // namespace

// State shared by the connections of one plan.
struct DeviceFabric::Session {
  DeviceLinks links;
  std::vector<std::unique_ptr<DeviceMailbox>> mailboxes;  // by edge
  std::vector<std::unique_ptr<Meeting>> meetings;         // by group
  std::vector<Connection*> connections;                   // by world rank; null if there is none
};

struct DeviceFabric::Shared {
  std::size_t workers;
  const DeviceKernels& kernels;
  std::mutex mutex;                                  // guards the sessions
  std::vector<std::unique_ptr<Session>> sessions{};  // in the order of the calls of connect
};

class DeviceFabric::Group : public StreamGroup {
 public:
  Group(Connection& connection, const DeviceKernels& kernels, Meeting& meeting, int rank, Device& device)
      : connection_(connection),
        kernels_(kernels),
        meeting_(meeting),
        rank_(rank),
        device_(device),
        ready_(device.make_event()),
        reduced_(device.make_event()),
        copied_(device.make_event()) {}
  ~Group() override { device_.release(staging_); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const override { return static_cast<int>(meeting_.members); }
  int rank() const override { return rank_; }
  void all_reduce_sum(void* data, std::int64_t count, Element element, Stream& stream) override {
    reduce(static_cast<std::byte*>(data), count, element, stream,
           [&](const std::byte* from, std::int64_t elements, std::byte* into) {
             kernels_.add(stream, element, from, elements, into);
           });
  }
  void all_reduce_max(float* data, std::int64_t count, Stream& stream) override {
    reduce(reinterpret_cast<std::byte*>(data), count, Element::float32, stream,
           [&](const std::byte* from, std::int64_t elements, std::byte* into) {
             kernels_.maximum(stream, reinterpret_cast<const float*>(from), elements, reinterpret_cast<float*>(into));
           });
  }
  void all_gather(void* data, std::int64_t bytes, Stream& stream) override {
    auto* const mine = static_cast<std::byte*>(data);
    const std::int64_t shard = bytes / size();
    device_.record(*ready_, stream);
    const auto& all = meet(mine, *ready_, stream);
    for (int i = 1; i < size(); ++i) {
      const int member = (rank_ + i) % size();
      device_.copy(mine + member * shard, all[member].data + member * shard, shard, stream);
    }
    device_.record(*copied_, stream);
    meet(mine, *copied_, stream);
  }
  void exchange(std::span<const ExchangeBlock> sends, std::span<const ExchangeBlock> receives,
                Stream& stream) override {
    device_.record(*ready_, stream);
    const auto& all = meet(nullptr, *ready_, stream, sends);
    for (int i = 1; i < size(); ++i) {
      const int member = (rank_ + i) % size();
      auto from = all[member].sends.begin();
      for (const ExchangeBlock& block : receives) {
        if (block.rank != member) continue;
        from =
            std::find_if(from, all[member].sends.end(), [&](const ExchangeBlock& sent) { return sent.rank == rank_; });
        if (from == all[member].sends.end() || from->bytes != block.bytes) {
          throw std::logic_error("a send and its receive differ in size");
        }
        device_.copy(block.data, from->data, block.bytes, stream);
        ++from;
      }
    }
    device_.record(*copied_, stream);
    meet(nullptr, *copied_, stream);
  }

 private:
  // Returns what all members have published; later work on the stream runs after their events.
  const std::vector<Meeting::Brought>& meet(std::byte* data, Event& event, Stream& stream,
                                            std::span<const ExchangeBlock> sends = {});

  // Reduce-scatter in place, then all-gather.
  template <typename Combine>
  void reduce(std::byte* data, std::int64_t count, Element element, Stream& stream, const Combine& combine) {
    constexpr std::int64_t kRound = 64;  // elements, so that shards are aligned for vector accesses
    const std::int64_t members = size();
    const std::int64_t shard = (count + members - 1) / members;
    const std::int64_t step = (shard + kRound - 1) / kRound * kRound;
    const auto first = [&](std::int64_t member) { return std::min(count, member * step); };
    const auto length = [&](std::int64_t member) { return first(member + 1) - first(member); };
    const std::int64_t bytes = bytes_of(element);
    device_.record(*ready_, stream);
    const auto& all = meet(data, *ready_, stream);
    for (std::int64_t i = 1; i < members && length(rank_) > 0; ++i) {
      const Meeting::Brought& other = all[(rank_ + i) % members];
      const std::byte* const from = other.data + first(rank_) * bytes;
      std::byte* const into = data + first(rank_) * bytes;
      if (device_.can_access(*other.device)) {
        combine(from, length(rank_), into);
      } else {
        combine_copies(from, length(rank_), into, bytes, stream, combine);
      }
    }
    device_.record(*reduced_, stream);
    const auto& shards = meet(data, *reduced_, stream);
    for (std::int64_t i = 1; i < members; ++i) {
      const std::int64_t member = (rank_ + i) % members;
      if (length(member) == 0) continue;
      device_.copy(data + first(member) * bytes, shards[member].data + first(member) * bytes, length(member) * bytes,
                   stream);
    }
    // No member overwrites its data while others read it.
    device_.record(*copied_, stream);
    meet(data, *copied_, stream);
  }

  // Combines memory that kernels of this device cannot access, piece by piece: copies need no access.
  template <typename Combine>
  void combine_copies(const std::byte* from, std::int64_t count, std::byte* into, std::int64_t bytes, Stream& stream,
                      const Combine& combine) {
    constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;
    if (staging_ == nullptr) staging_ = device_.allocate(kStagingBytes);
    const std::int64_t most = kStagingBytes / bytes;
    for (std::int64_t first = 0; first < count; first += most) {
      const std::int64_t elements = std::min(most, count - first);
      device_.copy(staging_, from + first * bytes, elements * bytes, stream);
      combine(staging_, elements, into + first * bytes);
    }
  }

  Connection& connection_;
  const DeviceKernels& kernels_;
  Meeting& meeting_;
  int rank_;
  Device& device_;
  std::byte* staging_ = nullptr;  // allocated when it is first needed
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> reduced_;
  std::unique_ptr<Event> copied_;
  std::int64_t rounds_ = 0;
};

class DeviceFabric::Connection : public DeviceConnection {
 public:
  Connection(Shared& shared, Session& session, const Transport& host, Device& device)
      : shared_(shared), session_(session), host_(host), rank_(host.rank()), device_(device) {
    const DeviceLinks& links = session.links;
    for (std::size_t edge = 0; edge < links.edges.size(); ++edge) {
      if (links.edges[edge].second == rank_) lanes_.push_back({edge, device.make_stream(StreamPriority::high), {}});
    }
    for (std::size_t i = 0; i < links.groups.size(); ++i) {
      const auto& members = links.groups[i];
      const auto me = std::find(members.begin(), members.end(), rank_);
      groups_.push_back(me == members.end() ? nullptr
                                            : std::make_unique<Group>(*this, shared.kernels, *session.meetings[i],
                                                                      static_cast<int>(me - members.begin()), device));
    }
    const std::lock_guard lock(shared_.mutex);
    session_.connections[rank_] = this;
  }
  ~Connection() override {
    drain();
    const std::lock_guard lock(shared_.mutex);
    session_.connections[rank_] = nullptr;
  }

  void send(DeviceMessage& message) override {
    DeviceMailbox& box = *session_.mailboxes[message.edge];
    const std::lock_guard lock(box.mutex);
    box.sends.push_back(&message);
  }
  void receive(DeviceMessage& message) override {
    for (Lane& lane : lanes_) {
      if (lane.edge != message.edge) continue;
      lane.receives.push_back(&message);
      return place(lane);
    }
    throw std::logic_error("receive on an edge that ends at another rank");
  }
  void progress() override {
    if (host_.stopped()) throw Stopped("stopped");
    for (Lane& lane : lanes_) place(lane);
  }
  StreamGroup* group(std::size_t at) override { return groups_[at].get(); }
  void meet() { while_meeting_ ? while_meeting_() : progress(); }

  void drain() {
    for (Lane& lane : lanes_) device_.settle(*lane.stream);
  }

 private:
  struct Lane {
    std::size_t edge;
    std::unique_ptr<Stream> stream;
    std::vector<DeviceMessage*> receives;  // not yet enqueued
  };

  // Enqueues the copies whose send and receive have both been posted.
  void place(Lane& lane) {
    while (!lane.receives.empty()) {
      DeviceMessage* from = nullptr;
      {
        DeviceMailbox& box = *session_.mailboxes[lane.edge];
        const std::lock_guard lock(box.mutex);
        // A missing message blocks the later ones of its edge.
        if (box.sends.empty() || box.sends.front()->id != lane.receives.front()->id) return;
        from = box.sends.front();
        box.sends.erase(box.sends.begin());
      }
      DeviceMessage& to = *lane.receives.front();
      lane.receives.erase(lane.receives.begin());
      if (from->bytes != to.bytes) throw std::logic_error("a send and its receive differ in size");
      if (from->ready != nullptr) device_.wait(*lane.stream, *from->ready);
      if (to.ready != nullptr) device_.wait(*lane.stream, *to.ready);
      device_.record(*to.started, *lane.stream);
      device_.copy(to.data, from->data, to.bytes, *lane.stream);
      device_.record(*to.done, *lane.stream);
      to.placed.store(true, std::memory_order_release);
      from->started = nullptr;
      from->done = to.done;
      from->placed.store(true, std::memory_order_release);
    }
  }

  Shared& shared_;
  Session& session_;
  const Transport& host_;
  int rank_;
  Device& device_;
  std::vector<Lane> lanes_;  // edges that end at this rank
  std::vector<std::unique_ptr<Group>> groups_;
};

class DeviceFabric::Worker : public DeviceTransport {
 public:
  explicit Worker(Shared& shared) : shared_(shared) {}
  void set_host(const Transport& host) { host_ = &host; }

  std::unique_ptr<DeviceConnection> connect(const DeviceLinks& links, Device& device) override {
    Session* session = nullptr;
    {
      const std::lock_guard lock(shared_.mutex);
      if (connections_ == shared_.sessions.size()) {
        auto fresh = std::make_unique<Session>();
        fresh->links = links;
        for (std::size_t i = 0; i < links.edges.size(); ++i)
          fresh->mailboxes.push_back(std::make_unique<DeviceMailbox>());
        for (const auto& group : links.groups) fresh->meetings.push_back(std::make_unique<Meeting>(group.size()));
        fresh->connections.resize(shared_.workers);
        shared_.sessions.push_back(std::move(fresh));
      }
      session = shared_.sessions[connections_++].get();
    }
    if (session->links != links) throw std::logic_error("workers connect with different links");
    return std::make_unique<Connection>(shared_, *session, *host_, device);
  }

 private:
  Shared& shared_;
  const Transport* host_ = nullptr;
  std::size_t connections_ = 0;
};

const std::vector<Meeting::Brought>& DeviceFabric::Group::meet(std::byte* data, Event& event, Stream& stream,
                                                               std::span<const ExchangeBlock> sends) {
  auto& round = meeting_.brought[rounds_ % 2];
  round[rank_] = {data, &event, &device_, sends};
  meeting_.arrivals.fetch_add(1);
  const std::int64_t all = ++rounds_ * size();
  while (meeting_.arrivals.load() < all) {
    connection_.meet();
    std::this_thread::yield();
  }
  for (int member = 0; member < size(); ++member) {
    if (member != rank_) device_.wait(stream, *round[member].event);
  }
  return round;
}

DeviceFabric::DeviceFabric(int workers, const DeviceKernels& kernels)
    : shared_(new Shared{.workers = to_size(workers), .kernels = kernels}) {
  for (int rank = 0; rank < workers; ++rank) workers_.push_back(std::make_unique<Worker>(*shared_));
}

DeviceFabric::~DeviceFabric() = default;

DeviceTransport& DeviceFabric::worker(const Transport& host) {
  Worker& worker = *workers_[host.rank()];
  worker.set_host(host);
  return worker;
}

void DeviceFabric::drain() {
  for (const auto& session : shared_->sessions) {
    for (Connection* const connection : session->connections) {
      if (connection != nullptr) connection->drain();
    }
  }
}

}  // namespace sluice::exec
