#include "traces/measured/measured_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/median.h"
#include "model/to_size.h"
#include "traces/chrome/trace_events.h"

namespace sluice::traces {
namespace {

constexpr std::size_t kMostNotes = 8;
constexpr Duration kUsualOverlap = std::chrono::microseconds(50);  // of passes; left as it is
constexpr int kMostWorkers = 1 << 20;

bool by_time(const MeasuredOp& a, const MeasuredOp& b) {
  return std::tuple(a.step, a.worker, a.start, a.end, a.kind, a.number, a.microbatch) <
         std::tuple(b.step, b.worker, b.start, b.end, b.kind, b.number, b.microbatch);
}

// Notes of one sort, of which the first ones are listed.
class Notes {
 public:
  void add(std::string note) {
    if (notes_.size() < kMostNotes) notes_.push_back(std::move(note));
    ++count_;
  }
  void move_to(std::vector<std::string>& out) {
    const std::size_t more = count_ - notes_.size();
    for (std::string& note : notes_) out.push_back(std::move(note));
    if (more > 0) out.push_back(fmt::format("and {} more", more));
  }
  const std::string& front() const { return notes_.front(); }
  bool empty() const { return count_ == 0; }

 private:
  std::vector<std::string> notes_;
  std::size_t count_ = 0;
};

// Repaired ends of ops.
class Repairs {
 public:
  void end_at(MeasuredOp& op, Duration end) {
    if (op.end == end) return;
    ++count_;
    most_ = std::max(most_, std::chrono::abs(op.end - end));
    op.end = end;
  }
  void note(std::vector<std::string>& out, const char* what, const char* how) const {
    if (count_ == 0) return;
    out.push_back(fmt::format("{} {}, by at most {:.3f} ms, the resolution of a clock: {}", count_, what,
                              to_seconds(most_) * 1e3, how));
  }

 private:
  std::int64_t count_ = 0;
  Duration most_{};
};

// The number of forwards and of backwards (B or I) of a worker in a step.
struct Passes {
  int forwards = 0;
  int backwards = 0;
  friend bool operator==(const Passes&, const Passes&) = default;
  friend bool operator<(const Passes& a, const Passes& b) {
    return std::tie(a.forwards, a.backwards) < std::tie(b.forwards, b.backwards);
  }
};

class Builder {
 public:
  Builder(std::deque<RawMeasuredOp> raw, std::string source) : raw_(std::move(raw)), source_(std::move(source)) {}

  MeasuredRun run(std::string format) {
    run_.format = std::move(format);
    number_workers();
    drop_incomplete();
    repair_overlaps();
    number_microbatches();
    set_times();
    arrange_ops(run_);
    describe_ops();
    notes_.move_to(run_.notes);
    negative_.note(run_.notes, "durations below 0", "counted as 0");
    overlaps_.note(run_.notes, "passes that overlap the next one", "ended where it begins");
    return std::move(run_);
  }

 private:
  // Replicas keep their order; those without an op of some rank are left out.
  void number_workers() {
    if (raw_.empty()) throw InputError(source_ + ": expected ops of a pipeline, got none");
    std::set<std::tuple<int, int, int>> seen;
    std::set<std::int64_t> steps;
    for (const RawMeasuredOp& raw : raw_) {
      seen.insert({raw.replica, raw.rank, raw.shard});
      steps.insert(raw.step);
      run_.ranks = std::max(run_.ranks, raw.rank + 1);
      run_.shards = std::max(run_.shards, raw.shard + 1);
    }
    std::map<int, int> of_replica;
    for (const auto& [replica, rank, shard] : seen) ++of_replica[replica];
    std::map<int, int> number;
    for (const auto& [replica, count] : of_replica) {
      if (count == run_.ranks * run_.shards) {
        number.emplace(replica, static_cast<int>(number.size()));
        continue;
      }
      for (int rank = 0; rank < run_.ranks; ++rank) {
        for (int shard = 0; shard < run_.shards; ++shard) {
          if (seen.contains({replica, rank, shard})) continue;
          notes_.add(fmt::format("replica {} has no ops of rank {}: left out", replica, rank));
          rank = run_.ranks;
          break;
        }
      }
    }
    if (number.empty()) throw InputError(fmt::format("{}: no replica is complete: {}", source_, notes_.front()));
    run_.replicas = static_cast<int>(number.size());
    if (std::int64_t{run_.replicas} * run_.ranks * run_.shards > kMostWorkers) {
      throw InputError(fmt::format("{}: expected at most {} workers", source_, kMostWorkers));
    }
    run_.steps.assign(steps.begin(), steps.end());
    run_.ops.reserve(raw_.size());
    for (; !raw_.empty(); raw_.pop_front()) {  // frees the memory of those that were copied
      RawMeasuredOp& raw = raw_.front();
      const auto found = number.find(raw.replica);
      if (found == number.end()) continue;
      raw.op.step = static_cast<std::int32_t>(std::lower_bound(run_.steps.begin(), run_.steps.end(), raw.step) -
                                              run_.steps.begin());
      raw.op.worker = run_.worker(found->second, raw.rank, raw.shard);
      run_.ops.push_back(raw.op);
    }
    for (MeasuredOp& op : run_.ops) negative_.end_at(op, std::max(op.start, op.end));
  }

  void repair_overlaps() {
    arrange_ops(run_);
    MeasuredOp* before = nullptr;
    for (MeasuredOp& op : run_.ops) {
      if (!is_pass(op.kind)) continue;
      const bool follows = before != nullptr && cell(*before) == cell(op);
      if (follows && before->end - op.start > kUsualOverlap) overlaps_.end_at(*before, op.start);
      before = &op;
    }
  }

  std::size_t cell(const MeasuredOp& op) const {
    return static_cast<std::size_t>(op.step) * static_cast<std::size_t>(run_.workers()) +
           static_cast<std::size_t>(op.worker);
  }

  void drop_incomplete() {
    arrange_ops(run_);
    std::map<Passes, int> votes;
    std::vector<Passes> passes(run_.first.size() - 1);
    for (const MeasuredOp& op : run_.ops) {
      passes[cell(op)].forwards += op.kind == MeasuredKind::forward ? 1 : 0;
      passes[cell(op)].backwards +=
          op.kind == MeasuredKind::backward || op.kind == MeasuredKind::input_gradient ? 1 : 0;
    }
    for (const Passes& each : passes) ++votes[each];
    const Passes usual = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
                           return a.second < b.second;
                         })->first;
    if (usual.forwards == 0 || usual.backwards == 0) {
      throw InputError(fmt::format("{}: expected forwards and backwards, got {} and {} per rank and step", source_,
                                   usual.forwards, usual.backwards));
    }
    for (const MeasuredOp& op : run_.ops) run_.chunks = std::max(run_.chunks, op.chunk + 1);
    if (usual.forwards % run_.chunks != 0) {
      throw InputError(fmt::format("{}: {} forwards per rank and step: expected a multiple of {} chunks", source_,
                                   usual.forwards, run_.chunks));
    }
    run_.microbatches = usual.forwards / run_.chunks;
    std::vector<char> keep(run_.steps.size(), 1);
    for (int step = 0; step < std::ssize(run_.steps); ++step) {
      const std::string why = defect_of(step, passes, usual);
      if (why.empty()) continue;
      keep[static_cast<std::size_t>(step)] = 0;
      notes_.add(fmt::format("step {}: {}: left out", run_.steps[static_cast<std::size_t>(step)], why));
    }
    if (std::find(keep.begin(), keep.end(), 1) == keep.end()) {
      throw InputError(fmt::format("{}: no step is complete: {}", source_, notes_.front()));
    }
    std::vector<std::int32_t> number(keep.size(), -1);
    std::vector<std::int64_t> steps;
    for (std::size_t i = 0; i < keep.size(); ++i) {
      if (keep[i] == 0) continue;
      number[i] = static_cast<std::int32_t>(steps.size());
      steps.push_back(run_.steps[i]);
    }
    std::erase_if(run_.ops, [&](const MeasuredOp& op) { return number[static_cast<std::size_t>(op.step)] < 0; });
    for (MeasuredOp& op : run_.ops) op.step = number[static_cast<std::size_t>(op.step)];
    run_.steps = std::move(steps);
  }

  // The numbers of the microbatches of a replica in a step, ascending.
  std::vector<std::int32_t> microbatches_of(int step, int replica) const {
    std::vector<std::int32_t> numbers;
    for (int worker = run_.worker(replica, 0); worker < run_.worker(replica + 1, 0); ++worker) {
      for (const MeasuredOp& op : run_.of(step, worker)) {
        if (is_pass(op.kind) && op.microbatch >= 0) numbers.push_back(op.microbatch);
      }
    }
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    return numbers;
  }

  // Counts microbatches from 0 in each step and replica; passes without one by their order.
  void number_microbatches() {
    arrange_ops(run_);
    for (int step = 0; step < std::ssize(run_.steps); ++step) {
      for (int replica = 0; replica < run_.replicas; ++replica) {
        const std::vector<std::int32_t> numbers = microbatches_of(step, replica);
        for (int worker = run_.worker(replica, 0); worker < run_.worker(replica + 1, 0); ++worker) {
          std::map<std::pair<MeasuredKind, int>, std::int32_t> next;
          const std::size_t at = to_size(step) * to_size(run_.workers()) + to_size(worker);
          for (std::size_t i = run_.first[at]; i < run_.first[at + 1]; ++i) {
            MeasuredOp& op = run_.ops[i];
            const auto found = std::lower_bound(numbers.begin(), numbers.end(), op.microbatch);
            if (op.microbatch >= 0) {
              op.microbatch = found != numbers.end() && *found == op.microbatch
                                  ? static_cast<std::int32_t>(found - numbers.begin())
                                  : -1;
            } else if (is_pass(op.kind)) {
              op.microbatch = next[{op.kind, op.chunk}]++;
            }
          }
        }
      }
    }
  }

  std::string defect_of(int step, const std::vector<Passes>& passes, const Passes& usual) const {
    for (int replica = 0; replica < run_.replicas; ++replica) {
      const std::size_t count = microbatches_of(step, replica).size();
      if (count > to_size(run_.microbatches)) {
        return fmt::format("replica {} has {} different microbatches, {} per rank", replica, count, run_.microbatches);
      }
    }
    for (int worker = 0; worker < run_.workers(); ++worker) {
      const std::size_t at =
          static_cast<std::size_t>(step) * static_cast<std::size_t>(run_.workers()) + static_cast<std::size_t>(worker);
      if (passes[at] != usual) {
        return fmt::format("{} has {} forwards and {} backwards, others {} and {}", run_.name_of(worker),
                           passes[at].forwards, passes[at].backwards, usual.forwards, usual.backwards);
      }
      const MeasuredOp* before = nullptr;
      for (const MeasuredOp& op : run_.of(step, worker)) {
        if (!is_pass(op.kind)) continue;
        if (before != nullptr && op.start + kClockResolution < before->end) {
          return fmt::format("{}: {} and {} overlap by {:.3f} ms", run_.name_of(worker),
                             kMeasuredKindNames[static_cast<std::size_t>(before->kind)],
                             kMeasuredKindNames[static_cast<std::size_t>(op.kind)],
                             to_seconds(before->end - op.start) * 1e3);
        }
        before = &op;
      }
    }
    return {};
  }

  void set_times() {
    std::vector<Duration> begin(run_.steps.size(), Duration::max());
    for (const MeasuredOp& op : run_.ops) {
      Duration& least = begin[static_cast<std::size_t>(op.step)];
      least = std::min(least, op.start);
    }
    for (MeasuredOp& op : run_.ops) {
      op.start -= begin[static_cast<std::size_t>(op.step)];
      op.end -= begin[static_cast<std::size_t>(op.step)];
    }
  }

  void describe_ops() {
    for (const MeasuredOp& op : run_.ops) {
      run_.has_transfers |= is_pipeline_transfer(op.kind);
    }
  }

  std::deque<RawMeasuredOp> raw_;
  std::string source_;
  MeasuredRun run_;
  Notes notes_;
  Repairs negative_;
  Repairs overlaps_;
};

}  // namespace

std::optional<MeasuredKind> measured_kind(std::string_view name) {
  const auto* const found = std::find(kMeasuredKindNames.begin(), kMeasuredKindNames.end(), name);
  if (found == kMeasuredKindNames.end()) return std::nullopt;
  return static_cast<MeasuredKind>(found - kMeasuredKindNames.begin());
}

std::span<const MeasuredOp> MeasuredRun::of(int step, int worker) const {
  const std::size_t at =
      static_cast<std::size_t>(step) * static_cast<std::size_t>(workers()) + static_cast<std::size_t>(worker);
  return std::span(ops).subspan(first[at], first[at + 1] - first[at]);
}

std::string MeasuredRun::name_of(int worker) const {
  std::string name = replicas > 1 ? fmt::format("replica {} rank {}", replica_of(worker), rank_of(worker))
                                  : fmt::format("rank {}", rank_of(worker));
  if (shards > 1) name += fmt::format(" tensor rank {}", shard_of(worker));
  return name;
}

void arrange_ops(MeasuredRun& run) {
  if (!std::is_sorted(run.ops.begin(), run.ops.end(), by_time)) std::sort(run.ops.begin(), run.ops.end(), by_time);
  const std::size_t workers = to_size(run.workers());
  run.first.assign(run.steps.size() * workers + 1, 0);
  std::array<std::int32_t, kNumMeasuredKinds> next{};
  for (std::size_t i = 0; i < run.ops.size(); ++i) {
    MeasuredOp& op = run.ops[i];
    ++run.first[to_size(op.step) * workers + to_size(op.worker) + 1];
    if (i == 0 || run.ops[i - 1].worker != op.worker || run.ops[i - 1].step != op.step) next = {};
    op.number = next[to_size(static_cast<int>(op.kind))]++;
  }
  for (std::size_t i = 1; i < run.first.size(); ++i) run.first[i] += run.first[i - 1];
}

void drop_warm_up(MeasuredRun& run) {
  constexpr double kWarmUp = 1.5;
  if (run.steps.size() < 2) return;
  std::vector<Duration> times(run.steps.size(), Duration::zero());
  for (const MeasuredOp& op : run.ops) times[to_size(op.step)] = std::max(times[to_size(op.step)], op.end);
  const double first = to_seconds(times.front());
  const double usual = to_seconds(upper_median(std::vector<Duration>(times.begin() + 1, times.end())));
  if (first <= kWarmUp * usual) return;
  run.notes.push_back(fmt::format("step {} took {:.3f} s, {:.1f} times the median of the others: a warm-up, left out",
                                  run.steps.front(), first, first / usual));
  std::erase_if(run.ops, [](const MeasuredOp& op) { return op.step == 0; });
  for (MeasuredOp& op : run.ops) --op.step;
  run.steps.erase(run.steps.begin());
  arrange_ops(run);
}

MeasuredRun measured_run(std::deque<RawMeasuredOp> ops, std::string format, const std::string& source) {
  return Builder(std::move(ops), source).run(std::move(format));
}

}  // namespace sluice::traces
