#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family eager_1f1b() {
  return {.name = "eager-1f1b",
          .aliases = {"Eager1F1B"},
          .summary = "1f1b with up to twice the warm-up forwards: hides the latency of transfers",
          .source = "Zhuang et al. 2023, arXiv:2211.05322",
          .make = [](const FamilyParams& params) { return orders::alternating(eager_1f1b(), params, 2); }};
}

}  // namespace sluice::model::families
