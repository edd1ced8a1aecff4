#include "tools/plan/partition_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/scenario/pipeline_layout.h"
#include "model/scenario/setup.h"
#include "model/to_size.h"
#include "sim/engine/predict.h"
#include "tools/command/assumptions.h"
#include "tools/command/document.h"
#include "tools/plan/plan_output.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

double in_gib(std::int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

// The layers and the memory of one rank.
struct RankOfPartition {
  std::vector<int> layers;  // by chunk
  std::int64_t needed_bytes = 0;
};

std::vector<RankOfPartition> ranks_of(const PartitionReport& report) {
  const Setup setup(scenario_of(report.base, report.space, report.point));
  const Prediction prediction = predict(setup);
  std::vector<RankOfPartition> out;
  for (int rank = 0; rank < setup.schedule().num_ranks(); ++rank) {
    RankOfPartition of;
    for (const int stage : setup.schedule().stages_of(rank)) of.layers.push_back(report.found.layers[to_size(stage)]);
    of.needed_bytes = needed_bytes(report.base.cluster->gpu, prediction.memory[to_size(rank)].peak_bytes);
    out.push_back(std::move(of));
  }
  return out;
}

std::int64_t usable_bytes(const Gpu& gpu) {
  return static_cast<std::int64_t>(static_cast<double>(gpu.memory_bytes) * (1 - gpu.memory_margin));
}

// The result as a fraction above its bound, and above it the given partition.
double excess(Duration time, Duration reference) { return to_seconds(time) / to_seconds(reference) - 1; }

bool has_given(const Partition& found) { return found.given_result.status == PlanStatus::simulated; }

std::string layout(const Partition& found) { return layout_of(found.layers, found.mtp_layers, found.mtp_stage); }
std::string given_layout(const Partition& found) {
  return layout_of(found.given, found.mtp_layers, found.given_mtp_stage);
}

std::string comparison_with_even(const Partition& found) {
  if (found.given.empty()) return "there is no even split: more stages than layers";
  if (!has_given(found)) return "the even split is not possible: " + found.given_result.reason;
  if (layout(found) == given_layout(found)) return "this is the even split";
  const PlanResult& given = found.given_result;
  return fmt::format("even split {}: {}{}", given_layout(found), time_text(given.iteration),
                     !given.fits ? ", does not fit"
                     : given.tight
                         ? ", within the memory margin"
                         : fmt::format(" ({:+.1f} %)", 100 * excess(given.iteration, found.result.iteration)));
}

std::string certainty(const Partition& found) {
  if (found.proven) return "proven best";
  if (found.bound == Duration{0}) return "no lower bound";
  return fmt::format("at most {:.1f} % above the best (lower bound {})",
                     100 * excess(found.result.iteration, found.bound), time_text(found.bound));
}

}  // namespace

PlanPoint only_configuration(const Scenario& base, const PlanSpace& space) {
  PlanSpace one = space;
  one.uneven_outer_stages = false;
  one.empty_stages = true;
  if (one.recompute_layers.empty()) one.recompute_layers = {0};
  const std::vector<PlanPoint> points = enumerate(base, one);
  if (points.size() == 1) return points.front();
  std::vector<std::string> open;
  const auto differ = [&](const char* flag, auto value) {
    const auto other = [&](const PlanPoint& point) {
      return std::invoke(value, point) != std::invoke(value, points.front());
    };
    if (std::any_of(points.begin(), points.end(), other)) open.emplace_back(flag);
  };
  differ("--schedule", [](const PlanPoint& point) { return point.family->name; });
  differ("--tp", &PlanPoint::tp);
  differ("--cp", &PlanPoint::cp);
  differ("--pp", &PlanPoint::pp);
  differ("--dp", &PlanPoint::dp);
  differ("--ep", &PlanPoint::ep);
  differ("--etp", &PlanPoint::etp);
  differ("--vpp", &PlanPoint::chunks);
  differ("--mbs", &PlanPoint::micro_batch);
  differ("--slices", &PlanPoint::slices);
  differ("--recompute", &PlanPoint::recompute);
  differ("--recompute-num-layers", &PlanPoint::recompute_layers);
  differ("--overlap-grad-reduce", &PlanPoint::overlap_grad_reduce);
  differ("--overlap-param-gather", &PlanPoint::overlap_param_gather);
  differ("--use-distributed-optimizer", &PlanPoint::distributed_optimizer);
  differ("--use-tp-pp-dp-mapping", &PlanPoint::pipeline_before_data);
  throw InputError(fmt::format("plan: --partition: expected one configuration, got {}: give one value each for {}",
                               points.size(), fmt::join(open, ", ")));
}

std::string partition_table(const PartitionReport& report) {
  const Partition& found = report.found;
  std::string out =
      fmt::format("{} · simulated {} partitions · {:.1f} s{}\n", gpus_text(report.base, report.space), found.simulated,
                  report.seconds, report.interrupted ? " · interrupted: best so far" : "");
  if (!found.result.fits) return out;
  const Gpu& gpu = report.base.cluster->gpu;
  out += fmt::format("layout     {}\n", layout(found));
  out += fmt::format("iteration  {}{}, {}\n           {}\n", time_text(found.result.iteration),
                     found.result.tight ? " (within the memory margin)" : "", certainty(found),
                     comparison_with_even(found));
  out += fmt::format("memory     {:.1f} GiB usable per GPU\n\n  rank  peak GiB  of usable  layers by chunk\n",
                     in_gib(usable_bytes(gpu)));
  int index = 0;
  for (const RankOfPartition& rank : ranks_of(report)) {
    fmt::format_to(std::back_inserter(out), "  {:>4}  {:>8.2f}  {:>7.1f} %  {}\n", index++, in_gib(rank.needed_bytes),
                   100 * static_cast<double>(rank.needed_bytes) / static_cast<double>(usable_bytes(gpu)),
                   fmt::join(rank.layers, ","));
  }
  const Scenario scenario = scenario_of(report.base, report.space, report.point);
  out += "\n" + assumptions_text({scenario, report.document, kPlan, has_joint_blocks(make_schedule(scenario))});
  return out + fmt::format("\nsimulate:  {}\n", flags_of(report.base, report.space, report.point));
}

std::string partition_json(const PartitionReport& report) {
  const Partition& found = report.found;
  const Gpu& gpu = report.base.cluster->gpu;
  OrderedJson out = {{"schema", "sluice.partition/1"},
                     {"interrupted", report.interrupted},
                     {"gpus", {{"used", report.space.gpus}, {"cluster", report.base.cluster->num_gpus()}}},
                     {"seconds", report.seconds},
                     {"simulated", found.simulated},
                     {"fits", found.result.fits},
                     {"pipeline_layout", layout(found)},
                     {"stage_layers", found.layers},
                     {"iteration_s", to_seconds(found.result.iteration)},
                     {"proven", found.proven}};
  out["lower_bound_s"] = found.bound > Duration{0} ? OrderedJson(to_seconds(found.bound)) : OrderedJson(nullptr);
  out["needed_memory_bytes"] = found.result.needed_bytes;
  out["within_memory_margin"] = found.result.tight;
  out["even"] = nullptr;
  if (has_given(found)) {
    out["even"] = {{"pipeline_layout", given_layout(found)},
                   {"iteration_s", to_seconds(found.given_result.iteration)},
                   {"fits", found.given_result.fits},
                   {"needed_memory_bytes", found.given_result.needed_bytes}};
  }
  out["capacity_bytes"] = gpu.memory_bytes;
  out["usable_bytes"] = usable_bytes(gpu);
  out["ranks"] = OrderedJson::array();
  for (const RankOfPartition& rank : ranks_of(report)) {
    out["ranks"].push_back({{"layers", rank.layers}, {"needed_memory_bytes", rank.needed_bytes}});
  }
  const Scenario scenario = scenario_of(report.base, report.space, report.point);
  add_assumptions(out, {scenario, report.document, kPlan, has_joint_blocks(make_schedule(scenario))});
  out["flags"] = flags_of(report.base, report.space, report.point);
  return json_text(std::move(out));
}

std::string partition_refusal(const PartitionReport& report) {
  const PlanResult& result = report.found.result;
  if (result.status != PlanStatus::simulated) return "plan: no partition is possible: " + result.reason;
  if (result.fits) return "";
  return fmt::format("plan: no partition fits in memory: the smallest found needs {:.1f} of {:.1f} GiB ({})",
                     in_gib(result.needed_bytes), in_gib(report.base.cluster->gpu.memory_bytes), layout(report.found));
}

}  // namespace sluice::tools
