#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/cost/sharing.h"
#include "model/units.h"

namespace sluice::sim {

// For each of a fixed number of slots the time of its next event, or none; the earliest is at hand. Ties go to the
// lower slot. A tournament: setting a time is one walk to the root, and nothing is ever allocated.
class Agenda {
 public:
  static constexpr Duration kNever = Duration::max();

  explicit Agenda(int slots);
  void set(int slot, Duration when);
  int first() const { return winner_[1]; }
  Duration first_time() const { return times_[first()]; }

 private:
  std::size_t leaves_ = 1;
  std::vector<Duration> times_;  // by slot
  std::vector<int> winner_;      // of each node of the tree, the root at 1
};

// The links that share something, as time goes on: at most one transfer each, and who is how fast.
// Fair rates are max-min over the flows' bytes, each also held to its full speed; they are found again only for the
// transfers that are connected, through resources that are wanted beyond their capacity, to one that begins or ends.
// An end is rounded up to whole nanoseconds, less a millionth of one for what floating point adds. A transfer that
// nobody ever slows down takes its work to the nanosecond. Nothing is allocated once it is made.
class SharedLinks {
 public:
  explicit SharedLinks(const LinkSharing& sharing);

  bool shares(int link) const { return !links_[link].uses.empty(); }

  // The next transfer of `link` wants to begin at `when`, not before now, and takes `work` > 0 at full speed. `order`
  // decides between transfers of a queue that came at the same time. Precondition: the link's last one has ended.
  void add(int link, Duration when, Duration work, std::uint64_t order);

  // Goes on to the next end of a transfer and returns its link, or -1 if none is under way.
  int next_end();

  Duration now() const { return now_; }
  Duration began(int link) const { return flows_[link].began; }  // past its queue
  // Of full speed, at which the link's last transfer went most recently; 0 before it began.
  double rate(int link) const { return flows_[link].rate; }

 private:
  enum class State : std::uint8_t { idle, coming, waiting, moving };
  struct Flow {
    State state = State::idle;
    Duration came{};
    Duration began{};
    Duration since{};   // when `left` was true
    Duration work{};    // at full speed
    double left = 0;    // of it
    double rate = 0;    // 0: not set yet
    double wanted = 0;  // by `share_fairly`; 0: not yet known
    std::uint64_t order = 0;
  };
  struct Resource {
    std::vector<int> links;       // that use it
    int moving = 0;               // transfers
    bool crowded = false;         // fair: at full speed they would want more than it has
    std::uint64_t seen = 0;       // stamp
    double room = 0, weight = 0;  // of share_fairly
  };

  Flow& flow(int link) { return flows_[link]; }
  const SharedLink& link(int i) const { return links_[i]; }
  Resource& resource(const ResourceUse& use) { return resources_[static_cast<std::size_t>(use.resource)]; }

  void come(int link);
  void begin(int link);
  void settle();
  void admit();
  void find_affected();
  void gather(Resource& from);
  void share_fairly();
  void set_rate(int link, double rate);

  std::vector<SharedLink> links_;
  std::vector<Flow> flows_;  // by link
  std::vector<Resource> resources_;
  Agenda agenda_;  // by link: its transfer comes, or ends
  Duration now_{};
  std::uint64_t stamp_ = 0;
  std::vector<std::uint64_t> seen_;  // by link: stamp
  std::vector<int> changed_;         // links whose transfer began or ended now
  std::vector<int> waiting_;         // of queues, first come first
  std::vector<int> affected_;        // links whose rates are to be found
  bool queue_changed_ = false;
};

}  // namespace sluice::sim
