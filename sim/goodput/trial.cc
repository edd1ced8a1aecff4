#include "sim/goodput/trial.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>

#include "sim/goodput/failures.h"

namespace sluice::sim {
namespace {

constexpr Duration kForever{std::numeric_limits<std::int64_t>::max() / 4};

// Rounds a time that is not negative, or so by rounding only. Much faster than std::llround.
Duration rounded(double seconds) {
  const double nanoseconds = seconds * 1e9 + 0.5;
  return nanoseconds < static_cast<double>(kForever.count()) ? Duration{static_cast<std::int64_t>(nanoseconds)}
                                                             : kForever;
}

// Time in which iterations ran, by what it counts as if it is not lost. The last member changes most often: copies of
// two members by one instruction would wait until a store to one of them has left the store buffer.
struct Worked {
  Duration degraded{};
  Duration stragglers{};
  Duration useful{};

  Duration sum() const { return useful + degraded + stragglers; }
  Worked& operator+=(const Worked& other) {
    useful += other.useful;
    degraded += other.degraded;
    stragglers += other.stragglers;
    return *this;
  }
  // Removes and returns a part of this length, or everything.
  Worked take(Duration length) {
    const Duration all = sum();
    const double part = length >= all ? 1 : static_cast<double>(length.count()) / static_cast<double>(all.count());
    const auto of = [&](Duration time) {
      return std::min(time, Duration{std::llround(part * static_cast<double>(time.count()))});
    };
    const Worked taken{of(degraded), of(stragglers), of(useful)};
    useful -= taken.useful;
    degraded -= taken.degraded;
    stragglers -= taken.stragglers;
    return taken;
  }
};

// Broken nodes and spares. When a node is repaired is known as soon as it breaks.
class NodePool {
 public:
  NodePool(int spares, int crews) : free_(spares), busy_(static_cast<std::size_t>(crews), Duration{}) {}

  void repair(Duration now, Duration time) {
    if (!busy_.empty()) {
      const auto crew = std::min_element(busy_.begin(), busy_.end());
      *crew = std::max(*crew, now) + time;
      recent_.push_back(*crew);
    } else {
      recent_.push_back(now + time);
    }
  }
  int free(Duration now) {
    for (; !returns_.empty() && returns_.top() <= now; returns_.pop()) ++free_;
    for (const Duration at : recent_) {
      if (at <= now) {
        ++free_;
      } else {
        returns_.push(at);
      }
    }
    recent_.clear();
    return free_;
  }
  // Returns when a node that is taken now is ready. Precondition: one is free or broken.
  Duration take(Duration now) {
    if (free_ > 0 || free(now) > 0) {
      --free_;
      return now;
    }
    const Duration ready = returns_.top();
    returns_.pop();
    return ready;
  }

 private:
  int free_;
  std::vector<Duration> recent_;  // when the last broken nodes return; most are never put in order
  std::vector<Duration> busy_;    // until when, per crew
  std::priority_queue<Duration, std::vector<Duration>, std::greater<>> returns_;
};

class Trial {
 public:
  Trial(const GoodputRun& run, std::uint64_t seed, std::uint64_t trial, TrialHistory* history)
      : run_(run),
        history_(history),
        times_(run.causes, RandomStream(seed, trial, 0)),
        repairs_(seed, trial, 1),
        delays_(seed, trial, 2),
        pool_(run.spares, run.crews),
        lost_(static_cast<std::size_t>(run.places)) {}

  TrialResult result() {
    spend(TimeUse::start, run_.start);
    while (!ended()) run_until_next();
    Worked all = committed_;
    all += writing_;
    all += fresh_;
    add(TimeUse::useful, all.useful);
    add(TimeUse::degraded, all.degraded);
    add(TimeUse::stragglers, all.stragglers);
    result_.wall = now_;
    result_.exposure_s = times_.exponential_rate() * exposed_s_;
    return result_;
  }

 private:
  enum class EventKind : std::uint8_t { rejoin, slow_end, found };
  struct Event {
    Duration at{};
    EventKind kind = EventKind::rejoin;
    int replicas = 0;  // of rejoin, the first of them at
    int place = 0;
    std::size_t cause = 0;
  };

  bool ended() const { return result_.finished || now_ >= run_.horizon; }
  bool is_live() const { return run_.policy == RecoveryPolicy::migrate || continues_without(run_.policy); }
  void add(TimeUse use, Duration time) { result_.time[static_cast<std::size_t>(use)] += time; }

  // Time passes without work.
  void spend(TimeUse use, Duration time) {
    const Duration spent = std::clamp(time, Duration{}, run_.horizon - now_);
    add(use, spent);
    now_ += spent;
    record(use, spent);
  }
  void record(TimeUse use, Duration time) {
    if (history_ == nullptr || time.count() <= 0) return;
    const Duration progress = committed_.useful + writing_.useful + fresh_.useful;
    std::vector<TrialSpan>& spans = history_->spans;
    const bool runs = use == TimeUse::useful || use == TimeUse::degraded || use == TimeUse::stragglers;
    if (!spans.empty() && spans.back().use == use && spans.back().missing == missing_ && !runs) {
      spans.back().end = now_;
      spans.back().progress = progress;
    } else {
      spans.push_back({now_ - time, now_, use, missing_, progress});
    }
  }
  void spend(TimeUse use, const RandomTime& time) {
    if (time.mean_s > 0) spend(use, rounded(time.draw(delays_)));
  }

  Duration until_failure() const {
    const double exposure_s = times_.next_s() - exposed_s_;
    return rounded(missing_ == 0 ? exposure_s : exposure_s / in_use_);
  }
  std::size_t take_failure() {
    exposed_s_ = times_.next_s();
    ++result_.failures;
    const std::size_t cause = times_.take();
    if (history_ != nullptr) history_->failures.push_back({now_, cause, {}});
    if (times_.is_exponential(cause)) ++result_.exponential_failures;
    return cause;
  }

  void run_until_next() {
    const Duration failure = until_failure();
    const auto event =
        std::min_element(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.at < b.at; });
    const Duration until_event = event == events_.end() ? kForever : std::max(Duration{}, event->at - now_);
    const Duration until_end = std::min(run_.horizon - now_, until_done());
    const Duration next = std::min({failure, until_event, until_end});
    advance(next);
    if (next == until_end) {
      exposed_s_ += to_seconds(next) * in_use_;
      result_.finished = run_.work.count() > 0 && until_done().count() <= 0;
    } else if (next == until_event) {
      exposed_s_ += to_seconds(next) * in_use_;
      const Event due = *event;
      events_.erase(event);
      handle(due);
    } else {
      fail(take_failure());
    }
  }

  // Wall clock until all work is done, if nothing happens.
  Duration until_done() const {
    if (run_.work.count() == 0) return kForever;
    const Duration missing = run_.work - committed_.useful - writing_.useful - fresh_.useful;
    if (missing.count() <= 0) return {};
    const double part = speed_ / slowdown_;
    Duration work{std::llround(std::ceil(static_cast<double>(missing.count()) / part))};
    Duration wall{};
    if (phase_ >= run_.interval) {
      wall = cycle() - phase_;
    } else if (work > run_.interval - phase_) {
      work -= run_.interval - phase_;
      wall = cycle() - phase_;
    } else {
      return work;
    }
    const std::int64_t full = (work.count() - 1) / run_.interval.count();
    return wall + full * cycle() + (work - full * run_.interval);
  }

  Duration cycle() const { return run_.interval + run_.stall; }

  // Adds `count` times the work of `time`.
  void work(Worked& to, Duration time, std::int64_t count = 1) const {
    Duration useful = time;
    if (speed_ != 1 || slowdown_ != 1) {
      const auto all = static_cast<double>(time.count());
      useful = Duration{std::llround(all * speed_ / slowdown_)};
      const Duration degraded = std::min(time - useful, Duration{std::llround(all * (1 - speed_))});
      to.degraded += count * degraded;
      to.stragglers += count * (time - useful - degraded);
    }
    to.useful += count * useful;
  }

  // The job runs for `wall`, with checkpoints.
  void advance(Duration wall) {
    const Duration all = wall;
    now_ += wall;
    const Duration head = std::min(wall, cycle() - phase_);
    pass(head);
    wall -= head;
    if (wall >= cycle()) {
      const std::int64_t full = wall / cycle();
      committed_ += writing_;
      work(committed_, run_.interval, full - 1);
      writing_ = {};
      work(writing_, run_.interval);
      add(TimeUse::checkpoint, full * run_.stall);
      wall -= full * cycle();
    }
    if (wall.count() > 0) pass(wall);
    record(slowdown_ > 1 ? TimeUse::stragglers : missing_ > 0 ? TimeUse::degraded : TimeUse::useful, all);
  }

  // The same within one interval and its stall. A checkpoint is durable in the next one.
  void pass(Duration wall) {
    const Duration end = phase_ + wall;
    if (written_before_ && end >= run_.durable - run_.stall) commit();
    const Duration training = std::min(end, run_.interval) - std::min(phase_, run_.interval);
    work(fresh_, training);
    add(TimeUse::checkpoint, wall - training);
    if (phase_ < run_.interval && end >= run_.interval) {
      writing_ = fresh_;
      fresh_ = {};
    }
    phase_ = end;
    if (phase_ == cycle()) {
      phase_ = {};
      written_before_ = true;
    }
  }
  void commit() {
    committed_ += writing_;
    writing_ = {};
    written_before_ = false;
  }

  void lose(const Worked& work) {
    add(TimeUse::lost, work.sum());
    if (history_ != nullptr && !history_->failures.empty()) history_->failures.back().lost += work.sum();
  }
  void lose_since_checkpoint() {
    // The last checkpoint is from before the corruption.
    if (committed_.sum() <= correct_.sum())
      std::erase_if(events_, [](const Event& e) { return e.kind == EventKind::found; });
    lose(writing_);
    lose(fresh_);
    restart_interval();
  }
  void restart_interval() {
    writing_ = fresh_ = {};
    phase_ = {};
    written_before_ = false;
  }
  // A part of the current iteration.
  void lose_iteration() {
    Duration left = rounded(to_seconds(run_.step) * slowdown_ * delays_.uniform());
    for (Worked* work : {&fresh_, &writing_, &committed_}) {
      const Worked taken = work->take(left);
      lose(taken);
      left = std::max(Duration{}, left - taken.sum());
    }
  }
  // The age of the last checkpoint in storage is uniform, as seen by a Poisson process.
  void lose_since_storage() {
    lose_since_checkpoint();
    lose(committed_.take(rounded(to_seconds(run_.storage_interval) * delays_.uniform())));
  }

  void set_speed() {
    speed_ = missing_ > 0 ? run_.speed(lost_) : 1;
    slowdown_ = 1;
    for (const Event& event : events_) {
      if (event.kind == EventKind::slow_end) slowdown_ = std::max(slowdown_, run_.causes[event.cause].slowdown);
    }
  }

  void fail(std::size_t index) {
    const FailureCause& cause = run_.causes[index];
    switch (cause.kind) {
      case FailureKind::slow: slow_down(index); return set_speed();
      case FailureKind::corruption: return corrupt(cause, index);
      case FailureKind::planned: return stop(cause);
      case FailureKind::crash:
      case FailureKind::hang: return recover(cause);
    }
  }

  // Keeps only stragglers that no other one exceeds in both duration and slowdown.
  void slow_down(std::size_t index) {
    const Event slow{now_ + rounded(run_.causes[index].duration.draw(delays_)), EventKind::slow_end, 0, 0, index};
    const auto exceeds = [&](const Event& a, const Event& b) {
      return a.kind == b.kind && a.at >= b.at && run_.causes[a.cause].slowdown >= run_.causes[b.cause].slowdown;
    };
    if (std::any_of(events_.begin(), events_.end(), [&](const Event& event) { return exceeds(event, slow); })) return;
    std::erase_if(events_, [&](const Event& event) { return exceeds(slow, event); });
    events_.push_back(slow);
  }

  void corrupt(const FailureCause& cause, std::size_t index) {
    const bool already =
        std::any_of(events_.begin(), events_.end(), [](const Event& event) { return event.kind == EventKind::found; });
    if (already) return;
    correct_ = committed_;
    events_.push_back({now_ + rounded(cause.duration.draw(delays_)), EventKind::found, 0, 0, index});
  }

  void stop(const FailureCause& cause) {
    spend(TimeUse::planned, run_.stall);
    keep_work();
    spend(TimeUse::planned, cause.duration);
    spend(TimeUse::planned, run_.init + run_.load);
  }
  void keep_work() {
    committed_ += writing_;
    committed_ += fresh_;
    restart_interval();
  }

  void recover(const FailureCause& cause) {
    const bool copies_lost = cause.copies_survive < 1 && delays_.uniform() > cause.copies_survive;
    if (copies_lost) {
      lose_since_storage();
    } else if (is_live()) {
      lose_iteration();
    } else {
      lose_since_checkpoint();
    }
    spend(TimeUse::detection, cause.detection);
    spend(TimeUse::diagnosis, cause.diagnosis);
    const Duration load = copies_lost ? run_.storage_load : run_.load;
    take_out(cause);
    if (is_live() && !copies_lost) {
      spend(TimeUse::init, run_.reconfigure);
    } else {
      restart(load);
    }
  }

  // Replaces broken nodes, or continues without their replicas.
  void take_out(const FailureCause& cause) {
    if (continues_without(run_.policy) || (shrinks(run_.policy) && pool_.free(now_) < cause.nodes)) {
      leave(cause);
    } else {
      replace(cause);
    }
  }

  // Returns when the nodes that replace the broken ones are there.
  Duration replaced_at(const FailureCause& cause) {
    Duration ready = now_;
    for (int node = 0; node < cause.nodes; ++node) pool_.repair(now_, rounded(cause.repair.draw(repairs_)));
    for (int node = 0; node < cause.nodes; ++node) ready = std::max(ready, pool_.take(now_));
    return ready;
  }
  void replace(const FailureCause& cause) {
    if (cause.nodes == 0) return;
    spend(TimeUse::waiting, replaced_at(cause) - now_);
    spend(TimeUse::replacement, run_.replacement);
  }

  void leave(const FailureCause& cause) {
    const int lost = std::min(cause.replicas, run_.replicas - missing_);
    const int place = run_.places > 1 ? static_cast<int>(std::ceil(delays_.uniform() * run_.places)) - 1 : 0;
    Duration back = replaced_at(cause);
    if (cause.nodes > 0) back += rounded(run_.replacement.draw(delays_));
    if (continues_without(run_.policy)) back += run_.init + run_.load;  // beside the others
    events_.push_back({back, EventKind::rejoin, lost, place, 0});
    lose_replicas(place, lost, 1);
    while (!ended() && (missing_ >= run_.replicas || run_.speed(lost_) <= 0)) wait_for_replica();
    set_speed();
  }
  void lose_replicas(int place, int replicas, int sign) {
    for (int i = 0; i < replicas; ++i) lost_[static_cast<std::size_t>(run_.place_of(place, i))] += sign;
    missing_ += sign * replicas;
    in_use_ = static_cast<double>(run_.replicas - missing_) / run_.replicas;
  }
  void wait_for_replica() {
    auto first = events_.end();
    for (auto event = events_.begin(); event != events_.end(); ++event) {
      if (event->kind == EventKind::rejoin && (first == events_.end() || event->at < first->at)) first = event;
    }
    spend(TimeUse::waiting, first->at - now_);
    lose_replicas(first->place, first->replicas, -1);
    events_.erase(first);
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::slow_end: break;
      case EventKind::rejoin:
        lose_replicas(event.place, event.replicas, -1);
        rejoin();
        break;
      case EventKind::found: find_corruption(run_.causes[event.cause]); break;
    }
    set_speed();
  }
  void rejoin() {
    if (is_live()) return spend(TimeUse::init, run_.reconfigure);
    spend(TimeUse::checkpoint, run_.stall);
    keep_work();
    restart(run_.load);
  }
  void find_corruption(const FailureCause& cause) {
    Worked wrong = committed_;
    for (auto member : {&Worked::useful, &Worked::degraded, &Worked::stragglers}) {
      wrong.*member = std::max(Duration{}, wrong.*member - correct_.*member);
      committed_.*member -= wrong.*member;
    }
    lose(wrong);
    lose_since_checkpoint();
    spend(TimeUse::detection, cause.detection);
    spend(TimeUse::diagnosis, cause.diagnosis);
    replace(cause);
    restart(run_.load);
  }

  // Starts the processes and loads a checkpoint, until that succeeds.
  void restart(Duration load) {
    const Duration whole = run_.init + load;
    Duration done{};
    while (!ended() && done < whole) {
      const Duration failure = until_failure();
      const Duration end = std::min(whole, done + failure);
      const Duration init = std::min(end, run_.init) - std::min(done, run_.init);
      const Duration begin = now_;
      spend(TimeUse::init, init);
      spend(TimeUse::load, end - done - init);
      if (end == whole || ended()) {
        exposed_s_ += to_seconds(now_ - begin) * in_use_;
        return;
      }
      done = end;
      const FailureCause& cause = run_.causes[take_failure()];
      if (cause.kind != FailureKind::crash && cause.kind != FailureKind::hang) continue;  // nothing to lose yet
      take_out(cause);
      done = {};
    }
  }

  const GoodputRun& run_;
  TrialHistory* history_;
  FailureTimes times_;
  RandomStream repairs_;
  RandomStream delays_;
  NodePool pool_;
  TrialResult result_;
  Duration now_{};
  double exposed_s_ = 0;  // time during which failures occur, weighted by the replicas in use
  std::vector<Event> events_;
  std::vector<int> lost_;  // replicas by place
  int missing_ = 0;        // their sum
  double in_use_ = 1;      // fraction of the replicas
  double speed_ = 1;
  double slowdown_ = 1;
  Duration phase_{};             // since the begin of the interval
  Worked fresh_;                 // since the last checkpoint
  Worked writing_;               // in the last checkpoint, while it is not durable
  bool written_before_ = false;  // that checkpoint was taken before this interval
  Worked committed_;
  Worked correct_;  // committed before the corruption that is not found yet
};

}  // namespace

TrialResult simulate_trial(const GoodputRun& run, std::uint64_t seed, std::uint64_t trial, TrialHistory* history) {
  return Trial(run, seed, trial, history).result();
}

}  // namespace sluice::sim
