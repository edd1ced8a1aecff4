#include "tools/simulate/schedule_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/graph/op_graph.h"
#include "model/scenario/setup.h"
#include "model/schedule/with_communication.h"

namespace sluice::tools {

namespace {

// The text of a verdict: the cycle, or the first messages that are swapped.
std::string detail_of(const CommunicatorVerdict& verdict, const std::string& order) {
  if (verdict.hangs()) return "hangs: " + to_string(verdict.cycle);
  if (verdict.passes()) return "all ranks complete: " + order;
  const CrossedMessages& first = verdict.crossed.front();
  return fmt::format("swaps {} messages: on communicator {} from rank {} to rank {}, {} is received by {}",
                     verdict.num_crossed(), first.communicator, first.from, first.to, first.sent.front(),
                     first.received.front());
}

std::vector<std::vector<std::string>> communication_of(const Schedule& schedule) {
  std::vector<std::vector<std::string>> out;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    auto& row = out.emplace_back();
    for (const Communication& c : schedule.communication(rank)) row.push_back(to_string(c, schedule.sliced()));
  }
  return out;
}

std::string order_of(const Schedule& schedule, const CheckOptions& options) {
  if (schedule.has_communication()) return "order of the file";
  constexpr const char* kOrders[] = {"receives posted with the matching sends, as in PyTorch",
                                     "receives deferred, as in PyTorch with defer_pp_recv",
                                     "receives right before their use"};
  return kOrders[static_cast<int>(options.receives)];
}

// Checks each mapping, or the one that is asked for, and reports the coarsest one that passes.
void check_mappings(const Schedule& schedule, const CheckOptions& options, std::vector<ScheduleCheck>& out) {
  const Schedule communicating = schedule.has_communication() ? schedule : with_receives(schedule, options.receives);
  const HostProgram program = host_program(communicating, options.batched);
  const bool all = options.communicators.empty();
  std::vector<CommunicatorMapping> mappings(communicator_mappings().begin(), communicator_mappings().end());
  if (!all) mappings = {communicator_mapping(options.communicators, "--communicators")};
  std::string coarsest;
  for (const CommunicatorMapping& mapping : mappings) {
    CommunicatorVerdict verdict = check_communicators(
        program, {.communicator = mapping.communicator, .wait = options.wait, .serialized = options.serialized});
    const bool passes = verdict.passes();
    if (passes && coarsest.empty()) coarsest = mapping.name;
    std::string detail = detail_of(verdict, order_of(schedule, options));
    out.push_back({.check = "communicators: " + mapping.name,
                   .good = passes,
                   .note = all,
                   .detail = std::move(detail),
                   .verdict = std::move(verdict)});
  }
  std::vector<std::vector<std::string>> repaired;
  if (coarsest != mappings.front().name) {
    repaired = communication_of(with_communication(without_communication(schedule), true));
  }
  if (!all) {
    out.back().repaired_order = std::move(repaired);
    return;
  }
  out.push_back({.check = "coarsest communicators",
                 .good = !coarsest.empty(),
                 .detail = coarsest.empty() ? "hangs or swaps messages with all communicators; --check -o FILE writes "
                                              "an order that passes with all"
                                            : coarsest,
                 .repaired_order = std::move(repaired)});
}

}  // namespace

void CheckOptions::read(const std::string& text) {
  const HostWait given = wait;
  static_cast<CommunicatorOptions&>(*this) = read_communicators(text, "--communicators");
  if (wait == CommunicatorOptions().wait) wait = given;
  any_communication = true;
}

void check_further(const Schedule& schedule, const std::string& source, const CheckOptions& options,
                   std::vector<ScheduleCheck>& out) {
  out.push_back(
      {.check = "ops", .detail = fmt::format("{} ops, each exactly once and on its rank", schedule.num_ops())});
  const bool own = schedule.has_communication();
  try {
    // Sends and receives may be valid with some communicators only.
    const Schedule ops = without_communication(schedule);
    const OpGraph graph = lower_named(ops, {}, source);
    out.push_back({.check = "deadlock", .detail = fmt::format("none in {} graph vertices", graph.size())});
  } catch (const ScheduleError& error) {
    out.push_back({.check = "deadlock", .good = false, .detail = error.what()});
    return;
  }
  if (own) out.push_back({.check = "communication", .detail = "each transfer has one send and one receive"});
  if (schedule.vocabulary_barriers() == 0) check_mappings(schedule, options, out);
}

std::vector<ScheduleCheck> check_schedule(const Scenario& scenario, const CheckOptions& options) {
  std::vector<ScheduleCheck> out;
  try {
    const Schedule schedule = make_schedule(scenario);
    check_further(options.merge_backwards ? with_merged_backwards(schedule) : schedule, scenario.schedule, options,
                  out);
  } catch (const ScheduleError& error) {
    out.push_back({.check = "ops", .good = false, .detail = error.what()});
  }
  return out;
}

namespace {

void add_verdict(nlohmann::ordered_json& check, const CommunicatorVerdict& verdict) {
  auto& cycle = check["cycle"] = nlohmann::ordered_json::array();
  for (const CycleStep& step : verdict.cycle) {
    cycle.push_back({{"rank", step.rank}, {"item", step.item}, {"reason", step.reason}});
  }
  auto& swaps = check["swaps"] = nlohmann::ordered_json::array();
  for (const CrossedMessages& each : verdict.crossed) {
    swaps.push_back({{"communicator", each.communicator},
                     {"from", each.from},
                     {"to", each.to},
                     {"messages", each.count},
                     {"sent", each.sent},
                     {"received", each.received}});
  }
}

}  // namespace

nlohmann::ordered_json checks_document(std::span<const ScheduleCheck> verdicts) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const ScheduleCheck& v : verdicts) {
    nlohmann::ordered_json check = {{"check", v.check}, {"verdict", v.word()}, {"detail", v.detail}};
    if (v.verdict) add_verdict(check, *v.verdict);
    if (!v.repaired_order.empty()) check["repaired_order"] = v.repaired_order;
    checks.push_back(std::move(check));
  }
  const bool good =
      std::all_of(verdicts.begin(), verdicts.end(), [](const ScheduleCheck& v) { return v.good || v.note; });
  return {{"schema", "sluice.schedule_check/1"}, {"valid", good}, {"checks", checks}};
}

}  // namespace sluice::tools
