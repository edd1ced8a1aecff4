#include "tools/plan/plan_exchange.h"

#include <nlohmann/json.hpp>

namespace sluice::tools {

std::string to_bytes(std::span<const Plan::Work> work, std::span<const PlanResult> results, bool interrupted) {
  using nlohmann::json;
  json rows = json::array();
  for (std::size_t i = 0; i < work.size(); ++i) {
    const PlanResult& result = results[i];
    if (result.status == PlanStatus::open && result.needed_bytes == 0) continue;  // stopped before it was assessed
    const Throughput& speed = result.throughput;
    rows.push_back(
        json::array({work[i].point, work[i].structure, work[i].simulate, static_cast<int>(result.status), result.fits,
                     result.tight, result.rank, result.needed_bytes, result.bound.count(), result.iteration.count(),
                     result.makespan.count(), result.bubble_fraction, speed.tokens_per_s, speed.model_tflops_per_device,
                     speed.hardware_tflops_per_device, speed.mfu, result.reason, result.extrapolated}));
  }
  std::string out;
  json::to_msgpack(json::array({interrupted, std::move(rows)}), out);
  return out;
}

PlanPart plan_part_of(const std::string& bytes) {
  using nlohmann::json;
  const json document = json::from_msgpack(bytes);
  PlanPart part;
  part.interrupted = document[0].get<bool>();
  for (const json& row : document[1]) {
    part.work.push_back({.point = row[0].get<int>(), .structure = row[1].get<int>(), .simulate = row[2].get<bool>()});
    PlanResult& result = part.results.emplace_back();
    result.status = static_cast<PlanStatus>(row[3].get<int>());
    result.fits = row[4].get<bool>();
    result.tight = row[5].get<bool>();
    result.rank = row[6].get<int>();
    result.needed_bytes = row[7].get<std::int64_t>();
    result.bound = Duration{row[8].get<std::int64_t>()};
    result.iteration = Duration{row[9].get<std::int64_t>()};
    result.makespan = Duration{row[10].get<std::int64_t>()};
    result.bubble_fraction = row[11].get<double>();
    result.throughput = {.tokens_per_s = row[12].get<double>(),
                         .model_tflops_per_device = row[13].get<double>(),
                         .hardware_tflops_per_device = row[14].get<double>(),
                         .mfu = row[15].get<double>()};
    result.reason = row[16].get<std::string>();
    result.extrapolated = row[17].get<bool>();
  }
  return part;
}

}  // namespace sluice::tools
