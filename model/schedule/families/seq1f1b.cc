#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family seq1f1b() {
  return {.name = "seq1f1b",
          .aliases = {},
          .summary = "1f1b over slices of sequences: 1/k of the bubble and less memory",
          .source = "Sun et al. 2024, arXiv:2406.03488, eq. 4",
          .sliced = true,
          .make = [](const FamilyParams& params) { return orders::alternating(seq1f1b(), params, 1); }};
}

}  // namespace sluice::model::families
