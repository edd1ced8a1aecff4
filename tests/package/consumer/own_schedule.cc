// A schedule and a cost model of one's own: all forwards, then all backwards, with costs in code. Draws the timeline,
// writes a Chrome trace to argv[1], and predicts the same schedule for a scenario that is built in code.

#include <cstdio>
#include <string>
#include <utility>

#include "sluice/model/cost/price.h"
#include "sluice/model/errors.h"
#include "sluice/model/graph/lowering.h"
#include "sluice/model/timeline/memory.h"
#include "sluice/sim/engine/engine.h"
#include "sluice/sim/simulator.h"
#include "sluice/traces/chrome/chrome_trace.h"
#include "sluice/traces/text/gantt.h"

namespace {

using namespace sluice::sim;  // and of sluice::model, on which it builds

constexpr int kRanks = 3;
constexpr int kMicrobatches = 4;

Schedule forwards_then_backwards() {
  ScheduleParts parts{.family = "custom", .num_ranks = kRanks, .num_stages = kRanks, .num_microbatches = kMicrobatches};
  parts.routes.emplace_back();
  for (int rank = 0; rank < kRanks; ++rank) {
    parts.routes[0].push_back(rank);
    auto& order = parts.orders.emplace_back();
    for (const auto kind : {OpKind::F, OpKind::B}) {
      for (int mb = 0; mb < kMicrobatches; ++mb) {
        Op op;
        op.microbatch = mb;
        op.stage = static_cast<std::int16_t>(rank);
        op.kind = kind;
        order.push_back(op);
      }
    }
  }
  return Schedule(std::move(parts));
}

// F takes 1 s, B 2 s, transfers nothing.
class OwnCost : public CostModel {
 public:
  double compute_s(OpKind kind, int, const MicrobatchShape&, int) const override { return kind == OpKind::F ? 1 : 2; }
  TransferTime transfer(int, int, std::int64_t) const override { return {}; }
};

// (m + p - 1)(f + b) = (4 + 2) x 3 s: forwards and backwards each pass all ranks once.
constexpr double kExpected = 18;

}  // namespace

int main(int argc, char** argv) {
  const auto schedule = forwards_then_backwards();
  const auto graph = lower(schedule);
  const auto timeline = simulate(graph, price(graph, OwnCost()));
  const auto metrics = measure(graph, timeline);
  std::fputs(sluice::traces::text_gantt(graph, timeline, metrics).c_str(), stdout);
  if (argc > 1) sluice::traces::write_trace_file(argv[1], graph, timeline, memory_over_time(graph, timeline, true));

  Scenario scenario;  // uniform costs: F, I and W of 1 s each
  const Simulator simulator(scenario, schedule);
  const double predicted = simulator.predict().iteration_s();

  bool refused = false;
  try {
    read_scenario("/nowhere/scenario.json");
  } catch (const InputError& error) {
    refused = std::string(error.what()).find("/nowhere/scenario.json") == 0;
  }
  return to_seconds(metrics.makespan) == kExpected && predicted == kExpected && refused ? 0 : 1;
}
