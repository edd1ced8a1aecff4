#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// Lower bounds of the differences of points in time: at(a, b) <= time(b) - time(a).
class Zone {
 public:
  static constexpr std::int64_t kNone = -(std::int64_t{1} << 60);

  explicit Zone(std::size_t points = 0);

  std::size_t size() const { return points_; }
  std::int64_t at(std::size_t a, std::size_t b) const { return least_[a * points_ + b]; }
  void raise(std::size_t a, std::size_t b, std::int64_t least);

  // Makes all bounds as tight as paths of bounds imply. Returns false if the bounds contradict each other.
  bool close();
  // Raises one bound of a closed zone, and closes it again.
  bool tighten(std::size_t a, std::size_t b, std::int64_t least);

  // The bounds among these points. Exact if the zone is closed.
  Zone projected(std::span<const std::size_t> points) const;
  // Whether each solution of `other` is one of this zone. Both must be closed.
  bool includes(const Zone& other) const;
  bool operator==(const Zone&) const = default;
  auto operator<=>(const Zone&) const = default;  // NOLINT(modernize-use-nullptr)

 private:
  std::size_t points_;
  std::vector<std::int64_t> least_;
};

// The ops that a schedule repeats every period, which are those of one or more microbatches. Times are in nanoseconds.
struct CyclicProblem {
  struct CyclicOp {
    OpKind kind = OpKind::F;
    int stage = 0;
    int microbatch = 0;  // of the period
    int rank = 0;
    std::int64_t duration = 0;
    std::int64_t takes = 0;  // as in OpTable
    std::int64_t keeps = 0;
  };
  // The minimal time from the start of an op to that of another, which is of an earlier period if `periods` is
  // negative.
  struct Delay {
    std::size_t from = 0;
    std::size_t to = 0;
    std::int64_t least = 0;
    std::int64_t periods = 0;
  };

  int microbatches = 1;  // per period
  int num_ranks = 1;
  std::vector<CyclicOp> ops;
  std::vector<Delay> delays;
  std::vector<std::vector<std::size_t>> of_rank;   // ops, by rank
  std::vector<std::vector<std::size_t>> of_stage;  // F, I (or B), W (if split), by stage and microbatch
  std::vector<std::int64_t> limit;                 // by rank

  // Bounds between the starts in every schedule with this period; nothing if they show that there is none. They include
  // those of the time for which results are held: the mean of the bytes held is at most the limit (Little's law).
  std::optional<Zone> bounds(std::int64_t period) const;
  // No period is below this: the work per rank, and what its ops hold for as short as possible, over its limit.
  std::int64_t simple_bound() const;

 private:
  // Bytes times nanoseconds, which exceed 64 bits.
  __extension__ using Integral = __int128;
  // Of a period: what the results of a rank leave free if they are held as briefly as possible.
  Integral room(int rank, const Zone& zone, std::int64_t period) const;
  void bound_lifetimes(std::int64_t period, Zone& zone) const;
};

// The cyclic problem with `microbatches` per period. Transfers delay their readers, but do not wait for each other.
// Returns nothing for what is not modeled: slices, joint blocks that save time, transfers that block, limits above 256
// microbatches, more than 128 stages, an op without duration, and a choice between split and whole backwards of which
// neither is always best.
std::optional<CyclicProblem> cyclic_problem(const PlacedProblem& problem, int microbatches);

}  // namespace sluice::sim
