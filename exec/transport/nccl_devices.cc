#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "exec/transport/nccl_communicators.h"

namespace sluice::exec {
namespace {

NcclType nccl_type_of(Element element) {
  switch (element) {
    case Element::float16: return NcclType::float16;
    case Element::bfloat16: return NcclType::bfloat16;
    case Element::float32: return NcclType::float32;
  }
  return NcclType::float32;
}

class NcclDevicesOfRank;

// One end of an edge: a communicator of its two ranks, the sender first.
struct NcclEdge {
  bool sends = false;
  NcclCommunicator communicator = nullptr;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> idle;  // recorded behind the latest message
  bool busy = false;            // a message has been issued and not been seen to end
  std::string what;             // "edge 3 from rank 1 to rank 2"

  const char* name() const { return sends ? "ncclSend" : "ncclRecv"; }
};

class NcclGroup final : public StreamGroup {
 public:
  NcclGroup(NcclDevicesOfRank& devices, NcclCommunicator communicator, int size, int rank, std::string what)
      : devices_(devices), communicator_(communicator), size_(size), rank_(rank), what_(std::move(what)) {}
  int size() const override { return size_; }
  int rank() const override { return rank_; }
  void all_reduce_sum(void* data, std::int64_t count, Element element, Stream& stream) override {
    reduce(data, count, nccl_type_of(element), NcclReduction::sum, stream);
  }
  void all_reduce_max(float* data, std::int64_t count, Stream& stream) override {
    reduce(data, count, NcclType::float32, NcclReduction::maximum, stream);
  }
  void all_gather(void* data, std::int64_t bytes, Stream& stream) override;
  void exchange(std::span<const ExchangeBlock> sends, std::span<const ExchangeBlock> receives, Stream& stream) override;

 private:
  void reduce(void* data, std::int64_t count, NcclType type, NcclReduction reduction, Stream& stream);

  NcclDevicesOfRank& devices_;
  NcclCommunicator communicator_;
  int size_;
  int rank_;
  std::string what_;
};

// State shared by runs with equal links.
struct NcclLines {
  DeviceLinks links;
  std::vector<NcclEdge> edges;                     // without a communicator for edges of other ranks
  std::vector<std::unique_ptr<NcclGroup>> groups;  // null if this rank is not a member
};

class NcclDevicesOfRank final : public DeviceTransport {
 public:
  NcclDevicesOfRank(NcclCommunicators& communicators, const Transport& host)
      : communicators_(communicators), device_(communicators.device()), host_(&host) {}

  std::unique_ptr<DeviceConnection> connect(const DeviceLinks& links, Device& device) override;
  bool waits_on_device() const override { return true; }

  void post(NcclEdge& edge, bool sends, DeviceMessage& message) {
    if (edge.communicator == nullptr || edge.sends != sends) throw std::logic_error("an edge of other ranks");
    posted_.push_back({&edge, &message});
  }
  // Enqueues the first message of each edge that has none in flight. Those behind another one may depend on later work
  // of other workers.
  void flush() {
    for (const auto [edge, message] : posted_) edge->busy = edge->busy && !device_.done(*edge->idle);
    std::vector<Posted> later;
    for (const Posted& each : posted_) each.edge->busy ? later.push_back(each) : enqueue(*each.edge, *each.message);
    posted_ = std::move(later);
  }
  void progress() {
    throw_if_stopped();
    flush();
    look();
  }
  // Issues an operation on a group after everything that has been posted; returns when it is enqueued on its stream.
  template <typename Call>
  void issue(NcclCommunicator communicator, const char* name, const std::string& what, Call&& call) {
    flush();
    if (connecting_) return communicators_.issue_and_wait(communicator, name, what, *host_, call);
    communicators_.issue(communicator, name, what, call);
  }
  const NcclFunctions& functions() const { return communicators_.functions(); }

 private:
  struct Posted {
    NcclEdge* edge;
    DeviceMessage* message;
  };

  void throw_if_stopped() {
    if (!host_->stopped()) return;
    communicators_.abort();
    throw Stopped("stopped");
  }

  // A message behind another one of its edge would wait on the device for the other worker, and with it everything that
  // shares its hardware queue, or that NCCL launches in the order of the calls: what the other worker waits for may be
  // among it. Therefore each edge has one in flight.
  void enqueue(NcclEdge& edge, DeviceMessage& message) {
    edge.busy = true;
    if (message.ready != nullptr) device_.wait(*edge.stream, *message.ready);
    if (message.started != nullptr) device_.record(*message.started, *edge.stream);
    communicators_.issue(edge.communicator, edge.name(), edge.what,
                         [&] { return call(edge, message.data, message.bytes); });
    device_.record(*message.done, *edge.stream);
    device_.record(*edge.idle, *edge.stream);
    message.placed.store(true, std::memory_order_release);
  }

  NcclResult call(const NcclEdge& edge, std::byte* data, std::int64_t bytes) const {
    constexpr int kSender = 0;
    constexpr int kReceiver = 1;
    const auto count = static_cast<std::size_t>(bytes);
    void* const stream = edge.stream->native();
    const NcclFunctions& nccl = communicators_.functions();
    return edge.sends ? nccl.send(data, count, NcclType::int8, kReceiver, edge.communicator, stream)
                      : nccl.receive(data, count, NcclType::int8, kSender, edge.communicator, stream);
  }

  // Messages that wait on the device hold multiprocessors.
  void make_room(const NcclLines& lines) {
    const auto receives = std::count_if(lines.edges.begin(), lines.edges.end(), [](const NcclEdge& edge) {
      return edge.communicator != nullptr && !edge.sends;
    });
    device_.reserve_multiprocessors(communicators_.options().message_blocks * static_cast<int>(receives));
  }

  // Errors of messages in flight are reported by this call only: one edge per call.
  void look() {
    if (lines_.empty()) return;
    const std::vector<NcclEdge>& edges = lines_[looked_ % lines_.size()]->edges;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const NcclEdge& edge = edges[(looked_ + i) % edges.size()];
      if (edge.communicator == nullptr) continue;
      communicators_.look_at(edge.communicator, edge.what);
      looked_ += i;
      break;
    }
    ++looked_;
  }

  void make_edges(NcclLines& lines);
  void make_groups(NcclLines& lines);
  void use_once(NcclLines& lines);

  NcclCommunicators& communicators_;
  Device& device_;
  const Transport* host_;
  std::vector<std::unique_ptr<NcclLines>> lines_;
  std::vector<Posted> posted_;  // and not enqueued
  std::size_t looked_ = 0;
  bool connecting_ = false;  // operations of groups are first uses
};

class NcclConnection final : public DeviceConnection {
 public:
  NcclConnection(NcclDevicesOfRank& devices, NcclLines& lines) : devices_(devices), lines_(lines) {}
  void send(DeviceMessage& message) override { devices_.post(lines_.edges.at(message.edge), true, message); }
  void receive(DeviceMessage& message) override { devices_.post(lines_.edges.at(message.edge), false, message); }
  void flush() override { devices_.flush(); }
  void progress() override { devices_.progress(); }
  StreamGroup* group(std::size_t index) override { return lines_.groups.at(index).get(); }

 private:
  NcclDevicesOfRank& devices_;
  NcclLines& lines_;
};

void NcclGroup::reduce(void* data, std::int64_t count, NcclType type, NcclReduction reduction, Stream& stream) {
  devices_.issue(communicator_, "ncclAllReduce", what_, [=, this, &stream] {
    return devices_.functions().all_reduce(data, data, static_cast<std::size_t>(count), type, reduction, communicator_,
                                           stream.native());
  });
}

void NcclGroup::all_gather(void* data, std::int64_t bytes, Stream& stream) {
  const std::int64_t shard = bytes / size_;
  devices_.issue(communicator_, "ncclAllGather", what_, [=, this, &stream] {
    return devices_.functions().all_gather(static_cast<std::byte*>(data) + rank_ * shard, data,
                                           static_cast<std::size_t>(shard), NcclType::int8, communicator_,
                                           stream.native());
  });
}

void NcclGroup::exchange(std::span<const ExchangeBlock> sends, std::span<const ExchangeBlock> receives,
                         Stream& stream) {
  if (sends.empty() && receives.empty()) return;
  devices_.issue(communicator_, "ncclGroupEnd", what_, [=, this, &stream] {
    const NcclFunctions& nccl = devices_.functions();
    NcclResult result = nccl.group_start();
    const auto each = [&](const ExchangeBlock& block, const auto& call) {
      if (result != kNcclSuccess) return;
      result = call(block.data, static_cast<std::size_t>(block.bytes), NcclType::int8, block.rank, communicator_,
                    stream.native());
    };
    for (const ExchangeBlock& block : sends) each(block, nccl.send);
    for (const ExchangeBlock& block : receives) each(block, nccl.receive);
    const NcclResult end = nccl.group_end();
    return result == kNcclSuccess ? end : result;
  });
}

std::unique_ptr<DeviceConnection> NcclDevicesOfRank::connect(const DeviceLinks& links, Device& device) {
  if (&device != &device_) throw std::logic_error("a worker connects the device of another worker");
  device_.make_current();
  const auto known =
      std::find_if(lines_.begin(), lines_.end(), [&](const auto& lines) { return lines->links == links; });
  if (known != lines_.end()) {
    make_room(**known);
    return std::make_unique<NcclConnection>(*this, **known);
  }
  auto fresh = std::make_unique<NcclLines>();
  fresh->links = links;
  make_edges(*fresh);
  make_groups(*fresh);
  use_once(*fresh);
  make_room(*fresh);
  lines_.push_back(std::move(fresh));
  return std::make_unique<NcclConnection>(*this, *lines_.back());
}

void NcclDevicesOfRank::make_edges(NcclLines& lines) {
  std::vector<std::vector<int>> ends;
  for (const auto& [sender, receiver] : lines.links.edges) ends.push_back({sender, receiver});
  lines.edges.resize(ends.size());
  for (const auto& round : rounds_without_overlap(ends)) {
    std::vector<std::vector<int>> members;
    for (const std::size_t edge : round) members.push_back(ends[edge]);
    const std::string what = fmt::format("making {} edges", round.size());
    NcclCommunicator const made = communicators_.split(members, communicators_.options().message_blocks, what, *host_);
    for (const std::size_t i : round) {
      const auto [sender, receiver] = lines.links.edges[i];
      if (sender != communicators_.rank() && receiver != communicators_.rank()) continue;
      lines.edges[i] = {.sends = sender == communicators_.rank(),
                        .communicator = made,
                        .stream = device_.make_stream(StreamPriority::high),
                        .idle = device_.make_event(),
                        .what = fmt::format("edge {} from rank {} to rank {}", i, sender, receiver)};
    }
  }
}

void NcclDevicesOfRank::make_groups(NcclLines& lines) {
  const auto& groups = lines.links.groups;
  lines.groups.resize(groups.size());
  for (const auto& round : rounds_without_overlap(groups)) {
    std::vector<std::vector<int>> members;
    for (const std::size_t group : round) members.push_back(groups[group]);
    NcclCommunicator const made =
        communicators_.split(members, 0, fmt::format("making {} groups", round.size()), *host_);
    for (const std::size_t i : round) {
      const auto me = std::find(groups[i].begin(), groups[i].end(), communicators_.rank());
      if (me == groups[i].end()) continue;
      lines.groups[i] = std::make_unique<NcclGroup>(*this, made, static_cast<int>(groups[i].size()),
                                                    static_cast<int>(me - groups[i].begin()),
                                                    fmt::format("group {} of {} ranks", i, groups[i].size()));
    }
  }
}

// Uses each edge, then each kernel of each group, then the exchanges of groups once, in order: connections are made and
// kernels are loaded by the first use, by all members together, and no rank waits for one that waits for a later edge.
void NcclDevicesOfRank::use_once(NcclLines& lines) {
  const std::int64_t bytes = std::max(1024, communicators_.size());
  std::byte* const buffer = device_.allocate(bytes);
  const auto stream = device_.make_stream(StreamPriority::normal);
  const auto done = device_.make_event();
  const auto finish = [&](const std::string& what, Stream& on, NcclCommunicator communicator = nullptr) {
    device_.record(*done, on);
    communicators_.wait_until(what, *host_, [&] {
      if (communicator != nullptr) communicators_.look_at(communicator, what);
      return device_.done(*done);
    });
  };
  for (NcclEdge& edge : lines.edges) {
    if (edge.communicator == nullptr) continue;
    communicators_.issue_and_wait(edge.communicator, edge.name(), edge.what, *host_,
                                  [this, &edge, buffer, bytes] { return call(edge, buffer, bytes); });
    finish(edge.what, *edge.stream, edge.communicator);
  }
  connecting_ = true;
  for (const auto& group : lines.groups) {
    if (group == nullptr) continue;
    const auto first = [&](const char* what, const auto& use) {
      use();
      finish(fmt::format("the first {} of a group", what), *stream);
    };
    auto* const number = reinterpret_cast<float*>(buffer);
    first("sum", [&] { group->all_reduce_sum(number, 1, Element::float32, *stream); });
    first("maximum", [&] { group->all_reduce_max(number, 1, *stream); });
    first("gather", [&] { group->all_gather(buffer, group->size(), *stream); });
  }
  for (const std::size_t at : lines.links.exchanges) {
    NcclGroup* const group = lines.groups[at].get();
    if (group == nullptr) continue;
    // One byte to and from every other rank. What is received is not read.
    std::vector<ExchangeBlock> blocks;
    for (int rank = 0; rank < group->size(); ++rank) {
      if (rank != group->rank()) blocks.push_back({rank, buffer, 1});
    }
    group->exchange(blocks, blocks, *stream);
    finish("the first exchange of a group", *stream);
  }
  connecting_ = false;
  device_.release(buffer);
}

}  // namespace

std::unique_ptr<DeviceTransport> make_nccl_devices(NcclCommunicators& communicators, const Transport& host) {
  return std::make_unique<NcclDevicesOfRank>(communicators, host);
}

}  // namespace sluice::exec
