#include "model/scenario/cost_file_keys.h"

#include <utility>

namespace sluice::model {

void check_cost_file_keys(JsonReader parallelism) {
  const std::pair<const char*, Json> without_effect[] = {{"cp", 1},
                                                         {"etp", 1},
                                                         {"moe_token_dispatcher", "alltoall"},
                                                         {"fp8_dispatch", false},
                                                         {"moe_communication_sms", 0},
                                                         {"expert_imbalance", 1},
                                                         {"moe_expert_capacity_factor", nullptr},
                                                         {"fused_grouped_mlp", false},
                                                         {"cuda_graph_impl", "none"},
                                                         {"tp_comm_overlap", false},
                                                         {"fp8_dot_product_attention", false}};
  for (const auto& [key, value] : without_effect) {
    if (!parallelism.has(key)) continue;
    const JsonReader found = parallelism.at(key);
    if (found.json() == value) continue;
    found.fail("only valid with the analytic cost, since the times of a cost file do not depend on it: expected " +
               (value.is_null() ? "none" : value.dump()));
  }
  if (!parallelism.has("joint_overlap")) return;
  const JsonReader overlap = parallelism.at("joint_overlap");
  if (overlap.json() == "all") overlap.fail("expected none or experts with a cost file");
}

}  // namespace sluice::model
