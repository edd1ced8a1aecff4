#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family one_f_one_b() {
  return {.name = "1f1b",
          .aliases = {"PipeDream-Flush", "DAPPLE"},
          .summary = "one forward, one backward: like gpipe, and rank r holds at most p - r microbatches",
          .source = "Narayanan et al. 2021, arXiv:2006.09503; Fan et al. 2021, arXiv:2007.01045",
          .megatron = true,
          .make = [](const FamilyParams& params) { return orders::alternating(one_f_one_b(), params, 1); }};
}

}  // namespace sluice::model::families
