#include "tools/simulate/schedule_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/graph/op_graph.h"
#include "model/graph/rendezvous.h"
#include "model/scenario/setup.h"
#include "model/schedule/with_communication.h"

namespace sluice::tools {

void check_further(const Schedule& schedule, const std::string& source, std::vector<ScheduleCheck>& out) {
  out.push_back(
      {.check = "ops", .detail = fmt::format("{} ops, each exactly once and on its rank", schedule.num_ops())});
  try {
    const OpGraph graph = lower_named(schedule, {}, source);
    out.push_back({.check = "deadlock", .detail = fmt::format("none in {} graph vertices", graph.size())});
  } catch (const ScheduleError& error) {
    out.push_back({.check = "deadlock", .good = false, .detail = error.what()});
    return;
  }
  const bool own = schedule.has_communication();
  if (own) {
    out.push_back({.check = "communication",
                   .detail = "each transfer has one send and one receive, in the same order on both ranks"});
  }
  const Schedule communicating = own ? schedule : with_communication(schedule);
  const std::string order = own ? "order of the file" : "receives posted with the matching sends, as in PyTorch";
  for (const auto& [exchange, name] : {std::pair(Exchange::grouped, "rendezvous, neighbors together"),
                                       std::pair(Exchange::rendezvous, "rendezvous, one by one")}) {
    const std::string cycle = hanging_cycle(communicating, exchange);
    // One at a time is stricter than practice: PyTorch and Megatron-LM batch adjacent sends and receives.
    out.push_back({.check = name,
                   .good = cycle.empty(),
                   .note = exchange == Exchange::rendezvous,
                   .detail = cycle.empty() ? "all ranks complete: " + order : "hangs: " + cycle});
  }
  if (own) return;
  ScheduleCheck late{
      .check = "receives posted late", .note = true, .detail = "receives right before their use also complete"};
  try {
    const std::string cycle = hanging_cycle(with_receives_just_in_time(schedule), Exchange::rendezvous);
    if (!cycle.empty()) late = {late.check, false, true, "hangs: " + cycle};
  } catch (const ScheduleError& error) {
    late = {late.check, false, true, error.what()};
  }
  out.push_back(late);
}

std::vector<ScheduleCheck> check_schedule(const Scenario& scenario, bool merge_backwards) {
  std::vector<ScheduleCheck> out;
  try {
    const Schedule schedule = make_schedule(scenario);
    check_further(merge_backwards ? with_merged_backwards(schedule) : schedule, scenario.schedule, out);
  } catch (const ScheduleError& error) {
    out.push_back({.check = "ops", .good = false, .detail = error.what()});
  }
  return out;
}

nlohmann::ordered_json checks_document(std::span<const ScheduleCheck> verdicts) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const ScheduleCheck& v : verdicts)
    checks.push_back({{"check", v.check}, {"verdict", v.word()}, {"detail", v.detail}});
  const bool good =
      std::all_of(verdicts.begin(), verdicts.end(), [](const ScheduleCheck& v) { return v.good || v.note; });
  return {{"schema", "sluice.schedule_check/1"}, {"valid", good}, {"checks", checks}};
}

}  // namespace sluice::tools
