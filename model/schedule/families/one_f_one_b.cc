#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family one_f_one_b() {
  return {.name = "1f1b",
          .aliases = {"PipeDream-Flush", "DAPPLE"},
          .summary = "one forward, one backward: gpipe's time, but rank r stores at most p - r microbatches",
          .source = "Narayanan et al. 2021, arXiv:2006.09503; Fan et al. 2021, arXiv:2007.01045",
          .in_megatron_lm = true,
          .sliced_variant = "seq1f1b",
          .make = [](const FamilyParams& params) { return orders::alternating(one_f_one_b(), params, 1); }};
}

}  // namespace sluice::model::families
