// A program of somebody else's, against the installed libraries.

#include <cstdio>

#include "model/cost/price.h"
#include "model/cost/uniform.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/timeline/metrics.h"
#include "sim/engine.h"

int main() {
  using namespace sluice::model;
  using namespace sluice::sim;
  FamilyParams params;
  params.ranks = 4;
  params.microbatches = 8;
  const Schedule schedule = make_schedule(find_family("1f1b"), params);
  const OpGraph graph = lower(schedule);
  const UniformCost cost({}, schedule);  // f = b = w = 1 s
  const Timeline timeline = simulate(graph, price(graph, cost));
  // (m + p - 1)(f + b + w) = (8 + 3) x (1 + 1 + 1) s: the first microbatch passes p - 1 ranks before the last rank has
  // work, whose m microbatches then follow without a gap.
  const double expected = 33;
  const double makespan = to_seconds(measure(graph, timeline).makespan);
  std::printf("1f1b on 4 ranks, 8 microbatches: %g s\n", makespan);
  return makespan == expected ? 0 : 1;
}
