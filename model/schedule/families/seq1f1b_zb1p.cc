#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family seq1f1b_zb1p() {
  return {.name = "seq1f1b-zb1p",
          .aliases = {},
          .summary = "zb-h1 over slices of sequences",
          .source = "Sun et al. 2024, arXiv:2406.03488",
          .sliced = true,
          .split_backward = true,
          .make = [](const FamilyParams& params) { return orders::alternating(seq1f1b_zb1p(), params, 1); }};
}

}  // namespace sluice::model::families
