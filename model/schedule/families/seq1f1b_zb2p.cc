#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family seq1f1b_zb2p() {
  return {.name = "seq1f1b-zb2p",
          .aliases = {},
          .summary = "zb-h2 over slices of sequences: the fastest with one chunk per rank, with little memory",
          .source = "zb-h2 over the slices of seq1f1b",
          .sliced = true,
          .split_backward = true,
          .leaner = {"seq1f1b-zb1p"},
          .make = [](const FamilyParams& params) { return orders::alternating(seq1f1b_zb2p(), params, 2); }};
}

}  // namespace sluice::model::families
