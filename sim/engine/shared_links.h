#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/cost/sharing.h"
#include "model/units.h"

namespace sluice::sim {

// The time of the next event, or none, of each of a fixed number of slots, with constant-time access to the earliest.
// Ties go to the lower slot. A tournament tree whose nodes have eight children, with few branches that depend on times:
// `set` walks once to the root and does not allocate.
class Agenda {
 public:
  static constexpr Duration kNever = Duration::max();

  explicit Agenda(int slots);
  void set(int slot, Duration when);
  int first() const { return first_; }
  Duration first_time() const { return first_time_; }

 private:
  static constexpr std::size_t kChildren = 8;

  std::vector<Duration> times_;      // by level, slots first: the earliest time below each node
  std::vector<int> firsts_;          // likewise: its slot
  std::vector<std::size_t> levels_;  // where each begins
  int first_ = 0;
  Duration first_time_ = kNever;
};

// The state over time of links that share resources: at most one transfer per link, and the rates of the transfers.
// Fair rates are max-min fair in bytes, each bounded by the full speed of its link. When a transfer begins or ends,
// rates are recomputed only for the transfers that are connected to it through oversubscribed resources. An end is
// rounded up to whole nanoseconds, less a millionth of one for floating-point error. A transfer that is never slowed
// down takes exactly its work. Does not allocate after construction. `sharing` must outlive this.
class SharedLinks {
 public:
  explicit SharedLinks(const LinkSharing& sharing);

  bool shares(int link) const { return !links_[link].uses.empty(); }

  // Adds the next transfer of `link`, which is ready at `when` >= now and takes `work` > 0 at full speed. `order`
  // breaks ties between transfers that enter a queue at the same time. Precondition: the link's last transfer has
  // ended.
  void add(int link, Duration when, Duration work, std::uint64_t order);

  // Advances to the next end of a transfer and returns its link, or -1 if there is none.
  int next_end();

  Duration now() const { return now_; }
  Duration began(int link) const { return flows_[link].began; }  // after any queue
  // The latest rate of the link's last transfer as a fraction of full speed; 0 before it began.
  double rate(int link) const { return flows_[link].rate; }
  // Whether a transfer has been slowed down or has waited in a queue.
  bool slowed() const { return slowed_; }

 private:
  enum class State : std::uint8_t { idle, coming, waiting, moving };
  struct Flow {
    State state = State::idle;
    Duration came{};
    Duration began{};
    Duration since{};   // time of `left`
    Duration work{};    // at full speed
    double left = 0;    // remaining work
    double rate = 0;    // 0: not set yet
    double wanted = 0;  // of `share_fairly`; 0: not yet known
    std::uint64_t order = 0;
  };
  struct Sharer {
    int link = 0;
    double share = 1;
  };
  struct Resource {
    std::vector<Sharer> sharers;
    int moving = 0;               // transfers
    bool oversubscribed = false;  // fair: the demand at full speed exceeds the capacity
    std::uint64_t seen = 0;       // stamp
    double room = 0, weight = 0;  // of share_fairly
  };

  Flow& flow(int link) { return flows_[link]; }
  const SharedLink& link(int i) const { return links_[i]; }
  Resource& resource(const ResourceUse& use) { return resources_[static_cast<std::size_t>(use.resource)]; }

  double demand(const Resource& of) const;
  void come(int link);
  bool begin(int link);
  void settle();
  void admit();
  void find_affected();
  void gather(Resource& from);
  void share_fairly();
  void set_rate(int link, double rate);

  const std::vector<SharedLink>& links_;
  std::vector<Flow> flows_;  // by link
  std::vector<Resource> resources_;
  Agenda agenda_;  // by link: the arrival or the end of its transfer
  Duration now_{};
  std::uint64_t stamp_ = 0;
  std::vector<std::uint64_t> seen_;  // by link: stamp
  std::vector<int> changed_;         // links whose transfer began or ended now
  std::vector<int> waiting_;         // of queues, first come first
  std::vector<int> affected_;        // links whose rates are recomputed
  bool rates_changed_ = false;       // possibly, by `changed_`
  bool queue_changed_ = false;
  bool slowed_ = false;
};

}  // namespace sluice::sim
