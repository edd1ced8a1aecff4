#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_interleaved_zb(const FamilyParams& params) {
  const Family family = interleaved_zb();
  if (params.chunks == 1) return orders::alternating(family, params, 1, params.microbatches);  // zb-h1
  return orders::alternating(family, params, 1, orders::group_of_microbatches(family, params));
}

}  // namespace

Family interleaved_zb() {
  return {.name = "interleaved-zb",
          .aliases = {"InterleavedZeroBubble", "InterleavedZB"},
          .summary = "interleaved-1f1b with delayed weight gradients",
          .source = "PyTorch, torch.distributed.pipelining, ScheduleInterleavedZeroBubble",
          .fixed_chunks = 0,
          .default_chunks = 2,
          .with_one_chunk = "zb-h1",
          .split_backward = true,
          .grouped = true,
          .leaner = {"zb-h1"},
          .make = make_interleaved_zb};
}

}  // namespace sluice::model::families
