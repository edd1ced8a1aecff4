#include <fmt/format.h>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_pipedream_2bw(const FamilyParams& params) {
  // With fewer microbatches the step of the previous batch is not complete before a batch's first forward on rank 0.
  if (params.microbatches < params.ranks - 1) {
    orders::refuse(
        pipedream_2bw(),
        fmt::format("microbatches: two versions of the weights need at least {} per batch (ranks - 1), got {}",
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
          .summary = "1f1b without a flush: a step after every batch; two versions of the weights",
          .source = "Narayanan et al. 2021, arXiv:2006.09503, section 3.1",
          .asynchronous = true,
          .make = make_pipedream_2bw};
}

}  // namespace sluice::model::families
