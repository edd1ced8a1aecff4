#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_combined_1f1b(const FamilyParams& params) {
  const Family family = combined_1f1b();
  const int group = params.chunks == 1 ? params.microbatches : orders::group_of_microbatches(family, params);
  return orders::alternating(family, params, 2, group, orders::Blocks::joint);
}

}  // namespace

Family combined_1f1b() {
  return {
      .name = "combined-1f1b",
      .aliases = {"Combined1F1B"},
      .summary = "interleaved-1f1b with one more forward of warm-up, so that each F and B form a joint block",
      .source = "Megatron-LM, --overlap-moe-expert-parallel-comm (megatron/core/pipeline_parallel/combined_1f1b.py)",
      .fixed_chunks = 0,
      .default_chunks = 2,
      .grouped = true,
      .in_megatron_lm = true,
      .for_expert_parallelism = true,
      .leaner = {"interleaved-1f1b"},
      .make = make_combined_1f1b};
}

}  // namespace sluice::model::families
