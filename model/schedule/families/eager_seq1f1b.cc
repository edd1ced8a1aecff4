#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family eager_seq1f1b() {
  return {.name = "eager-seq1f1b",
          .aliases = {"EagerSeq1F1B"},
          .summary = "seq1f1b with more warm-up slices: hides the latency of transfers, to which slicing is sensitive",
          .source = "eager-1f1b over the slices of seq1f1b",
          .sliced = true,
          .make = [](const FamilyParams& params) { return orders::alternating(eager_seq1f1b(), params, 2); }};
}

}  // namespace sluice::model::families
