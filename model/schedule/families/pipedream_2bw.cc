#include <fmt/format.h>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_pipedream_2bw(const FamilyParams& params) {
  // A batch's first forward on rank 0 finds the step of the batch before the last done only then.
  if (params.microbatches < params.ranks - 1) {
    orders::refuse(pipedream_2bw(),
                   fmt::format("microbatches: two versions of the weights suffice from {} a batch (ranks - 1), got {}",
                               params.ranks - 1, params.microbatches));
  }
  ScheduleParts parts = orders::alternating(pipedream_2bw(), params, 1);
  parts.weight_policy = WeightPolicy::double_buffered;
  return parts;
}

}  // namespace

Family pipedream_2bw() {
  return {.name = "pipedream-2bw",
          .aliases = {"2BW"},
          .summary = "1f1b that never drains, with a step after every batch and two versions of the weights",
          .source = "Narayanan et al. 2021, arXiv:2006.09503, section 3.1",
          .asynchronous = true,
          .make = make_pipedream_2bw};
}

}  // namespace sluice::model::families
