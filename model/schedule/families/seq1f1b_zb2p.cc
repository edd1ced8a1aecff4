#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family seq1f1b_zb2p() {
  return {.name = "seq1f1b-zb2p",
          .aliases = {},
          .summary = "zb-h2 over slices of sequences: the shortest of the linear ones, at little memory",
          .source = "zb-h2 over the slices of seq1f1b",
          .sliced = true,
          .split_backward = true,
          .make = [](const FamilyParams& params) { return orders::alternating(seq1f1b_zb2p(), params, 2); }};
}

}  // namespace sluice::model::families
