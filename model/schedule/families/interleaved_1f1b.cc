#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_interleaved_1f1b(const FamilyParams& params) {
  const Family family = interleaved_1f1b();
  if (params.chunks == 1)
    return orders::alternating(family, params, 1, params.microbatches);  // 1f1b, as in Megatron-LM
  return orders::alternating(family, params, 2, orders::group_of_microbatches(family, params));
}

}  // namespace

Family interleaved_1f1b() {
  return {.name = "interleaved-1f1b",
          .aliases = {"Interleaved1F1B", "Interleaved", "VPP"},
          .summary = "1f1b with v chunks per rank: 1/v of the bubble, for v times the transfers",
          .source = "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
          .fixed_chunks = 0,
          .default_chunks = 2,
          .with_one_chunk = "1f1b",
          .grouped = true,
          .in_megatron_lm = true,
          .sliced_variant = "seq1f1b-interleaved",
          .leaner = {"1f1b"},
          .make = make_interleaved_1f1b};
}

}  // namespace sluice::model::families
