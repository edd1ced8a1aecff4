#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_gpipe(const FamilyParams& params) {
  ScheduleParts parts = orders::frame(gpipe(), params, 2 * params.microbatches);
  parts.routes = {orders::linear(params.ranks)};
  for (int rank = 0; rank < params.ranks; ++rank) {
    auto& order = parts.orders[rank];
    for (int mb = 0; mb < params.microbatches; ++mb) order.push_back(orders::op(OpKind::F, rank, mb));
    for (int mb = 0; mb < params.microbatches; ++mb) order.push_back(orders::op(OpKind::B, rank, mb));
  }
  return parts;
}

}  // namespace

Family gpipe() {
  return {.name = "gpipe",
          .aliases = {},
          .summary = "all forwards, then all backwards; simplest, stores the activations of every microbatch",
          .source = "Huang et al. 2019, arXiv:1811.06965",
          .leaner = {"1f1b"},
          .make = make_gpipe};
}

}  // namespace sluice::model::families
