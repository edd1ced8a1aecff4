#include "sim/engine/shared_links.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

constexpr double kCapacityNoise = 1e-9;  // of a resource's capacity
constexpr double kSame = 1e-12;          // relative difference of rates that count as equal
constexpr double kNanosecond = 1e-6;     // tolerance of a whole number of nanoseconds

}  // namespace

Agenda::Agenda(int slots) {
  for (std::size_t nodes = to_size(std::max(1, slots)); nodes > 1 || levels_.empty();) {
    nodes = (nodes + kChildren - 1) / kChildren;
    levels_.push_back(times_.size());
    times_.resize(times_.size() + nodes * kChildren, kNever);
  }
  firsts_.assign(times_.size(), 0);
  std::iota(firsts_.begin(), firsts_.begin() + slots, 0);
}

void Agenda::set(int slot, Duration when) {
  auto node = to_size(slot);
  times_[node] = when;
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    node /= kChildren;
    const std::size_t begin = levels_[level] + node * kChildren;
    // Values, not references, so that the compiler selects instead of branching.
    std::int64_t time = times_[begin].count();
    std::size_t least = 0;
    for (std::size_t child = 1; child < kChildren; ++child) {
      const std::int64_t other = times_[begin + child].count();
      const bool earlier = other < time;
      time = earlier ? other : time;
      least = earlier ? child : least;
    }
    const int first = firsts_[begin + least];
    if (level + 1 == levels_.size()) {
      first_time_ = Duration{time};
      first_ = first;
    } else {
      times_[levels_[level + 1] + node] = Duration{time};
      firsts_[levels_[level + 1] + node] = first;
    }
  }
}

SharedLinks::SharedLinks(const LinkSharing& sharing)
    : links_(sharing.links),
      flows_(sharing.links.size()),
      resources_(static_cast<std::size_t>(sharing.num_resources)),
      agenda_(static_cast<int>(sharing.links.size())),
      seen_(sharing.links.size(), 0) {
  for (int i = 0; i < std::ssize(links_); ++i) {
    for (const ResourceUse& use : link(i).uses) resource(use).sharers.push_back({i, use.share});
  }
  changed_.reserve(2 * links_.size());
  waiting_.reserve(links_.size());
  affected_.reserve(links_.size());
}

void SharedLinks::add(int link, Duration when, Duration work, std::uint64_t order) {
  flow(link) = {.state = State::coming, .came = when, .work = work, .order = order};
  agenda_.set(link, when);
}

int SharedLinks::next_end() {
  while (true) {
    // All events at one time precede the computation of rates.
    if (agenda_.first_time() > now_) settle();
    if (agenda_.first_time() == Agenda::kNever) return -1;
    const int first = agenda_.first();
    now_ = agenda_.first_time();
    if (flow(first).state == State::coming) {
      come(first);
      continue;
    }
    agenda_.set(first, Agenda::kNever);
    flow(first).state = State::idle;
    for (const ResourceUse& use : link(first).uses) {
      --resource(use).moving;
      rates_changed_ = rates_changed_ || resource(use).oversubscribed;
    }
    if (link(first).policy == Sharing::queue) {
      queue_changed_ = true;
    } else {
      changed_.push_back(first);
    }
    return first;
  }
}

// The fraction of its capacity that the transfers on a resource use at full speed.
double SharedLinks::demand(const Resource& of) const {
  double sum = 0;
  for (const auto& [other, share] : of.sharers) sum += flows_[other].state == State::moving ? share : 0;
  return sum;
}

// A fair transfer that leaves no resource oversubscribed has full speed and slows down nothing, whatever else begins or
// ends now: what oversubscribes a resource later has all rates recomputed.
void SharedLinks::come(int i) {
  if (link(i).policy != Sharing::queue) {
    changed_.push_back(i);
    if (begin(i)) {
      set_rate(i, 1);
    } else {
      agenda_.set(i, Agenda::kNever);
      rates_changed_ = true;
    }
    return;
  }
  agenda_.set(i, Agenda::kNever);
  flow(i).state = State::waiting;
  const auto key = [&](int waiting) { return std::tuple(flow(waiting).came, flow(waiting).order, waiting); };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), i, [&](int a, int b) { return key(a) < key(b); }),
                  i);
  queue_changed_ = true;
}

// Returns whether no resource of the link is oversubscribed.
bool SharedLinks::begin(int i) {
  flow(i).state = State::moving;
  flow(i).began = now_;
  bool free = true;
  for (const ResourceUse& use : link(i).uses) {
    Resource& used = resource(use);
    ++used.moving;
    free = free && !used.oversubscribed && (used.moving == 1 || demand(used) <= 1 + kCapacityNoise);
  }
  return free;
}

void SharedLinks::settle() {
  if (queue_changed_) admit();
  queue_changed_ = false;
  if (rates_changed_) {
    find_affected();
    share_fairly();
  }
  rates_changed_ = false;
  changed_.clear();
}

// Starts the waiting transfers whose resources are all free and not awaited by an earlier one.
void SharedLinks::admit() {
  ++stamp_;
  std::size_t kept = 0;
  for (const int i : waiting_) {
    const auto& uses = link(i).uses;
    const bool free = std::all_of(uses.begin(), uses.end(), [&](const ResourceUse& use) {
      return resource(use).moving == 0 && resource(use).seen != stamp_;
    });
    if (free) {
      begin(i);
      set_rate(i, 1);
      continue;
    }
    slowed_ = true;
    for (const ResourceUse& use : uses) resource(use).seen = stamp_;
    waiting_[kept++] = i;
  }
  waiting_.resize(kept);
}

// Finds the transfers whose rates may change: those on resources that were or are oversubscribed, and those connected
// to them through other oversubscribed resources. A transfer that began elsewhere has full speed.
void SharedLinks::find_affected() {
  ++stamp_;
  affected_.clear();
  for (const int i : changed_) {
    for (const ResourceUse& use : link(i).uses) {
      Resource& changed = resource(use);
      const bool before = changed.oversubscribed;
      changed.oversubscribed = demand(changed) > 1 + kCapacityNoise;
      if (before || changed.oversubscribed) gather(changed);
    }
  }
  for (std::size_t next = 0; next < affected_.size(); ++next) {
    for (const ResourceUse& use : link(affected_[next]).uses) {
      if (resource(use).oversubscribed) gather(resource(use));
    }
  }
  for (const int i : changed_) {
    if (flow(i).state == State::moving && seen_[i] != stamp_) set_rate(i, 1);
  }
}

void SharedLinks::gather(Resource& from) {
  if (from.seen == stamp_) return;
  from.seen = stamp_;
  for (const auto& [i, share] : from.sharers) {
    std::uint64_t& seen = seen_[i];
    if (flow(i).state != State::moving || seen == stamp_) continue;
    seen = stamp_;
    affected_.push_back(i);
  }
}

// Progressive filling: the rates in bytes of all affected flows rise together until one reaches its full speed or a
// resource is full; these flows are fixed, and the others continue to rise.
void SharedLinks::share_fairly() {
  for (const int i : affected_) {
    flow(i).wanted = 0;
    for (const ResourceUse& use : link(i).uses) resource(use).room = 1;
  }
  for (std::size_t left = affected_.size(); left > 0;) {
    double level = 2;  // above any speed
    for (const int i : affected_) {
      for (const ResourceUse& use : link(i).uses) resource(use).weight = 0;
    }
    for (const int i : affected_) {
      if (flow(i).wanted > 0) continue;
      level = std::min(level, link(i).speed);
      for (const ResourceUse& use : link(i).uses) resource(use).weight += use.share / link(i).speed;
    }
    const auto level_of = [&](const ResourceUse& use) { return resource(use).room / resource(use).weight; };
    for (const int i : affected_) {
      if (flow(i).wanted > 0) continue;
      for (const ResourceUse& use : link(i).uses) {
        if (resource(use).oversubscribed) level = std::min(level, level_of(use));
      }
    }
    const double reached = level * (1 + kSame);
    const auto settled = [&](int i) {
      const auto& uses = link(i).uses;
      return link(i).speed <= reached || std::any_of(uses.begin(), uses.end(), [&](const ResourceUse& use) {
               return resource(use).oversubscribed && level_of(use) <= reached;
             });
    };
    // Finds all of them before subtracting what they use, which would change the levels.
    for (const int i : affected_) {
      if (flow(i).wanted > 0 || !settled(i)) continue;
      flow(i).wanted = link(i).speed <= reached ? -1 : -level / link(i).speed;
    }
    for (const int i : affected_) {
      if (flow(i).wanted >= 0) continue;
      flow(i).wanted = -flow(i).wanted;
      for (const ResourceUse& use : link(i).uses) {
        resource(use).room = std::max(0.0, resource(use).room - use.share * flow(i).wanted);
      }
      --left;
    }
  }
  for (const int i : affected_) set_rate(i, flow(i).wanted);
}

void SharedLinks::set_rate(int i, double rate) {
  Flow& moving = flow(i);
  slowed_ = slowed_ || rate < 1;
  if (moving.rate == 0) {
    moving.left = static_cast<double>(moving.work.count());
  } else {
    if (std::abs(rate - moving.rate) <= kSame * rate) return;  // its end does not change
    moving.left -= moving.rate * static_cast<double>((now_ - moving.since).count());
  }
  const bool whole = moving.rate == 0 && rate == 1;
  moving.rate = rate;
  moving.since = now_;
  const double takes = std::max(0.0, std::ceil(moving.left / rate - kNanosecond));
  agenda_.set(i, now_ + (whole ? moving.work : Duration{static_cast<std::int64_t>(takes)}));
}

}  // namespace sluice::sim
