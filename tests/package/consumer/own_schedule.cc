// A schedule and a cost model of one's own: all forwards, then all backwards, with costs in code. Draws the timeline,
// writes a Chrome trace to argv[1], and predicts the same schedule for a scenario that is built in code.

#include <cstdio>
#include <string>
#include <utility>

#include "sluice/model/cost/price.h"
#include "sluice/model/errors.h"
#include "sluice/model/graph/lowering.h"
#include "sluice/model/timeline/memory.h"
#include "sluice/sim/engine.h"
#include "sluice/sim/simulator.h"
#include "sluice/traces/chrome_trace.h"
#include "sluice/traces/gantt.h"

namespace {

constexpr int kRanks = 3;
constexpr int kMicrobatches = 4;

sluice::Schedule forwards_then_backwards() {
  sluice::ScheduleParts parts{
      .family = "custom", .num_ranks = kRanks, .num_stages = kRanks, .num_microbatches = kMicrobatches};
  parts.routes.emplace_back();
  for (int rank = 0; rank < kRanks; ++rank) {
    parts.routes[0].push_back(rank);
    auto& order = parts.orders.emplace_back();
    for (const auto kind : {sluice::OpKind::F, sluice::OpKind::B}) {
      for (int mb = 0; mb < kMicrobatches; ++mb) {
        sluice::Op op;
        op.microbatch = mb;
        op.stage = static_cast<std::int16_t>(rank);
        op.kind = kind;
        order.push_back(op);
      }
    }
  }
  return sluice::Schedule(std::move(parts));
}

// F takes 1 s, B 2 s, transfers nothing.
class OwnCost : public sluice::CostModel {
 public:
  double compute_s(sluice::OpKind kind, int, const sluice::MicrobatchShape&, int) const override {
    return kind == sluice::OpKind::F ? 1 : 2;
  }
  sluice::TransferTime transfer(int, int, std::int64_t) const override { return {}; }
};

// (m + p - 1)(f + b) = (4 + 2) x 3 s: forwards and backwards each pass all ranks once.
constexpr double kExpected = 18;

}  // namespace

int main(int argc, char** argv) {
  const auto schedule = forwards_then_backwards();
  const auto graph = sluice::lower(schedule);
  const auto timeline = sluice::simulate(graph, sluice::price(graph, OwnCost()));
  const auto metrics = sluice::measure(graph, timeline);
  std::fputs(sluice::text_gantt(graph, timeline, metrics).c_str(), stdout);
  if (argc > 1) sluice::write_trace_file(argv[1], graph, timeline, sluice::memory_over_time(graph, timeline, true));

  sluice::Scenario scenario;  // uniform costs: F, I and W of 1 s each
  const sluice::Simulator simulator(scenario, schedule);
  const double predicted = simulator.predict().iteration_s();

  bool refused = false;
  try {
    sluice::read_scenario("/nowhere/scenario.json");
  } catch (const sluice::InputError& error) {
    refused = std::string(error.what()).find("/nowhere/scenario.json") == 0;
  }
  return sluice::to_seconds(metrics.makespan) == kExpected && predicted == kExpected && refused ? 0 : 1;
}
