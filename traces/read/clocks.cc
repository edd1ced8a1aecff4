#include "traces/read/clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "model/to_size.h"
#include "traces/text/quantity_text.h"

namespace sluice::traces {
namespace {

using Ns = std::int64_t;
constexpr Ns kNever = std::numeric_limits<Ns>::max() / 4;

// Difference constraints: offset of q - offset of r <= at(q, r).
class Bounds {
 public:
  explicit Bounds(int num_ranks) : n_(num_ranks), bounds_(to_size(num_ranks) * to_size(num_ranks), kNever) {
    for (int r = 0; r < n_; ++r) at(r, r) = 0;
  }
  int size() const { return n_; }
  Ns& at(int q, int r) { return bounds_[to_size(q) * to_size(n_) + to_size(r)]; }
  Ns at(int q, int r) const { return bounds_[to_size(q) * to_size(n_) + to_size(r)]; }
  void tighten(int q, int r, Ns bound) { at(q, r) = std::min(at(q, r), bound); }

  // Computes the closure of the bounds (Floyd-Warshall). Returns false if they are infeasible.
  bool close() {
    for (int k = 0; k < n_; ++k) {
      for (int q = 0; q < n_; ++q) {
        if (at(q, k) == kNever) continue;
        for (int r = 0; r < n_; ++r) {
          if (at(k, r) != kNever) tighten(q, r, at(q, k) + at(k, r));
        }
      }
      for (int q = 0; q < n_; ++q) {
        if (at(q, q) < 0) return false;
      }
    }
    return true;
  }

 private:
  int n_;
  std::vector<Ns> bounds_;
};

// --- by messages --------------------------------------------------------------------------------------------------

// Returns offsets along the pairs of ranks with the shortest round trips; empty if messages do not connect all ranks.
std::vector<Duration> offsets_of(int num_ranks, std::span<const MatchedMessage> messages) {
  Bounds delay(num_ranks);  // at(from, to): the shortest apparent delay of a message
  for (const MatchedMessage& message : messages) {
    if (message.from != message.to) {
      delay.tighten(message.from, message.to, (message.received - message.sent).count());
    }
  }
  std::vector<Duration> offsets(to_size(num_ranks), Duration::zero());
  std::vector<char> joined(to_size(num_ranks), 0);
  joined[0] = 1;
  for (int count = 1; count < num_ranks; ++count) {
    Ns least = kNever;
    int from = -1;
    int to = -1;
    for (int q = 0; q < num_ranks; ++q) {
      for (int r = 0; r < num_ranks && joined[q] != 0; ++r) {
        if (joined[r] != 0 || delay.at(q, r) == kNever || delay.at(r, q) == kNever) continue;
        if (const Ns round_trip = delay.at(q, r) + delay.at(r, q); round_trip < least)
          std::tie(least, from, to) = std::tuple(round_trip, q, r);
      }
    }
    if (from < 0) return {};
    offsets[to] = offsets[from] + Duration{(delay.at(to, from) - delay.at(from, to)) / 2};
    joined[to] = 1;
  }
  return offsets;
}

// --- by causality -------------------------------------------------------------------------------------------------

// Returns, per pair of ranks, the tightest bound on their clocks that an op and its dependency on the other rank imply.
Bounds bounds_of(int num_ranks, std::span<const OpRow> rows) {
  // Rank and end of each forward, and of each backward (B, I).
  struct Done {
    int rank;
    Duration end;
  };
  using Key = std::tuple<int, int, int>;  // stage, microbatch, slice
  std::map<Key, Done> forwards;
  std::map<Key, Done> backwards;
  const auto each_op = [&](const auto& visit) {
    for (const OpRow& row : rows) {
      if (!occupies_rank(row.kind) || row.kind == RowKind::recompute || row.kind == RowKind::optimizer) continue;
      visit(row, row.op);
      if (row.kind == RowKind::joint) visit(row, row.partner);
    }
  };
  each_op([&](const OpRow& row, const RowOp& op) {
    const Done done{row.rank, row.end};
    if (op.kind == OpKind::F) forwards[{op.stage, op.microbatch, op.slice}] = done;
    if (op.kind == OpKind::B || op.kind == OpKind::I) backwards[{op.stage, op.microbatch, op.slice}] = done;
  });
  Bounds bounds(num_ranks);
  each_op([&](const OpRow& row, const RowOp& op) {
    if (op.kind == OpKind::W) return;
    const bool forward = op.kind == OpKind::F;
    const auto& producers = forward ? forwards : backwards;
    const auto need = producers.find({forward ? op.stage - 1 : op.stage + 1, op.microbatch, op.slice});
    if (need == producers.end() || need->second.rank == row.rank) return;
    // end of q + offset of q <= start of r + offset of r
    bounds.tighten(need->second.rank, row.rank, (row.start - need->second.end).count());
  });
  return bounds;
}

// Closes the bounds relaxed by `slack`, with equal offsets for the ranks in `fixed`. Returns false if infeasible.
bool closed(const Bounds& bounds, Ns slack, const std::vector<char>& fixed, Bounds& out) {
  out = bounds;
  int first = -1;
  for (int r = 0; r < bounds.size(); ++r) {
    for (int q = 0; q < bounds.size(); ++q) {
      if (q != r && out.at(q, r) != kNever) out.at(q, r) += slack;
    }
    if (fixed[r] == 0) continue;
    if (first >= 0) {
      out.tighten(first, r, 0);
      out.tighten(r, first, 0);
    }
    if (first < 0) first = r;
  }
  return out.close();
}

// Returns the smallest slack for which feasible offsets exist.
Ns least_slack(const Bounds& bounds) {
  const std::vector<char> none(to_size(bounds.size()), 0);
  Bounds scratch(bounds.size());
  if (closed(bounds, 0, none, scratch)) return 0;
  Ns low = 0;  // infeasible
  Ns high = 1;
  while (!closed(bounds, high, none, scratch)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const Ns middle = low + (high - low) / 2;
    (closed(bounds, middle, none, scratch) ? high : low) = middle;
  }
  return high;
}

// Chooses the ranks whose clocks are kept, greedily by number of violations, while the problem stays feasible.
std::vector<char> fixed_ranks(const Bounds& bounds, Ns slack) {
  std::vector<int> violations(to_size(bounds.size()), 0);
  for (int q = 0; q < bounds.size(); ++q) {
    for (int r = 0; r < bounds.size(); ++r) {
      if (q == r || bounds.at(q, r) == kNever || bounds.at(q, r) + slack >= 0) continue;
      ++violations[q];
      ++violations[r];
    }
  }
  std::vector<int> order(to_size(bounds.size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return violations[a] < violations[b]; });
  std::vector<char> fixed(to_size(bounds.size()), 0);
  Bounds scratch(bounds.size());
  for (const int rank : order) {
    fixed[rank] = 1;
    if (!closed(bounds, slack, fixed, scratch)) fixed[rank] = 0;
  }
  return fixed;
}

// Returns offsets within closed bounds: 0 for fixed ranks (`done`), the middle of the feasible interval for the others,
// those with the smallest interval first.
std::vector<Duration> placed(const Bounds& bounds, std::vector<char> done) {
  std::vector<Ns> offsets(done.size(), 0);
  const auto room = [&](int r) {
    std::pair<Ns, Ns> out{-kNever, kNever};
    for (int q = 0; q < bounds.size(); ++q) {
      if (done[q] == 0) continue;
      if (bounds.at(r, q) != kNever) out.second = std::min(out.second, offsets[q] + bounds.at(r, q));
      if (bounds.at(q, r) != kNever) out.first = std::max(out.first, offsets[q] - bounds.at(q, r));
    }
    return out;
  };
  for (std::size_t left = static_cast<std::size_t>(std::count(done.begin(), done.end(), 0)); left > 0; --left) {
    int next = -1;
    std::pair<Ns, Ns> next_room;
    for (int r = 0; r < bounds.size(); ++r) {
      if (done[r] != 0) continue;
      const auto here = room(r);
      if (next >= 0 && here.second - here.first >= next_room.second - next_room.first) continue;
      next = r;
      next_room = here;
    }
    const auto [low, high] = next_room;
    const bool bounded = low > -kNever && high < kNever;
    offsets[next] = bounded ? low + (high - low) / 2 : std::clamp(Ns{0}, low, high);
    done[next] = 1;
  }
  std::vector<Duration> out;
  for (const Ns offset : offsets) out.emplace_back(offset);
  return out;
}

}  // namespace

ClockAlignment align_clocks(int num_ranks, std::span<const OpRow> rows, std::span<const MatchedMessage> messages) {
  ClockAlignment alignment{.offsets = std::vector<Duration>(to_size(num_ranks), Duration::zero())};
  if (num_ranks < 2) return alignment;
  if (std::vector<Duration> offsets = offsets_of(num_ranks, messages); !offsets.empty()) {
    alignment.by = ClockAlignment::By::messages;
    alignment.offsets = std::move(offsets);
    alignment.num_messages = std::ssize(messages);
    return alignment;
  }
  const Bounds bounds = bounds_of(num_ranks, rows);
  const Ns slack = least_slack(bounds);
  const std::vector<char> fixed = fixed_ranks(bounds, slack);
  if (slack == 0 && std::count(fixed.begin(), fixed.end(), 0) == 0) return alignment;
  Bounds all(num_ranks);
  closed(bounds, slack, fixed, all);
  alignment.by = ClockAlignment::By::causality;
  alignment.offsets = placed(all, fixed);
  alignment.remaining = Duration{slack};
  return alignment;
}

std::string ClockAlignment::describe() const {
  if (by == By::none) return "clocks not adjusted: no op starts before its dependencies end";
  std::string out = by == By::messages ? fmt::format("clocks aligned by {} matched sends and receives", num_messages)
                                       : "clocks aligned by dependencies of ops";
  constexpr std::size_t kMaxNamed = 8;
  std::size_t moved = 0;
  for (std::size_t r = 0; r < offsets.size(); ++r) {
    if (offsets[r] == Duration::zero()) continue;
    if (++moved > kMaxNamed) continue;
    fmt::format_to(std::back_inserter(out), "{} rank {} {}{}", moved == 1 ? ":" : ",", r,
                   offsets[r] < Duration::zero() ? "-" : "+", time_text(std::chrono::abs(offsets[r])));
  }
  if (moved == 0) out += ": all offsets are 0";
  if (moved > kMaxNamed) fmt::format_to(std::back_inserter(out), ", and {} more", moved - kMaxNamed);
  if (remaining > Duration::zero()) {
    fmt::format_to(std::back_inserter(out), "; ops still start up to {} before their dependencies end, for any offsets",
                   time_text(remaining));
  }
  return out;
}

}  // namespace sluice::traces
