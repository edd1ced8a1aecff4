#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/schedule/schedule.h"
#include "model/units.h"

namespace sluice::sim {

// What one rank's ops on one microbatch take, and what they hold: an F adds `activation`, its I leaves `kept` of that,
// its W takes the rest. Bytes, or any other unit that `limit` is in; the limit holds at every moment.
struct RankBudget {
  Duration forward{};
  Duration input_gradient{};
  Duration weight_gradient{};
  std::int64_t activation = 1;
  std::int64_t kept = 1;
  std::int64_t limit = 0;
};

// One stage a rank, in model order; ranks may differ in everything.
struct ZeroBubbleProblem {
  int num_microbatches = 1;
  std::vector<RankBudget> ranks;
  Duration hop{};         // latency between two ranks; occupies neither
  MicrobatchShape shape;  // of every microbatch; one slice
};

// The choices of Qi et al. 2023 (arXiv:2401.10241), section 3.1, which their search takes in every combination; the
// last is ours, for limits below 1F1B's, and leaves the first without meaning.
struct ZeroBubbleRules {
  bool delay_first_gradient = false;  // warm up with one forward more than fits before the first input gradient
  bool hold_back_forwards = false;    // a rank two forwards ahead of the next leaves one out if that makes no bubble
  bool fill_every_gap = false;        // a W even in a gap that is too short for it and would cost nothing
  bool by_arrival = false;            // no rounds: a rank runs what is there first
};

enum class ZeroBubbleGoal : std::uint8_t {
  span,      // ranks need not wait for each other at the optimizer step (the paper's post-validation)
  makespan,  // they do
};

struct ZeroBubblePlan {
  Schedule schedule;
  std::string rule;  // what found it: "search", or the family that nothing was better than
  Duration span{};
  Duration makespan{};
  Duration least_span{};      // provable: no schedule of one stage a rank has less, whatever its memory
  Duration least_makespan{};  // likewise
};

// One schedule by the paper's heuristic under one set of its choices: forwards to fill the time up to the first
// gradient, then forward and input gradient in turn, weight gradients where a rank would wait or memory is full.
// Throws InputError as `plan_zero_bubble`.
Schedule zero_bubble_schedule(const ZeroBubbleProblem& problem, const ZeroBubbleRules& rules);

// The best by `goal`, then by the other, of all combinations of the rules and, where the limits let them, zb-h1 and
// zb-h2. Throws InputError for no ranks or microbatches, negative times or bytes, sums of them past 64 bits, a limit
// below one activation, kept above activation, or more than one slice.
ZeroBubblePlan plan_zero_bubble(const ZeroBubbleProblem& problem, ZeroBubbleGoal goal = ZeroBubbleGoal::span);

// The most that `rank` holds at any moment under `budget`, from the order alone.
std::int64_t peak_held(const Schedule& schedule, int rank, const RankBudget& budget);

// The problem's times as a cost model, to simulate a schedule of one stage a rank with. `problem` must outlive it.
class ZeroBubbleCost : public CostModel {
 public:
  explicit ZeroBubbleCost(const ZeroBubbleProblem& problem) : problem_(problem) {}
  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;

 private:
  const ZeroBubbleProblem& problem_;
};

}  // namespace sluice::sim
