#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/schedule/schedule.h"
#include "model/units.h"

namespace sluice::bench::accuracy {

// Times and memory of one rank's ops on one microbatch: F adds `activation`, I releases all but `kept` of it, W
// releases `kept`. Memory is in bytes or in any other unit of `limit`, which the rank never exceeds.
struct RankBudget {
  Duration forward{};
  Duration input_gradient{};
  Duration weight_gradient{};
  std::int64_t activation = 1;
  std::int64_t kept = 1;
  std::int64_t limit = 0;
};

// A pipeline with one stage per rank, in model order.
struct ZeroBubbleProblem {
  int num_microbatches = 1;
  std::vector<RankBudget> ranks;
  Duration hop{};         // latency of a point-to-point transfer; occupies neither rank
  MicrobatchShape shape;  // of every microbatch; one slice
};

// Options of the heuristic of Qi et al. 2023 (arXiv:2401.10241), section 3.1, whose search tries all combinations.
// `by_arrival` is an addition for limits below that of 1F1B; with it, `delay_first_gradient` has no effect.
struct ZeroBubbleRules {
  bool delay_first_gradient = false;  // warm up with one forward more than fits before the first input gradient
  bool hold_back_forwards = false;    // a rank two forwards ahead of the next skips one where that adds no bubble
  bool fill_every_gap = false;        // run a W in every gap, also in one shorter than the W
  bool by_arrival = false;            // no rounds: a rank runs the op whose input arrives first
};

enum class ZeroBubbleGoal : std::uint8_t {
  span,      // ranks do not wait for each other at the optimizer step (the paper's post-validation)
  makespan,  // ranks wait for each other at the optimizer step
};

struct ZeroBubblePlan {
  Schedule schedule;
  std::string rule;  // "search", or the name of the family where no searched schedule is better
  Duration span{};
  Duration makespan{};
  Duration least_span{};      // lower bound over all schedules with one stage per rank and any memory
  Duration least_makespan{};  // likewise
};

// Builds a schedule with the paper's heuristic: forwards until the first gradient arrives, then forwards and input
// gradients alternately, and weight gradients where a rank would wait or its memory is full. Throws InputError as
// `plan_zero_bubble`.
Schedule zero_bubble_schedule(const ZeroBubbleProblem& problem, const ZeroBubbleRules& rules);

// Returns the best schedule by `goal`, ties broken by the other goal, over all combinations of the rules and, where
// they keep within the limits, zb-h1 and zb-h2. Throws InputError for no ranks or microbatches, negative times or
// bytes, sums of them past 64 bits, a limit below one activation, kept above activation, or more than one slice.
ZeroBubblePlan plan_zero_bubble(const ZeroBubbleProblem& problem, ZeroBubbleGoal goal = ZeroBubbleGoal::span);

// Returns the peak memory of `rank` under `budget`, which depends only on the order of its ops.
std::int64_t peak_held(const Schedule& schedule, int rank, const RankBudget& budget);

// A cost model with the problem's times, for schedules with one stage per rank. `problem` must outlive it.
class ZeroBubbleCost : public CostModel {
 public:
  explicit ZeroBubbleCost(const ZeroBubbleProblem& problem) : problem_(problem) {}
  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;

 private:
  const ZeroBubbleProblem& problem_;
};

}  // namespace sluice::bench::accuracy
