#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family zb_h2() {
  return {.name = "zb-h2",
          .aliases = {"ZB2P", "ZBH2"},
          .summary = "zb-h1 with twice the memory: no bubble between batches if F, I and W take equally long",
          .source = "Qi et al. 2023, arXiv:2401.10241, section 2.2",
          .split_backward = true,
          .leaner = {"zb-h1"},
          .make = [](const FamilyParams& params) { return orders::alternating(zb_h2(), params, 2); }};
}

}  // namespace sluice::model::families
